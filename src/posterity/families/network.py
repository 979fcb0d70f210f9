"""Mean-field Gaussians over the weights of a feed-forward network."""

import functools
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from posterity.arrays.tree import static
from posterity.arrays.typing import ArrayLike, Int, Real
from posterity.errors import StructureError
from posterity.families.coordinates import place
from posterity.families.diagonal_gaussian import DiagonalGaussian
from posterity.families.layers import Layers
from posterity.families.marginals import Names, Table
from posterity.families.names import batch, called


class Network(DiagonalGaussian):
    """Independent Gaussian weights of a network with known layers; an event is a flat vector.

    Hidden units are exchangeable: their order does not change the network's function. Unlike a
    :class:`DiagonalGaussian`, it can be fused with unlabelled units, and its file contains the
    layers.

    >>> layers = Layers.dense(2, 3, 1)
    >>> q = Network.from_standard(mean=np.zeros(13), variance=np.ones(13), layers=layers)
    >>> q.layers.widths
    (3,)
    """

    layers: Layers = static()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.layers, Layers) or self.own_size != self.layers.size:
            found = f"{self.own_size} weights for {self.layers}"
            raise StructureError(found=found, expected="Layers with as many weights")

    @classmethod
    def from_standard(cls, mean: ArrayLike, variance: ArrayLike, layers: Layers) -> Self:
        """Make a law from the mean and the variance, both (..., p), of flat weights."""
        parts = DiagonalGaussian.from_standard(mean, variance)
        return cls(parts.precision_mean, parts.precision, layers)

    @property
    def plain(self) -> Self:
        """The law of the weights without the last layers of the fused sites."""
        if not self.layers.sites:
            return self
        layers = self.layers.plain
        size = self.layers.plain.size
        return type(self)(self.precision_mean[..., :size], self.precision[..., :size], layers)

    @property
    def named_size(self) -> None:
        """None: weights have no names."""

    @property
    def network_layers(self) -> Layers:
        return self.layers

    def expected_moments(self) -> None:
        """Return None, as an event is not a record."""

    def _tables(self, names: Names, path: str, block: str) -> list[Table]:
        """Return no tables, as there is one row for each weight."""
        del names, path, block
        return []

    def _described(self, numbers: bool) -> str:
        del numbers
        return called(self, [self.layers.summary, *batch(self)])

    @classmethod
    def prior(cls, layers: Layers, variance: ArrayLike = 1.0) -> Self:
        """Return the law of weights with mean zero and one variance, or one for each layer."""
        each = np.broadcast_to(np.asarray(variance, float), len(layers))
        sizes = [sum(at.stop - at.start for at in own.values()) for own in layers.places]
        return cls.from_standard(np.zeros(layers.size), np.repeat(each, sizes), layers)

    def outline(self, *, plates: bool = True) -> Any:
        """Return the layers; with ``plates=False`` without the numbers of hidden units."""
        layers = self.layers if plates else self.layers.with_widths([1] * (len(self.layers) - 1))
        return (type(self), layers)

    def relabel(self, labels: Int[np.ndarray, " k"], size: int, axes: Sequence[int] = (0,)) -> Self:
        """Return a factor in which hidden unit ``k`` of the layers ``axes`` becomes ``labels[k]``.

        A unit is moved with its bias, incoming and outgoing weights. The natural parameters of
        units without a source are zero, which adds nothing.
        """

        def one(law, layer):
            return law._relabel_units(np.asarray(labels), size, int(layer))

        return functools.reduce(one, axes, self)

    def _relabel_units(self, labels: np.ndarray, size: int, layer: int) -> Self:
        widths = self.layers.widths
        if not 0 <= layer < len(widths) or widths[layer] != len(labels):
            raise StructureError(
                found=f"{len(labels)} labels for the units of layer {layer} of widths {widths}",
                expected="a label for each unit of one of the hidden layers",
            )
        other = self.layers.with_widths([*widths[:layer], size, *widths[layer + 1 :]])

        def moved(leaf: Real) -> Real:
            arrays = self.layers.unravel(leaf)
            batch = leaf.shape[:-1]
            for name, array in arrays[layer].items():
                arrays[layer][name] = place(array, labels, size, array.ndim - 1)
            after = arrays[layer + 1]["kernel"].reshape(*batch, *self.layers.by_unit(layer + 1))
            arrays[layer + 1]["kernel"] = place(after, labels, size, len(batch) + 1)
            pairs = zip(arrays, other.places, strict=True)
            flat = [own[name].reshape(*batch, -1) for own, names in pairs for name in names]
            return self.xp.np.concatenate(flat, axis=-1)

        return type(self)(moved(self.precision_mean), moved(self.precision), other)
