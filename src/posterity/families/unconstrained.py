"""Events of a law as images of real arrays without bounds: what samplers by gradients move in.

A scale is positive and a probability between zero and one, but a gradient step knows no bounds.
So it is taken in ``u``, of which the event is a smooth function, and the density of ``u`` is the
event's times the Jacobian's determinant.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from posterity.arrays.namespace import is_traced, namespace
from posterity.arrays.tree import leaves
from posterity.arrays.typing import Float, Real
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families.distribution import Distribution, fitted
from posterity.families.supports import Continuous, Support, map_supports


@dataclasses.dataclass(frozen=True, eq=False)
class Bijection:
    """A smooth one-to-one map of real arrays ``u`` onto a support; made by :func:`unconstrained`.

    ``u`` is a tree like an event's, of arrays without bounds. Each may have leading axes, of
    chains or draws, before those of ``free_shape``; they broadcast. Written for NumPy and JAX
    alike; under JAX it can be compiled, differentiated and vectorised.

    Source: stan2024, section "Constraint Transforms".
    """

    support: Any
    """A tree of :class:`posterity.families.supports.Support`."""

    @property
    def free_shape(self) -> Any:
        """The shapes of ``u``: a tree of tuples, as ``event_shape`` is one of events."""
        return map_supports(lambda support: support.free_shape, self.support)

    def forward(self, u: Any) -> Any:
        """The event ``z`` of ``u``.

        Raises:
            StructureError: if ``u`` has other parts or axes than ``free_shape``.
        """
        return map_supports(
            lambda support, part: support.forward(namespace(part), part),
            self.support,
            self._checked(u),
        )

    def inverse(self, z: Any) -> Any:
        """The ``u`` of an event.

        Raises:
            StructureError: if ``z`` has other parts or axes than an event.
            ParameterError: if an event is outside the support; of traced arrays, which nobody knows
                yet, it is NaN or an infinity there.
        """
        shape = map_supports(lambda support: support.shape, self.support)
        z = _arrays(z, shape, "events")
        map_supports(_check_inside, self.support, z)
        return map_supports(
            lambda support, part: support.inverse(namespace(part), part), self.support, z
        )

    def log_det(self, u: Any) -> Float[Real, "..."]:
        """``log |det dz/du|`` in nats, one number for each event.

        It is against the base measure that ``log_prob`` has, so that ``law.log_prob(forward(u)) +
        log_det(u)`` is the log density of ``u``.

        Raises:
            StructureError: as of :meth:`forward`.
        """
        total: list[Real] = []

        def one(support: Continuous, part: Real) -> None:
            slope, axes = support.log_slope(namespace(part), part), len(support.outer)
            total.append(slope.sum(tuple(range(-axes, 0))) if axes else slope)

        map_supports(one, self.support, self._checked(u))
        return sum(total[1:], start=total[0])

    @property
    def size(self) -> int:
        """Numbers of one ``u``."""
        return sum(math.prod(shape) for shape in _shapes(self.free_shape))

    def ravel(self, u: Any) -> Float[Real, "... size"]:
        """All numbers of ``u`` on one axis, after the leading axes that its parts share."""
        parts: list[Real] = []

        def one(support: Continuous, part: Real) -> None:
            shape = np.shape(part)
            leading = shape[: len(shape) - len(support.free_shape)]
            parts.append(part.reshape(*leading, math.prod(support.free_shape)))

        map_supports(one, self.support, self._checked(u))
        return namespace(*parts).np.concatenate(parts, axis=-1)

    def unravel(self, flat: Float[Real, "... size"]) -> Any:
        """The ``u`` of so many numbers: the inverse of :meth:`ravel`."""
        if flat.shape[-1:] != (self.size,):
            raise StructureError(
                found=f"an array of shape {flat.shape}",
                expected=f"{self.size} numbers on its last axis",
                fix="Take it from ravel().",
            )
        taken = [0]

        def one(support: Continuous) -> Real:
            begin = taken[0]
            taken[0] = begin + math.prod(support.free_shape)
            return flat[..., begin : taken[0]].reshape(*flat.shape[:-1], *support.free_shape)

        return map_supports(one, self.support)

    def _checked(self, u: Any) -> Any:
        return _arrays(u, self.free_shape, "real arrays")


def unconstrained(law: Distribution) -> Bijection:
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
    support = law.support
    map_supports(lambda own: _check_continuous(own, law), support)
    return Bijection(support)


def _shapes(tree: Any) -> list[tuple[int, ...]]:
    """The shapes in a tree of them."""
    if isinstance(tree, dict):
        return [shape for part in tree.values() for shape in _shapes(part)]
    if any(not isinstance(axis, int) for axis in tree or ()):
        return [shape for part in tree for shape in _shapes(part)]
    return [] if tree is None else [tree]


def _check_continuous(support: Support, law: Distribution) -> None:
    if not isinstance(support, Continuous):
        raise UsageError(
            found=f"{support.name} among the events of {law!r}, which have no gradient",
            expected="a law over numbers",
            fix="Sum the labels out of the likelihood and leave them out of the prior, or use an "
            "estimator without gradients: posterity.inference.Enumeration or Reinforce.",
        )


def _arrays(values: Any, shape: Any, what: str) -> Any:
    """The values as arrays of floating point; a StructureError unless they are of this shape."""
    found, batches = fitted(shape, values)
    try:
        together = None if batches is None else np.broadcast_shapes(*batches)
    except ValueError:
        together = None
    if together is None:
        raise StructureError(
            found=f"{what} of shapes {[np.shape(leaf) for leaf in leaves(values)]}",
            expected=f"the shapes {shape}, after leading axes that broadcast",
            fix="Put the axes of one event last; name parts as events do.",
        )
    return _floating(found)


def _floating(tree: Any) -> Any:
    """Whole numbers as floating point; all else as it is."""
    if isinstance(tree, dict):
        return {name: _floating(part) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_floating(part) for part in tree)
    if tree is None or namespace(tree).np.issubdtype(tree.dtype, np.floating):
        return tree
    return tree.astype(float)


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
