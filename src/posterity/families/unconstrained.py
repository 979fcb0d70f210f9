"""Events of a law as images of real arrays without bounds: what samplers by gradients move in.

A scale is positive and a probability between zero and one, but a gradient step knows no bounds.
So it is taken in ``u``, of which the event is a smooth function, and the density of ``u`` is the
event's times the Jacobian's determinant.
"""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from posterity.arrays.namespace import is_traced, namespace
from posterity.arrays.typing import Float, PyTree, Real
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families.distribution import Distribution, fitted
from posterity.families.supports import Continuous, Support, listed, map_supports


@dataclasses.dataclass(frozen=True, eq=False)
class Supports:
    """A tree of supports, and the smooth one-to-one map of real arrays ``u`` onto it.

    ``u`` is a tree like an event's, of arrays without bounds. Each may have leading axes, of
    chains or draws, before those of ``free_shape``; they broadcast. Written for NumPy and JAX
    alike; under JAX it can be compiled, differentiated and vectorised. Equal to another one of
    equal supports under the same names in the same order, and hashable.

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
        """The event ``z`` of ``u``.

        Raises:
            StructureError: if ``u`` has other parts or axes than ``free_shape``.
        """
        one = lambda support, part: support.forward(namespace(part), part)
        return map_supports(one, self.tree, self._checked(u))

    def inverse(self, z: PyTree) -> Any:
        """The ``u`` of an event.

        Raises:
            StructureError: if ``z`` has other parts or axes than an event.
            ParameterError: if an event is outside the support; of traced arrays, which nobody knows
                yet, it is NaN or an infinity there.
        """
        z = _floating(fitted(self.shape, z))
        map_supports(_check_inside, self.tree, z)
        return map_supports(lambda own, part: own.inverse(namespace(part), part), self.tree, z)

    def log_det(self, u: PyTree) -> Float[Real, "..."]:
        """``log |det dz/du|`` in nats, one number for each event.

        It is against the base measure that ``log_prob`` has, so that ``law.log_prob(forward(u)) +
        log_det(u)`` is the log density of ``u``.

        Raises:
            StructureError: as of :meth:`forward`.
        """
        terms: list[Real] = []
        for support, part in zip(listed(self.tree), listed(self._checked(u)), strict=True):
            slope, axes = support.log_slope(namespace(part), part), len(support.outer)
            terms.append(slope.sum(tuple(range(-axes, 0))) if axes else slope)
        return sum(terms[1:], start=terms[0])

    @property
    def size(self) -> int:
        """Numbers of one ``u``."""
        return sum(map(math.prod, listed(self.free_shape)))

    def ravel(self, u: PyTree) -> Float[Real, "... size"]:
        """All numbers of ``u`` on one axis, after the leading axes that its parts share."""
        flat: list[Real] = []
        for shape, part in zip(listed(self.free_shape), listed(self._checked(u)), strict=True):
            flat.append(part.reshape(*part.shape[: part.ndim - len(shape)], math.prod(shape)))
        return namespace(*flat).np.concatenate(flat, axis=-1)

    def unravel(self, flat: Float[Real, "... size"]) -> Any:
        """The ``u`` of so many numbers: the inverse of :meth:`ravel`."""
        if flat.shape[-1:] != (self.size,):
            raise StructureError(
                found=f"an array of shape {flat.shape}",
                expected=f"{self.size} numbers on its last axis",
                fix="Take it from ravel().",
            )
        ends = np.cumsum([0, *map(math.prod, listed(self.free_shape))]).tolist()
        pieces = (flat[..., start:end] for start, end in itertools.pairwise(ends))
        one = lambda shape: next(pieces).reshape((*flat.shape[:-1], *shape))
        return map_supports(one, self.free_shape)

    def _checked(self, u: PyTree) -> Any:
        return _floating(fitted(self.free_shape, u))


def unconstrained(law: Distribution) -> Supports:
    """The map of real arrays onto the events of a law, so that nothing bounds a gradient step.

    Numbers are as they are; positive ones are exponentials, those between zero and one logistic
    functions, probabilities broken off a stick such that ``u = 0`` is their centre, and positive
    definite matrices are products of Cholesky factors, of exponential diagonal. Products, plates
    and mixtures go part by part.

    Args:
        law: any distribution of the library, or of a user's own that has a ``support``; of a batch
            of laws, all of whose events are alike, for the events of each.

    Raises:
        UsageError: for a law over labels, or one that does not say where its events lie.

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
                expected="a law over numbers",
                fix="Sum the labels out of the likelihood and leave them out of the prior, or use "
                "an estimator without gradients: posterity.inference.Enumeration or Reinforce.",
            )
    return Supports(law.support)


def _floating(tree: PyTree) -> Any:
    """Whole numbers as floating point; all else as it is."""
    floats = lambda part: namespace(part).np.issubdtype(part.dtype, np.floating)
    return map_supports(lambda part: part if floats(part) else part.astype(float), tree)


def _frozen(tree: PyTree) -> Any:
    """A tree of supports as what can be hashed."""
    if isinstance(tree, dict):
        return tuple((name, _frozen(part)) for name, part in tree.items())
    return tuple(map(_frozen, tree)) if isinstance(tree, tuple) else tree


def _check_inside(support: Support, part: Real) -> None:
    if is_traced(part):
        return
    inside = np.asarray(support.holds(namespace(part), part))
    if not inside.all():
        at = [int(i) for i in np.argwhere(~inside)[0]]
        raise ParameterError(
            found=f"{'an event' if not at else f'event {at}'} that is "
            f"{np.array2string(np.asarray(part)[tuple(at)], threshold=9, precision=6)}",
            expected=support.name,
            fix="Take events that the law can have, such as its draws.",
        )
