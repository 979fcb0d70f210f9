"""Products whose blocks share labels that mean nothing: what is relabelled together."""

import abc
import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Self

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.errors import StructureError
from posterity.families.base import ExponentialFamily
from posterity.families.plate import Plate
from posterity.families.product import Product


class Tied(Product):
    """A product in which one set of labels names entries along axes of several blocks.

    The states of a hidden Markov model name its emissions, and rows and columns of its transitions.
    Such a product is matched as a whole: the labels are found on the plate that
    :meth:`as_plate` makes of it, and carried to all axes by :meth:`relabel`.
    """

    concentrations: ClassVar[int]
    """The number of entries of :meth:`spread`."""

    is_tied: ClassVar[bool] = True

    def independent_blocks(self) -> Mapping[str, ExponentialFamily]:
        """None: they share labels."""
        return {}

    @classmethod
    @abc.abstractmethod
    def shared_labels(cls) -> Mapping[str, tuple[int, ...]]:
        """The axes along which the labels go, by block; counted after those of the batch."""

    @property
    @abc.abstractmethod
    def labels(self) -> int:
        """The number of labels."""

    @abc.abstractmethod
    def as_plate(self, prior: Self | None = None) -> Plate:
        """A member a label, in which labels are told apart, and as weights how often it was seen.

        The weights are a Dirichlet; without a prior its concentrations hold the prior's too.
        """

    @abc.abstractmethod
    def contribution(self, prior: Self | None) -> Self:
        """The factor that it adds to a prior; all its concentrations where that is not known."""

    @abc.abstractmethod
    def with_members(self, members: ExponentialFamily) -> Self:
        """With other members in the plate in which labels are told apart."""

    @abc.abstractmethod
    def spread(self) -> Float[np.ndarray, " s"]:
        """A prior's concentrations over all labels together, which their number does not change.

        NaN is what so few labels do not tell.

        Raises:
            StructureError: for a prior that tells labels apart.
        """

    @classmethod
    @abc.abstractmethod
    def exchangeable(
        cls, member: ExponentialFamily, spread: Float[np.ndarray, " s"], labels: int
    ) -> Self:
        """The prior that tells no label from another: ``member`` for each, and this spread."""

    def relabel(
        self,
        labels: Int[np.ndarray, " k"],
        size: int,
        axes: Sequence[int] | Mapping[str, Sequence[int]] = (0,),
    ) -> Self:
        """A factor whose label ``k`` is called ``labels[k]`` instead, in all blocks.

        Axes are those of the batch, then that of the labels. What is labelled -1 is left out; what
        two labels become one adds up.

        Raises:
            StructureError: for axes of single blocks, which go together, or labels out of range.
        """
        batch = len(self.batch_shape)
        if isinstance(axes, Mapping) or not all(0 <= axis <= batch for axis in axes):
            raise StructureError(
                found=f"axes={axes} for a {type(self).__name__}",
                expected=f"the {batch} axes of the batch, then {batch}, that of the labels",
                fix="Name no blocks: all are relabelled together.",
            )
        blocks, labels = dict(self.blocks), np.asarray(labels)
        for axis in axes:
            for name, own in self.shared_labels().items():
                if axis < batch:
                    blocks[name] = blocks[name].relabel(labels, size, (axis,))
                for place in own if axis == batch else ():
                    blocks[name] = _added(blocks[name], labels, size, axis + place)
        return self.rebuild([blocks[name] for name in self.blocks])


def _added(block: ExponentialFamily, labels: np.ndarray, size: int, axis: int) -> ExponentialFamily:
    """One axis relabelled; entries of one label are added."""
    moved = (block.relabel(some, size, (axis,)) for some in _apart(labels))
    return functools.reduce(operator.add, moved)


def _apart(labels: np.ndarray) -> Iterator[np.ndarray]:
    """The labels as several, in none of which one comes twice; -1 for what others have."""
    order = np.argsort(labels, kind="stable")
    ranked = labels[order]
    turn = np.empty(len(labels), int)
    turn[order] = np.arange(len(labels)) - np.searchsorted(ranked, ranked)
    turn[labels < 0] = 0
    for index in range(int(turn.max(initial=0)) + 1):
        yield np.where(turn == index, labels, -1)
