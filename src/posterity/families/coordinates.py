"""Kinds of parameters: the shape of their own axes, and the domain of their values."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from posterity.arrays.functions import Namespace
from posterity.arrays.leaves import as_leaves, frozen
from posterity.arrays.linear_algebra import half_vectorize, symmetric, triangle, unhalf_vectorize
from posterity.arrays.namespace import is_traced, namespace
from posterity.arrays.typing import Bool, Int, Real, Shape
from posterity.errors import ParameterError, StructureError


@dataclasses.dataclass(frozen=True)
class Domain:
    """Finite numbers above a bound, which may depend on the size ``d`` of the member."""

    name: str
    above: float | Callable[[int], float] = -np.inf

    def bound(self, size: int) -> float:
        """Return the lower bound for members of a size."""
        return float(self.above(size)) if callable(self.above) else self.above

    def contains(self, xp: Namespace, leaf: Real, axes: int, size: int) -> Bool[Real, "*batch"]:
        """Return True for members whose entries along their own ``axes`` are all in the domain."""
        inside = xp.np.isfinite(leaf) & (leaf > self.bound(size))
        return inside.all(tuple(range(-axes, 0))) if axes else inside


class _PositiveDefinite(Domain):
    def contains(self, xp: Namespace, leaf: Real, axes: int, size: int) -> Bool[Real, "*batch"]:
        return xp.np.isfinite(xp.cholesky(leaf)).all((-2, -1))


REAL = Domain("finite")
POSITIVE = Domain("positive", above=0.0)
ABOVE_MINUS_ONE = Domain("above -1", above=-1.0)
POSITIVE_DEFINITE = _PositiveDefinite("positive definite")


@dataclasses.dataclass(frozen=True)
class Coordinate:
    """One array of parameters.

    ``axes`` counts a member's own axes, after those of the batch: 0 for a number, 1 for a vector of
    length ``d``, 2 for a symmetric ``d x d`` matrix.
    """

    axes: int
    domain: Domain = REAL

    def shape(self, size: int) -> Shape:
        """Return the shape of a member's own axes."""
        return (size,) * self.axes

    def length(self, size: int) -> int:
        """Return the number of entries in a flat vector."""
        return triangle(size) if self.axes == 2 else size**self.axes

    def to_columns(self, leaf: Real) -> Real:
        """Flatten (..., own axes) to (..., length), preserving inner products."""
        if self.axes == 0:
            return leaf[..., None]
        return half_vectorize(leaf) if self.axes == 2 else leaf

    def from_columns(self, columns: Real, size: int) -> Real:
        """Return the array of a flat vector; the inverse of :meth:`to_columns`."""
        if self.axes == 0:
            return columns[..., 0]
        return unhalf_vectorize(columns, size) if self.axes == 2 else columns


def scalar(domain: Domain = REAL) -> Coordinate:
    """Return the coordinate of a single number."""
    return Coordinate(0, domain)


def vector(domain: Domain = REAL) -> Coordinate:
    """Return the coordinate of a vector of length ``d``."""
    return Coordinate(1, domain)


def matrix(domain: Domain = REAL) -> Coordinate:
    """Return the coordinate of a symmetric ``d x d`` matrix."""
    return Coordinate(2, domain)


Coordinates = Mapping[str, Coordinate]


def checked(coordinates: Coordinates, values: Mapping[str, Any], owner: str) -> dict[str, Real]:
    """Return ``values`` as arrays of one size and one batch shape, each within its domain.

    Batches are broadcast. Traced values are not checked.

    Raises:
        StructureError: if own axes, sizes or batches do not fit together.
        ParameterError: for NaN, infinities, complex numbers, asymmetric matrices, and values
            outside the domain.
    """
    leaves = as_leaves({name: values[name] for name in coordinates})
    size = common_size(coordinates, leaves, owner)
    for name, coordinate in coordinates.items():
        if not is_traced(leaves[name]):
            leaves[name] = symmetrized(leaves[name], coordinate, f"{name} of a {owner}")
            _check_domain(leaves[name], coordinate, size, f"{name} of a {owner}")
    shapes = {name: np.shape(leaf) for name, leaf in leaves.items()}
    try:
        batch = np.broadcast_shapes(*(s[: len(s) - coordinates[n].axes] for n, s in shapes.items()))
    except ValueError:
        raise _misfit(leaves, owner) from None
    for name, leaf in leaves.items():
        full = batch + coordinates[name].shape(size)
        if shapes[name] != full:
            leaves[name] = namespace(leaf).np.broadcast_to(leaf, full)
    return leaves


def common_size(coordinates: Coordinates, leaves: Mapping[str, Real], owner: str) -> int:
    """Return the size ``d`` that all vectors and matrices share; 1 if there are none."""
    sizes = set()
    for name, coordinate in coordinates.items():
        shape = np.shape(leaves[name])
        sizes.update(shape[len(shape) - coordinate.axes :])
        if len(shape) < coordinate.axes or len(sizes) > 1 or 0 in sizes:
            raise _misfit(leaves, owner)
    return sizes.pop() if sizes else 1


def common_batch(coordinates: Coordinates, leaves: Mapping[str, Real], owner: str) -> tuple:
    """Return the batch shape that all leaves share, without broadcasting."""
    batches = {np.shape(leaf)[: np.ndim(leaf) - coordinates[n].axes] for n, leaf in leaves.items()}
    if len(batches) > 1:
        raise _misfit(leaves, owner)
    return batches.pop()


def symmetrized(leaf: Real, coordinate: Coordinate, place: str) -> Real:
    """Return a matrix without the asymmetry that rounding leaves; refuse larger asymmetry.

    Rounding may leave a millionth (a few thousandths in float32) of an entry, or of the geometric
    mean of its two diagonal entries, as in the inverse of an ill-conditioned matrix.
    """
    if coordinate.axes != 2 or is_traced(leaf):
        return leaf
    values = np.asarray(leaf)
    mirrored = np.swapaxes(values, -1, -2)
    if np.array_equal(values, mirrored):
        return leaf
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(values - mirrored)
        diagonal = np.sqrt(np.abs(np.diagonal(values, axis1=-2, axis2=-1)))
        scale = np.maximum(np.abs(values), diagonal[..., :, None] * diagonal[..., None, :])
        wrong = gap > np.finfo(values.dtype).eps ** 0.375 * scale
    if wrong.any():
        raise ParameterError(
            found=f"an asymmetric {place}, by up to {gap[wrong].max():.3g}",
            expected="a symmetric matrix, or (m + m.T) / 2 if only rounding differs",
        )
    np_ = namespace(leaf).np
    return frozen(np_.where(np_.isfinite(gap), symmetric(leaf), leaf))


def _check_domain(leaf: Real, coordinate: Coordinate, size: int, place: str) -> None:
    values = np.asarray(leaf)
    if coordinate.domain is POSITIVE_DEFINITE:
        # Pivots of correlations: whether a matrix is singular does not depend on units.
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            sd = np.sqrt(np.diagonal(values, axis1=-2, axis2=-1))
            factors = namespace(values).cholesky(values / sd[..., :, None] / sd[..., None, :])
        pivots = np.diagonal(factors, axis1=-2, axis2=-1) ** 2
        good = (pivots > size * np.finfo(values.dtype).eps).all(-1)
    else:
        good = coordinate.domain.contains(namespace(values), values, coordinate.axes, size)
    kind = coordinate.domain.name
    expected = f"{kind} numbers" if coordinate.axes < 2 else f"a finite, {kind} matrix"
    check_inside(good, values, place, expected)


def check_inside(good: Any, values: np.ndarray, place: str, expected: str) -> None:
    """Raise a ParameterError that shows the first of the values that is not ``good``."""
    good = np.asarray(good)
    if not good.all():
        at = [int(i) for i in np.argwhere(~good)[0]]
        one = np.array2string(values[tuple(at)], threshold=9, precision=6)
        member = f", member {at}," if at else ""
        raise ParameterError(found=f"{place}{member} that is {one}", expected=expected)


def _misfit(leaves: Mapping[str, Real], owner: str) -> StructureError:
    return StructureError(
        found=f"a {owner} of parameters of shapes { {n: np.shape(a) for n, a in leaves.items()} }",
        expected="one batch shape followed by vectors of one length d, d x d matrices where "
        "symmetric, and nothing for numbers",
    )


def place(leaf: Real, labels: Int[np.ndarray, " k"], size: int, axis: int) -> Real:
    """Sum the entries of ``leaf`` along an axis at their positions ``labels`` of ``size``."""
    kept = labels >= 0
    if labels.min(initial=0) < -1 or labels.max(initial=-1) >= size:
        raise StructureError(
            found=f"labels {labels.tolist()}", expected=f"numbers from -1 to {size - 1}"
        )
    np_ = namespace(leaf).np
    front = np_.moveaxis(leaf, axis, 0)
    out = np_.zeros((size, *front.shape[1:]), front.dtype)
    if np_ is np:
        np.add.at(out, labels[kept], front[kept])
    else:
        out = out.at[labels[kept]].add(front[kept])
    return np_.moveaxis(out, 0, axis)
