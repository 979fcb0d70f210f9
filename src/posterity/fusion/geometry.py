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
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from posterity.arrays.typing import Float
from posterity.families import ExponentialFamily, at_rest

Array = np.ndarray
BUDGET = 256 * 2**20
"""Bytes of working memory that one chunk of rows may take."""


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

    ``coordinates`` (N, D) and ``potential`` (N,) are ``x`` and ``phi(x)``; ``template`` is a
    member to take shapes from. Digits are kept if the origin lies amid the members (:func:`moved`).
    """

    template: ExponentialFamily
    divergence: Divergence
    coordinates: Float[Array, "n dim"]
    potential: Float[Array, " n"]

    @classmethod
    def of(
        cls, members: ExponentialFamily, divergence: Divergence | DivergenceName = "reverse"
    ) -> "Points":
        """From a batch (N,) of members."""
        divergence = Divergence(divergence)
        reverse = divergence is Divergence.REVERSE
        coordinates = members.natural_parameters if reverse else members.mean_parameters
        return cls(members[:1], divergence, coordinates, _potential(members, divergence))

    def __len__(self) -> int:
        return len(self.coordinates)

    def take(self, rows: Array | slice) -> "Points":
        """Some of the points; a slice copies nothing."""
        return dataclasses.replace(
            self, coordinates=self.coordinates[rows], potential=self.potential[rows]
        )

    def family(self, coordinates: Float[Array, "g dim"]) -> ExponentialFamily:
        """The members of the family at the given coordinates."""
        if self.divergence is Divergence.REVERSE:
            return self.template.with_natural_parameters(coordinates)
        return self.template.with_mean_parameters(coordinates)

    def centroids(self, coordinates: Float[Array, "g dim"]) -> "Centroids":
        """Centroids at the given coordinates."""
        family, reverse = self.family(coordinates), self.divergence is Divergence.REVERSE
        dual = lambda: family.mean_parameters if reverse else family.natural_parameters
        return Centroids(coordinates, _potential(family, self.divergence), dual)

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
        for rows in chunks(len(self), 8 * (len(row) + self.coordinates.shape[1])):
            product = (self.coordinates[rows] - middle) @ gradient.T
            out[rows] = column[rows, None] - row - product
        return np.maximum(out, 0.0, out=out)


@dataclasses.dataclass(frozen=True)
class Centroids:
    """``G`` points with their potential, and the gradient there: the dual coordinates."""

    coordinates: Float[Array, "g dim"]
    potential: Float[Array, " g"]
    dual: Callable[[], Float[Array, "g dim"]]

    @functools.cached_property
    def gradient(self) -> Float[Array, "g dim"]:
        """Found when it is first asked for: half of all centroids are passed over before."""
        return self.dual()

    def take(self, rows: Array | slice) -> "Centroids":
        """Some of the centroids; a slice copies nothing."""
        return Centroids(self.coordinates[rows], self.potential[rows], lambda: self.gradient[rows])


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
        budget: bytes of working memory beside the inputs and the result; locals are gone through
            in chunks that fit.

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
    globals_ = moved(globals_, origin)
    points = Points.of(globals_, divergence)
    centroids, reverse = points.centroids(points.coordinates), points.divergence == "reverse"
    out = np.empty((locals_.batch_shape[0], len(points)))
    for rows in chunks(len(out), 8 * (8 * points.coordinates.shape[1] + 4 * len(points)), budget):
        some = moved(at_rest(locals_[rows]), origin)
        near = Points.of(some, divergence)
        part = out[rows] = near.divergences(centroids)
        scale = np.abs(near.potential)[:, None] + np.abs(points.potential)
        lost = np.argwhere(part < 1e-9 * scale)
        for few in chunks(len(lost), 64 * points.coordinates.shape[1], budget):
            l, g = lost[few].T
            exact = globals_[g].kl(some[l]) if reverse else some[l].kl(globals_[g])
            out[rows][l, g] = np.maximum(exact, 0.0)
    return out


def chunks(length: int, row_bytes: int, budget: int = BUDGET) -> list[slice]:
    """Slices that cover ``length`` rows, each within ``budget`` bytes (but at least a row)."""
    step = max(1, budget // max(row_bytes, 1))
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _potential(members: ExponentialFamily, divergence: Divergence) -> Float[Array, " n"]:
    """``A``, or its conjugate."""
    reverse = divergence is Divergence.REVERSE
    return members.log_normalizer() if reverse else members.negative_entropy()


def middle(members: ExponentialFamily) -> Any:
    """The average location of members (N,), to be moved to the origin; None if they have none."""
    return of_places(lambda place: place.mean(0), members.location())


def moved(members: ExponentialFamily, origin: Any) -> ExponentialFamily:
    """The same laws seen from ``origin``: divergences stay, and so do their digits."""
    return members if origin is None else members.translate(opposite(origin))


def opposite(offset: Any) -> Any:
    """The way back."""
    return of_places(operator.neg, offset)


def of_places(function: Any, place: Any) -> Any:
    """``function`` of every array of a location, which may be a tree, or None."""
    if isinstance(place, dict):
        return {name: of_places(function, own) for name, own in place.items()}
    return None if place is None else function(place)
