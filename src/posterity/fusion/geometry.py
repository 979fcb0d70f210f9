"""Components as points of a Bregman geometry, and all their divergences as one matrix product.

With ``phi = A`` over natural parameters, ``D(c || x) = phi(x) - phi(c) - (x - c) . phi'(c)`` is
``KL(c || x)``; with ``phi = A*`` over mean parameters it is ``KL(x || c)`` (banerjee2005,
theorem 4). In either geometry the point that minimises the summed divergence to a group is the
group's plain average, and what remains is a Jensen gap.
"""

import dataclasses
import enum
import functools
import operator
from typing import Any, Literal

import numpy as np

from posterity.arrays.typing import Float
from posterity.families import ExponentialFamily, at_rest

Array = np.ndarray
BUDGET = 256 * 2**20
"""Bytes that one block of working memory may take."""


class Divergence(enum.StrEnum):
    """Which way round the Kullback-Leibler divergence is taken."""

    REVERSE = "reverse"
    """``KL(global || local)``: averages natural parameters; seeks what all agree on."""
    FORWARD = "forward"
    """``KL(local || global)``: averages mean parameters (moments); covers what any believes."""


DivergenceName = Literal["reverse", "forward"]


@dataclasses.dataclass(frozen=True)
class Points:
    """``N`` members of a family in one of the two geometries.

    ``coordinates`` (N, D) and ``potential`` (N,) are ``x`` and ``phi(x)``; ``members`` is the
    family they came from, moved so that the origin lies amid them: divergences do not change,
    and digits are kept when means lie far from the origin.
    """

    members: ExponentialFamily
    divergence: Divergence
    coordinates: Float[Array, "n dim"]
    potential: Float[Array, " n"]

    @classmethod
    def of(
        cls, members: ExponentialFamily, divergence: Divergence | DivergenceName = "reverse"
    ) -> "Points":
        """From a batch (N,) of members."""
        divergence = Divergence(divergence)
        coordinates, potential = _coordinates(members, divergence)
        return cls(members, divergence, coordinates, potential)

    def __len__(self) -> int:
        return len(self.coordinates)

    def take(self, rows: Array) -> "Points":
        """Some of the points."""
        return Points(
            self.members[rows], self.divergence, self.coordinates[rows], self.potential[rows]
        )

    def block(self, rows: slice) -> "Points":
        """A run of points, without copying."""
        return Points(self.members, self.divergence, self.coordinates[rows], self.potential[rows])

    @functools.cached_property
    def template(self) -> ExponentialFamily:
        """One member, to take shapes from."""
        return self.members[:1]

    def family(self, coordinates: Float[Array, "g dim"]) -> ExponentialFamily:
        """The members of the family at the given coordinates."""
        if self.divergence is Divergence.REVERSE:
            return self.template.with_natural_parameters(coordinates)
        return self.template.with_mean_parameters(coordinates)

    def centroids(self, coordinates: Float[Array, "g dim"]) -> "Centroids":
        """Potential and gradient at the given coordinates."""
        family = self.family(coordinates)
        if self.divergence is Divergence.REVERSE:
            return Centroids(coordinates, family.log_normalizer(), family.mean_parameters)
        return Centroids(coordinates, family.negative_entropy(), family.natural_parameters)

    def potential_at(self, coordinates: Float[Array, "g dim"]) -> Float[Array, " g"]:
        """``phi`` at the given coordinates."""
        family = self.family(coordinates)
        if self.divergence is Divergence.REVERSE:
            return family.log_normalizer()
        return family.negative_entropy()

    def divergences(self, centroids: "Centroids") -> Float[Array, "n g"]:
        """``D(c_g || x_l)`` for all pairs, in nats: a matrix product, a row and a column.

        Both factors are centred first: it changes nothing but the digits that cancel.
        """
        middle = self.coordinates.mean(0)
        slope = centroids.gradient.mean(0)
        gradient = centroids.gradient - slope
        column = self.potential - (self.coordinates - middle) @ slope
        offset = centroids.coordinates - middle
        row = centroids.potential - offset @ slope - (offset * gradient).sum(-1)
        out = np.empty((len(self), len(row)))
        for rows in blocks(len(self), 8 * (len(row) + self.coordinates.shape[1])):
            product = (self.coordinates[rows] - middle) @ gradient.T
            out[rows] = column[rows, None] - row - product
        return np.maximum(out, 0.0, out=out)


@dataclasses.dataclass(frozen=True)
class Centroids:
    """``G`` points with the gradient of the potential there, the dual coordinates."""

    coordinates: Float[Array, "g dim"]
    potential: Float[Array, " g"]
    gradient: Float[Array, "g dim"]

    def block(self, rows: slice) -> "Centroids":
        """A run of centroids, without copying."""
        return Centroids(self.coordinates[rows], self.potential[rows], self.gradient[rows])


def kl_matrix(
    globals_: ExponentialFamily,
    locals_: ExponentialFamily,
    divergence: Divergence | DivergenceName = "reverse",
    *,
    budget: int = BUDGET,
) -> Float[Array, "locals globals"]:
    """``KL(global || local)``, or ``KL(local || global)``, for all pairs, in nats.

    Args:
        globals_: batch (G,) of a family.
        locals_: batch (L,) of the same family.
        divergence: ``"reverse"`` for the former, ``"forward"`` for the latter.
        budget: bytes of working memory beside the inputs and the result; work is cut into
            blocks of locals that fit.

    Pairs whose divergence is lost in the rounding of the large terms it is a difference of
    are computed again by the family's centred closed form.

    Source: claici2020, section 3; facts of the dual form in wainwright2008, section 5.2.2.

    >>> from posterity.families import DiagonalGaussian
    >>> q = DiagonalGaussian.from_standard(mean=[[0.0], [2.0]], variance=[[1.0], [1.0]])
    >>> kl_matrix(q, q)
    array([[0., 2.],
           [2., 0.]])
    """
    globals_ = at_rest(globals_)
    origin = middle(globals_)
    shape = Points.of(moved(globals_, origin), divergence)
    centroids = shape.centroids(shape.coordinates)
    out = np.empty((locals_.batch_shape[0], len(shape)))
    row_bytes = 8 * (8 * shape.coordinates.shape[1] + 4 * len(shape))
    for rows in blocks(len(out), row_bytes, budget):
        some = Points.of(moved(at_rest(locals_[rows]), origin), divergence)
        out[rows] = some.divergences(centroids)
        _recompute_cancelled(out[rows], some, shape, budget)
    return out


def blocks(length: int, row_bytes: int, budget: int = BUDGET) -> list[slice]:
    """Slices that cover ``length`` rows, each within ``budget`` bytes (but at least a row)."""
    step = max(1, budget // max(row_bytes, 1))
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _coordinates(members: ExponentialFamily, divergence: Divergence) -> tuple[Array, Array]:
    if divergence is Divergence.REVERSE:
        return members.natural_parameters, members.log_normalizer()
    return members.mean_parameters, members.negative_entropy()


def middle(members: ExponentialFamily) -> Any:
    """The average location of members (N,), to be moved to the origin; None if they have none."""
    return _each(lambda place: place.mean(0), members.location())


def moved(members: ExponentialFamily, origin: Any) -> ExponentialFamily:
    """The same laws seen from ``origin``: divergences stay, and so do their digits."""
    return members if origin is None else members.translate(opposite(origin))


def opposite(offset: Any) -> Any:
    """The way back."""
    return _each(operator.neg, offset)


def _each(function: Any, offset: Any) -> Any:
    """``function`` of every array of an offset, which may be a tree."""
    if isinstance(offset, dict):
        return {name: _each(function, own) for name, own in offset.items()}
    return None if offset is None else function(offset)


def _recompute_cancelled(out: Array, locals_: Points, globals_: Points, budget: int) -> None:
    """Replace entries below the rounding error of their terms, in place."""
    scale = np.abs(locals_.potential)[:, None] + np.abs(globals_.potential)
    lost = np.argwhere(out < 1e-9 * scale)
    for part in blocks(len(lost), 64 * locals_.coordinates.shape[1], budget):
        rows, columns = lost[part].T
        local, global_ = locals_.members[rows], globals_.members[columns]
        reverse = globals_.divergence is Divergence.REVERSE
        exact = global_.kl(local) if reverse else local.kl(global_)
        out[rows, columns] = np.maximum(exact, 0.0)
