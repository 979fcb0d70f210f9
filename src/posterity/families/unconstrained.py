"""Maps from unconstrained real arrays to the events of a law, and laws of such images.

Scales are positive and probabilities between zero and one, but gradient steps are unconstrained.
They are taken in ``u``, of which the event is a smooth function; the density of ``u`` is the
event's times the Jacobian determinant.
"""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from posterity.arrays.namespace import is_traced, namespace
from posterity.arrays.typing import Float, Floats, PyTree, Real
from posterity.errors import UsageError
from posterity.families.coordinates import check_inside
from posterity.families.distribution import Distribution, fitted
from posterity.families.supports import (
    Continuous,
    Support,
    listed,
    map_supports,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Supports:
    """A tree of supports, with the smooth one-to-one map from real arrays ``u`` to events.

    ``u`` is a tree shaped as an event, of unconstrained arrays. Each may have leading axes, such as
    chains or draws, before those of ``free_shape``; they broadcast. It works with NumPy and JAX,
    and can be compiled, differentiated and vectorised. It is hashable, and equal to another one
    with equal supports under the same names in the same order.

    Source: stan2024, section "Constraint Transforms".
    """

    tree: Any
    """Dictionaries and tuples of :class:`posterity.families.supports.Support`."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Supports) and _frozen(self.tree) == _frozen(other.tree)

    def __hash__(self) -> int:
        return hash(_frozen(self.tree))

    @property
    def shape(self) -> Any:
        """The shapes of an event."""
        return map_supports(lambda support: support.shape, self.tree)

    @property
    def free_shape(self) -> Any:
        """The shapes of ``u``: a tree of tuples, as ``event_shape`` is one of events."""
        return map_supports(lambda support: support.free_shape, self.tree)

    def forward(self, u: PyTree) -> Any:
        """Return the event ``z`` of ``u``; a StructureError if the parts or axes of ``u`` differ
        from ``free_shape``.
        """

        def one(support, part):
            return support.forward(namespace(part), part)

        return map_supports(one, self.tree, self._checked(u))

    def inverse(self, z: PyTree) -> Any:
        """Return the ``u`` of an event.

        Raises:
            StructureError: if ``z`` has other parts or axes than an event.
            ParameterError: if an event is outside the support; for traced arrays the result is
                NaN or infinite instead.
        """

        def one(support: Continuous, part: Real) -> Real:
            _check_inside(support, part)
            return support.inverse(namespace(part), part)

        return map_supports(one, self.tree, _floating(fitted(self.shape, z)))

    def log_det(self, u: PyTree) -> Floats:
        """Return ``log |det dz/du|`` in nats for each event, so that ``law.log_prob(forward(u)) +
        log_det(u)`` is the log density of ``u``; a StructureError as of :meth:`forward`.
        """
        terms: list[Real] = []
        for support, part in zip(listed(self.tree), listed(self._checked(u)), strict=True):
            slope = support.log_slope(namespace(part), part)
            axes = len(support.outer)
            terms.append(slope.sum(tuple(range(-axes, 0))) if axes else slope)
        return sum(terms[1:], start=terms[0])

    @property
    def size(self) -> int:
        """The number of unconstrained coordinates of an event."""
        return sum(map(math.prod, listed(self.free_shape)))

    def ravel(self, u: PyTree) -> Float[Real, "... size"]:
        """Return the coordinates of ``u`` on one axis, after the leading axes of its parts."""
        flat: list[Real] = []
        for shape, part in zip(listed(self.free_shape), listed(self._checked(u)), strict=True):
            flat.append(part.reshape(*part.shape[: part.ndim - len(shape)], math.prod(shape)))
        return namespace(*flat).np.concatenate(flat, axis=-1)

    def unravel(self, flat: Float[Real, "... size"]) -> Any:
        """Return ``u`` from flat coordinates; the inverse of :meth:`ravel`."""
        ends = np.cumsum([0, *map(math.prod, listed(self.free_shape))]).tolist()
        pieces = (flat[..., start:end] for start, end in itertools.pairwise(ends))

        def one(shape):
            return next(pieces).reshape((*flat.shape[:-1], *shape))

        return map_supports(one, self.free_shape)

    def _checked(self, u: PyTree) -> Any:
        return _floating(fitted(self.free_shape, u))


def unconstrained(law: Distribution) -> Supports:
    """Return the map from real arrays to the events of a law, for unconstrained gradient steps.

    Real numbers are unchanged, positive numbers are exponentials, and numbers between zero and one
    logistic functions. Probabilities are by stick breaking with ``u = 0`` at the centre, and
    positive definite matrices by Cholesky factors with exponential diagonals. Products, plates and
    mixtures are mapped part by part.

    Args:
        law: distribution, or batch of distributions, with a ``support``; for a batch, the map is
            for the events of each member.

    Raises:
        UsageError: for a law over labels, or without a support.

    >>> from posterity.families import Gamma
    >>> noise = Gamma.from_standard(shape=2.0, rate=1.0)
    >>> map_ = unconstrained(noise)
    >>> z = map_.forward(np.array(0.0))
    >>> float(z), float(noise.log_prob(z) + map_.log_det(np.array(0.0)))
    (1.0, -1.0)
    """
    for support in listed(law.support):
        if not isinstance(support, Continuous):
            raise UsageError(
                found=f"{support.name} among the events of {law!r}, which have no gradient",
                expected="a law over numbers: sum labels out, or posterity.inference.Enumeration",
            )
    return Supports(law.support)


def _floating(tree: PyTree) -> Any:
    """Convert integers to floating point."""

    def floats(part):
        return namespace(part).np.issubdtype(part.dtype, np.floating)

    return map_supports(lambda part: part if floats(part) else part.astype(float), tree)


def _frozen(tree: PyTree) -> Any:
    if isinstance(tree, dict):
        return tuple((name, _frozen(part)) for name, part in tree.items())
    return tuple(map(_frozen, tree)) if isinstance(tree, tuple) else tree


def _check_inside(support: Support, part: Real) -> None:
    if not is_traced(part):
        inside = support.holds(namespace(part), part)
        check_inside(inside, np.asarray(part), "an event", support.name)
