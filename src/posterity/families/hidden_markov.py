"""Posteriors of hidden Markov models with unlabelled states."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from posterity.arguments import POSITIVE, Constraint
from posterity.arrays.typing import Float, Int, Real
from posterity.errors import ParameterError, StructureError
from posterity.families.base import ExponentialFamily
from posterity.families.composite import Product
from posterity.families.dirichlet import Dirichlet
from posterity.families.distribution import Members
from posterity.families.emitting import check_exchangeable
from posterity.families.marginals import Names, Table, numbered
from posterity.families.plate import Plate
from posterity.families.vector_space import stack

SHARED = {"emissions": (0,), "initial": (0,), "transitions": (0, 1)}
"""Axes of the states in each block, counted after those of the batch."""
FIX = "Concentrations count observations; 1 is as good as one."
CONCENTRATION = dataclasses.replace(POSITIVE, error=ParameterError, fix=FIX)
STAY = Constraint("zero or more", lambda x: POSITIVE.allows(x) or x == 0, ParameterError, FIX)


class HiddenMarkov(Product):
    """A posterior of emissions, initial probabilities and transitions of ``K`` states.

    Blocks are independent: ``emissions``, a :class:`Plate` of ``K`` members without weights
    (:class:`NormalWishart` or :class:`NormalGamma` for vectors, :class:`Dirichlet` for symbols);
    ``initial``, a :class:`Dirichlet` over states; and ``transitions``, a :class:`Plate` of ``K``
    Dirichlets, whose row ``k`` is for moves from state ``k``. Labels of states are arbitrary: rows,
    columns, initial probabilities and emissions are relabelled together.

    Source: beal2003, chapter 3.

    >>> from posterity.families import NormalWishart
    >>> one = NormalWishart.from_standard(np.zeros(1), 1.0, np.eye(1), 3.0)
    >>> prior = HiddenMarkov.prior(one, states=3, concentration=1.0, stay=10.0)
    >>> prior.transitions.members.concentration[0].round(2)
    array([10.33,  0.33,  0.33])
    """

    concentrations: ClassVar[int] = 3
    """The number of entries of :meth:`spread`."""
    is_tied = True

    def __init__(
        self, blocks: Mapping[str, ExponentialFamily] | None = None, **named: ExponentialFamily
    ):
        """Make a law from a mapping with the three blocks, or keyword arguments."""
        super().__init__(blocks or {}, **named)
        own: Any = self.blocks

        def plain(law):
            return isinstance(law, Plate) and law.weights is None

        sizes = set()
        if tuple(own) == tuple(SHARED) and plain(own["emissions"]) and plain(own["transitions"]):
            start = own["initial"]
            rows = own["transitions"].members
            if isinstance(start, Dirichlet) and isinstance(rows, Dirichlet):
                sizes = {own["emissions"].size, start.own_size, rows.batch_shape[-1], rows.own_size}
        if len(sizes) != 1:
            raise StructureError(
                found=f"blocks {dict(own)!r}",
                expected="plates without weights, and a Dirichlet as initial, of as many states",
            )

    @classmethod
    def prior(
        cls,
        emission: ExponentialFamily,
        *,
        states: int,
        concentration: float | int = 1.0,
        stay: float | int = 0.0,
        initial: float | int = 1.0,
    ) -> Self:
        """Return a prior with exchangeable states.

        Args:
            emission: prior of the emissions of one state.
            states: number of states.
            concentration: total concentration of each row of transitions.
            stay: additional concentration of self-transitions ("sticky", fox2011).
            initial: total concentration of the initial probabilities.

        Raises:
            ParameterError: for concentrations that are not positive, or ``stay`` below zero.
        """
        CONCENTRATION.check(concentration=concentration, initial=initial)
        STAY.check(stay=stay)
        if states < 1 or emission.batch_shape:
            raise StructureError(
                found=f"{states} states, and an emission of batch shape {emission.batch_shape}",
                expected="at least one state, and the emission of one",
            )
        spread = np.array([concentration, stay, initial], float)
        return cls.exchangeable(emission, spread, int(states))

    @property
    def states(self) -> int:
        """The number of states ``K``."""
        return self.blocks["initial"].own_size

    def exchangeable_members(self) -> Members:
        """Return the states, weighted by their shares of time steps including prior counts."""
        spent = self.occupancy()
        weights = spent / max(spent.sum(), np.finfo(float).tiny)
        emissions: Any = self.blocks["emissions"]
        return Members("state", emissions.members, "emissions/members", "emissions", weights)

    def _tables(self, names: Names, path: str, block: str) -> list[Table]:
        if not path:
            states = names.get("emissions") or numbered(self.states)
            names = {**dict.fromkeys((*SHARED, "transitions/members"), states), **names}
        return super()._tables(names, path, block)

    def outline(self, *, plates: bool = True) -> Any:
        """Return the blocks' outlines; with ``plates=False`` only the emissions', without ``K``."""
        if plates:
            return super().outline()
        return (type(self), self.blocks["emissions"].outline(plates=False))

    def occupancy(self, prior: Self | None = None) -> Float[np.ndarray, "*batch k"]:
        """Return the expected number of time steps in each state, the sum of a column of initial
        and transition counts; with the prior's counts if ``prior`` is None.
        """
        result = self._visits() - (0.0 if prior is None else prior._visits())
        return np.maximum(result, 0.0)  # negative by rounding, or if a site withdrew data

    def _visits(self) -> Float[np.ndarray, "*batch k"]:
        start, rows = self._concentrations()
        return start + rows.sum(-2)

    def _concentrations(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the concentrations of initial probabilities and of rows of transitions."""
        own: Any = self.blocks
        rows = own["transitions"].members.concentration
        return np.asarray(own["initial"].concentration), np.asarray(rows)

    # --- labels ----------------------------------------------------------------------------------

    def independent_blocks(self) -> Mapping[str, ExponentialFamily]:
        """Return no blocks, as they share labels."""
        return {}

    def relabel(self, labels: Int[np.ndarray, " k"], size: int, axes: Sequence[int] = (0,)) -> Self:
        """Return a factor whose label ``k`` becomes ``labels[k]``, in all blocks.

        Axes are those of the batch, then that of the labels. Entries with label -1 are left out;
        entries with the same label are summed.

        Raises:
            StructureError: for axes within single blocks, or labels out of range.
        """
        batch = len(self.batch_shape)
        if set(axes) - set(range(batch + 1)):
            raise StructureError(
                found=f"axes={axes} for a {type(self).__name__}",
                expected=f"the {batch} axes of the batch, then {batch}, that of the labels",
            )
        blocks = dict(self.blocks)
        labels = np.asarray(labels)
        for axis in axes:
            for name, own in SHARED.items():
                if axis < batch:
                    blocks[name] = blocks[name].relabel(labels, size, (axis,))
                for place in own if axis == batch else ():
                    blocks[name] = blocks[name].relabel(labels, size, (axis + place,))
        return self.rebuild([blocks[name] for name in self.blocks])

    def as_plate(self, prior: Self | None = None) -> Plate:
        """Return the plate of emissions with Dirichlet weights of the states' time steps; without a
        prior, its concentrations include the prior's.
        """
        total = 0.0 if prior is None else float(np.sum(prior._concentrations()[0]))
        counts = self.occupancy(prior) + total / self.states
        return Plate(self.blocks["emissions"].members, Dirichlet(counts - 1))  # pyright: ignore

    def contribution(self, prior: Self | None) -> Self:
        """Return posterior less prior; if the prior is unknown, concentrations are taken as counts
        and emissions are unchanged.
        """
        if prior is not None:
            return self - prior
        start, rows = map(Dirichlet, self._concentrations())
        return type(self)(self.blocks, initial=start, transitions=Plate(rows))

    def with_members(self, members: ExponentialFamily) -> Self:
        """Return the law with other emissions."""
        return type(self)(self.blocks, emissions=Plate(members))

    def spread(self) -> Float[np.ndarray, "3"]:
        """Return the concentrations of a row, of staying in addition, and of initial probabilities.

        For one state the first is the sum of both, and the second is NaN.
        """
        start, rows = self._concentrations()
        own = np.eye(len(start), dtype=bool)
        off = rows[~own] if len(start) > 1 else rows[own]
        stays = rows[own] - off[0]

        def fair(values):
            return np.allclose(values, values[0], rtol=1e-9, atol=0.0)

        check_exchangeable(fair(off) and fair(rows[own]) and fair(start), self)
        stay = stays[0] if len(start) > 1 else np.nan
        return np.array([off[0] * len(start), stay, start.sum()])

    @classmethod
    def exchangeable(
        cls, member: ExponentialFamily, spread: Float[np.ndarray, "3"], labels: int
    ) -> Self:
        """Return the law of one emission for all states and equal shares of the concentrations."""
        total, stay, initial = (float(value) for value in np.nan_to_num(spread))
        rows = np.full((labels, labels), total / labels) + stay * np.eye(labels)
        return cls(
            emissions=Plate(stack([member] * labels)),
            initial=Dirichlet(np.full(labels, initial / labels) - 1),
            transitions=Plate(Dirichlet(rows - 1)),
        )

    # --- expectations ----------------------------------------------------------------------------

    @property
    def expected_transitions(self) -> Float[Real, "*batch k k"]:
        """Mean transition probabilities, from rows to columns."""
        return self.blocks["transitions"].members.mean  # pyright: ignore

    @property
    def expected_initial(self) -> Float[Real, "*batch k"]:
        """Mean initial probabilities."""
        return self.blocks["initial"].mean  # pyright: ignore
