"""Sets of possible events, and smooth one-to-one maps of real arrays onto them.

The support of a law is a tree shaped as an event (see ``Distribution.support``): arrays of
numbers, or of vectors and matrices on the last axes. Users can define further subclasses.

Source: stan2024, section "Constraint Transforms".
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np

from posterity.arrays.functions import Namespace
from posterity.arrays.linear_algebra import triangle
from posterity.arrays.typing import Bool, DTypeLike, Floats, PyTree, Real, Shape
from posterity.families.formulas import LOG_NORMAL, LOGIT_NORMAL, NORMAL, Formulas


@dataclasses.dataclass(frozen=True)
class Support(abc.ABC):
    """The set of arrays of ``shape`` whose entries, vectors or matrices are in one set."""

    shape: Shape = ()

    axes: ClassVar[int] = 0
    """Number of axes of one element: 0 for numbers, 1 for vectors, 2 for matrices."""
    name: ClassVar[str]
    """Name of the elements in the plural, for messages."""

    def copies(self, number: Shape) -> Self:
        """Return the support of arrays of events, with leading axes ``number``."""
        return dataclasses.replace(self, shape=(*number, *self.shape))

    @property
    def outer(self) -> Shape:
        """The axes before an element's own."""
        return self.shape[: len(self.shape) - self.axes]

    @abc.abstractmethod
    def holds(self, xp: Namespace, z: Real) -> Bool[Real, "..."]:
        """Tell whether each element of ``z`` (..., own axes) is in the set."""


class Continuous(Support):
    """A set with a smooth one-to-one map from real arrays.

    Authors write the maps for one element, with any leading axes. ``log_slope`` is the log
    determinant of the Jacobian, relative to the base measure of densities on the set.
    """

    normal_image: ClassVar[Formulas | None] = None
    """The law of the image of a normal number, if numbers are mapped separately."""

    @property
    def free(self) -> Shape:
        """The shape of the unconstrained array of one element; () for numbers."""
        return ()

    @abc.abstractmethod
    def forward(self, xp: Namespace, u: Floats) -> Floats:
        """Return ``z``, which is within the set also after rounding."""

    @abc.abstractmethod
    def inverse(self, xp: Namespace, z: Floats) -> Floats:
        """Return ``u``."""

    @abc.abstractmethod
    def log_slope(self, xp: Namespace, u: Floats) -> Floats:
        """Return ``log |det dz/du|`` of each element, in nats."""

    @property
    def free_shape(self) -> Shape:
        """The shape of the unconstrained array of an event."""
        return (*self.outer, *self.free)


class RealNumbers(Continuous):
    """The support of all numbers; the map is the identity."""

    name = "finite numbers"
    normal_image = NORMAL

    def holds(self, xp: Namespace, z: Real) -> Bool[Real, "..."]:
        return xp.np.isfinite(z)

    def forward(self, xp: Namespace, u: Floats) -> Floats:
        return u

    def inverse(self, xp: Namespace, z: Floats) -> Floats:
        return z

    def log_slope(self, xp: Namespace, u: Floats) -> Floats:
        return xp.np.zeros_like(u)


class PositiveNumbers(Continuous):
    """Positive numbers ``z = exp(u)``: equal steps of ``u`` are equal ratios at any scale.

    Softplus would be linear for large numbers, where steps that suit small scales are too short.
    """

    name = "positive numbers"
    normal_image = LOG_NORMAL

    def holds(self, xp: Namespace, z: Real) -> Bool[Real, "..."]:
        return xp.np.isfinite(z) & (z > 0)

    def forward(self, xp: Namespace, u: Floats) -> Floats:
        return xp.np.maximum(xp.np.exp(u), _smallest(xp, u.dtype))

    def inverse(self, xp: Namespace, z: Floats) -> Floats:
        return xp.np.log(z)

    def log_slope(self, xp: Namespace, u: Floats) -> Floats:
        return u


class UnitInterval(Continuous):
    """Numbers in (0, 1), ``z = 1 / (1 + exp(-u))``. Beyond ``u`` of 17 (float32) or 37 (float64),
    ``z`` is the largest floating-point number below one.
    """

    name = "numbers between zero and one"
    normal_image = LOGIT_NORMAL

    def holds(self, xp: Namespace, z: Real) -> Bool[Real, "..."]:
        return (z > 0) & (z < 1)

    def forward(self, xp: Namespace, u: Floats) -> Floats:
        below_one = 1 - xp.np.finfo(u.dtype).epsneg
        return xp.np.clip(xp.np.exp(_log_logistic(xp, u)), _smallest(xp, u.dtype), below_one)

    def inverse(self, xp: Namespace, z: Floats) -> Floats:
        return xp.np.log(z) - xp.np.log1p(-z)

    def log_slope(self, xp: Namespace, u: Floats) -> Floats:
        return _log_logistic(xp, u) + _log_logistic(xp, -u)


class Simplex(Continuous):
    """Vectors of ``K`` positive numbers that sum to one, by breaking a stick ``K - 1`` times.

    Entry ``k`` takes the share ``1 / (1 + exp(-u_k + log(K - k)))`` of the remainder, so that ``u =
    0`` is the centre. Logarithms and sums over later entries keep small entries accurate. The base
    measure is Lebesgue's on the first ``K - 1`` entries.
    """

    axes = 1
    name = "vectors of positive numbers that sum to one"

    @property
    def free(self) -> Shape:
        return (self.shape[-1] - 1,)

    def holds(self, xp: Namespace, z: Real) -> Bool[Real, "..."]:
        rounding = z.shape[-1] * 8 * xp.np.finfo(z.dtype).eps
        return (z > 0).all(-1) & (abs(z.sum(-1) - 1) <= rounding)

    def forward(self, xp: Namespace, u: Floats) -> Floats:
        """Return the entries, by shares of the remainder."""
        taken, left = self._logs(xp, u)
        zero = xp.np.zeros((*u.shape[:-1], 1), u.dtype)
        remaining = xp.np.concatenate([zero, xp.np.cumsum(left, axis=-1)], axis=-1)
        z = xp.np.exp(remaining + xp.np.concatenate([taken, zero], axis=-1))
        return xp.np.maximum(z, _smallest(xp, u.dtype))

    def inverse(self, xp: Namespace, z: Floats) -> Floats:
        """Return the logits of the shares."""
        # Later entries are summed from the end, as one minus the earlier ones loses digits.
        later = xp.np.cumsum(z[..., :0:-1], axis=-1)[..., ::-1]
        return xp.np.log(z[..., :-1]) - xp.np.log(later) + self._centre(z.dtype)

    def log_slope(self, xp: Namespace, u: Floats) -> Floats:
        """Return the sum of ``log z_k + log(1 - share_k)``, without the last entry."""
        taken, left = self._logs(xp, u)
        # The k-th share is of what the ones before have left.
        return (taken + left * np.arange(u.shape[-1], 0, -1).astype(u.dtype)).sum(-1)

    def _logs(self, xp: Namespace, u: Real) -> tuple[Real, Real]:
        """Return logarithms of the share that each entry takes, and of the remainder."""
        logits = u - self._centre(u.dtype)
        return _log_logistic(xp, logits), _log_logistic(xp, -logits)

    def _centre(self, dtype: DTypeLike) -> np.ndarray:
        """Return logarithms of the numbers of later entries, at each break of the stick."""
        return np.log(np.arange(self.shape[-1] - 1, 0, -1)).astype(dtype)


class PositiveDefiniteMatrices(Continuous):
    """Positive definite ``d x d`` matrices ``E N Nᵀ E``, with Cholesky factor ``E N``.

    ``E`` is ``diag(exp(u_i))`` and ``N`` unit lower triangular. ``u`` (d(d+1)/2) holds the
    logarithms ``u_i`` of the factor's diagonal, then the entries of ``N`` below its diagonal, row
    by row. Scaling whole rows makes ``N`` independent of units; plain entries of size one next to
    a diagonal of ``exp(-20)`` would be numerically singular. The base measure is Lebesgue's on the
    upper triangle.
    """

    axes = 2
    name = "symmetric positive definite matrices"

    @property
    def free(self) -> Shape:
        return (triangle(self.shape[-1]),)

    def holds(self, xp: Namespace, z: Real) -> Bool[Real, "..."]:
        """Tell whether each is symmetric up to rounding and has a Cholesky factor."""
        mirrored = xp.np.swapaxes(z, -1, -2)
        size = xp.np.sqrt(abs(xp.np.diagonal(z, axis1=-2, axis2=-1)))
        scale = size[..., :, None] * size[..., None, :]
        rounding = 64 * z.shape[-1] * xp.np.finfo(z.dtype).eps
        even = (abs(z - mirrored) <= rounding * scale).all((-2, -1))
        return even & xp.np.isfinite(xp.cholesky(z)).all((-2, -1))

    def forward(self, xp: Namespace, u: Floats) -> Floats:
        size = self.shape[-1]
        np_ = xp.np
        ends = np_.zeros_like(u[..., :1]), np_.ones_like(u[..., :1])
        unit = np_.concatenate([u[..., size:], *ends], axis=-1)[..., _places(size)[-1]]
        factor = np_.exp(u[..., :size])[..., :, None] * unit
        return factor @ np_.swapaxes(factor, -1, -2)

    def inverse(self, xp: Namespace, z: Floats) -> Floats:
        factor, (rows, columns, _) = xp.cholesky(z), _places(self.shape[-1])
        diagonal = xp.np.diagonal(factor, axis1=-2, axis2=-1)
        below = (factor / diagonal[..., :, None])[..., rows, columns]
        return xp.np.concatenate([xp.np.log(diagonal), below], axis=-1)

    def log_slope(self, xp: Namespace, u: Floats) -> Floats:
        """Return ``d log 2 + (d + 1) Σ u_i``."""
        size = self.shape[-1]
        return (size + 1) * u[..., :size].sum(-1) + size * math.log(2)


@dataclasses.dataclass(frozen=True)
class Labels(Support):
    """The whole numbers ``0 .. count - 1``, without a map from real arrays."""

    count: int = 0
    name = "labels"

    def holds(self, xp: Namespace, z: Real) -> Bool[Real, "..."]:
        return (z >= 0) & (z < self.count) & (z == xp.np.floor(z))


def map_supports(function: Callable[..., Any], tree: PyTree, *others: Any) -> Any:
    """Map ``function`` over the leaves of a tree and the corresponding leaves of other trees.

    Leaves are supports, shapes, or arrays; branches are dictionaries, and tuples that are not of
    numbers. None is mapped to None.
    """
    if tree is None:
        return None
    if isinstance(tree, dict):
        if any(set(other) != set(tree) for other in others):
            raise ValueError(f"trees of other names than {list(tree)}")
        rows = {name: (tree[name], *(other[name] for other in others)) for name in tree}
        return {name: map_supports(function, *row) for name, row in rows.items()}
    if isinstance(tree, tuple) and not all(isinstance(axis, int) for axis in tree):
        return tuple(map_supports(function, *row) for row in zip(tree, *others, strict=True))
    return function(tree, *others)


def listed(tree: PyTree) -> list[Any]:
    """Return the leaves of such a tree, in their order."""
    result: list[Any] = []
    map_supports(result.append, tree)
    return result


def _smallest(xp: Namespace, dtype: DTypeLike) -> Any:
    """Return a positive number (1e-31 in float32, 1e-292 in float64) whose inverse does not
    overflow, as gradients of logarithms of smaller ones would.
    """
    limits = xp.np.finfo(dtype)
    return limits.tiny / limits.eps


def _log_logistic(xp: Namespace, u: Real) -> Real:
    """Return ``-log(1 + exp(-u))``."""
    return -xp.np.logaddexp(xp.np.zeros((), u.dtype), -u)


@functools.cache
def _places(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows and columns of the entries below a diagonal, and each entry's index among these;
    the zero above the diagonal and the one on it come last.
    """
    rows, columns = (index.astype(np.int32) for index in np.tril_indices(size, -1))
    entries = np.full((size, size), len(rows), np.int32)
    entries[rows, columns] = np.arange(len(rows))
    np.fill_diagonal(entries, len(rows) + 1)
    return rows, columns, entries
