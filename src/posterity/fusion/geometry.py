"""Components as points of a Bregman geometry, with their divergences as one matrix product.

With ``phi = A`` over natural parameters, ``D(c || x) = phi(x) - phi(c) - (x - c) . phi'(c)`` is
``KL(c || x)``; with ``phi = A*`` over mean parameters it is ``KL(x || c)`` (banerjee2005,
theorem 4). In either geometry the point that minimises the summed divergence to a group is the
group's plain average, and what remains is a Jensen gap.
"""

import dataclasses
import enum
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from posterity.arrays.canonical import canonical_mean, canonical_sums
from posterity.arrays.tree import map_leaves
from posterity.arrays.typing import Float, Int
from posterity.errors import ParameterError
from posterity.families import ExponentialFamily, at_rest

Array = np.ndarray
BUDGET = 256 * 2**20  # Bytes of working memory for one chunk of rows
CACHED = 2**20  # Bytes of members that are processed together: the size of a processor's cache
PIECE = 2**21  # Bytes of costs that are copied at a time


class Divergence(enum.StrEnum):
    """The direction of the Kullback-Leibler divergence of the barycenter, whose sum over sites is
    least. Each member of the enumeration can be passed by its name, such as ``"forward"``.

    >>> from posterity import Beta
    >>> Divergence.REVERSE.coordinates(Beta.from_standard(3.0, 2.0)).tolist()
    [2.0, 1.0]
    """

    REVERSE = "reverse"
    """``KL(global || local)``: averages natural parameters; mode-seeking."""
    FORWARD = "forward"
    """``KL(local || global)``: averages mean parameters (moments); covers all sites' mass."""

    def coordinates(self, members: ExponentialFamily) -> Float[Array, "*batch dim"]:
        """Return the parameters that are averaged."""
        return members.natural_parameters if self is self.REVERSE else members.mean_parameters

    def dual(self, members: ExponentialFamily) -> Float[Array, "*batch dim"]:
        """Return the dual coordinates, the gradient of ``phi``."""
        return members.mean_parameters if self is self.REVERSE else members.natural_parameters

    def potential(self, members: ExponentialFamily) -> Float[Array, "*batch"]:
        """Return ``phi``: the log normaliser ``A``, or its conjugate."""
        return members.log_normalizer() if self is self.REVERSE else members.negative_entropy()

    def family(self, like: ExponentialFamily, coordinates: Array) -> ExponentialFamily:
        """Return the members of a family at these coordinates."""
        if self is self.REVERSE:
            return like.with_natural_parameters(coordinates)
        return like.with_mean_parameters(coordinates)

    def between(self, one: ExponentialFamily, other: ExponentialFamily) -> Float[Array, "*batch"]:
        """Return the divergence from a global member to a local one, in nats."""
        return one.kl(other) if self is self.REVERSE else other.kl(one)


DivergenceName = Literal["reverse", "forward"]


@dataclasses.dataclass(frozen=True)
class Points:
    """``N`` members of a family in one of the two geometries.

    ``coordinates`` (N, D) and ``potential`` (N,) are ``x`` and ``phi(x)``; ``template`` is a member
    that gives shapes. Divergences are accurate if the members surround the origin (:func:`moved`).
    """

    template: ExponentialFamily
    divergence: Divergence
    coordinates: Float[Array, "n dim"]
    potential: Float[Array, " n"]

    @classmethod
    def of(
        cls, members: ExponentialFamily, divergence: Divergence | DivergenceName = "reverse"
    ) -> "Points":
        """Make the geometry of a batch (N,) of members."""
        side = Divergence(divergence)
        return cls(members[:1], side, side.coordinates(members), side.potential(members))

    def __len__(self) -> int:
        return len(self.coordinates)

    def take(self, rows: Array | slice) -> "Points":
        """Return some of the points, centred at the same point; a slice copies nothing."""
        own = self.coordinates[rows], self.potential[rows]
        some = Points(self.template, self.divergence, *own)
        vars(some)["middle"] = self.middle
        if "_lifted" in vars(self):
            vars(some)["_lifted"] = self._lifted[rows]
        return some

    def members(self, rows: slice) -> ExponentialFamily:
        """Return some of the members."""
        return self.family(self.coordinates[rows])

    def family(self, coordinates: Float[Array, "g dim"]) -> ExponentialFamily:
        """Return the members of the family at the given coordinates."""
        return self.divergence.family(self.template, coordinates)

    def centroids(self, coordinates: Float[Array, "g dim"]) -> "Centroids":
        """Return centroids at the given coordinates."""
        if self.divergence is Divergence.REVERSE:
            return Centroids(coordinates, *self.template.evaluated(coordinates))
        members = self.family(coordinates)
        return Centroids(
            coordinates, members.negative_entropy(), lambda: members.natural_parameters
        )

    def potential_at(self, coordinates: Float[Array, "g dim"]) -> Float[Array, " g"]:
        """Return ``phi`` at the given coordinates."""
        return self.centroids(coordinates).potential

    @property
    def own(self) -> "Centroids":
        """Each point as a centroid."""
        return Centroids(self.coordinates, self.potential, lambda: self.dual)

    @functools.cached_property
    def dual(self) -> Float[Array, "n dim"]:
        """The dual coordinates of all points."""
        return self.divergence.dual(self.members(slice(None)))

    @functools.cached_property
    def middle(self) -> "Centroids":
        """The average of all points."""
        return self.centroids(self.coordinates.mean(0, keepdims=True))

    @functools.cached_property
    def _lifted(self) -> Float[Array, "n dim+2"]:
        """Offsets from the middle, heights above the tangent there, and ones: the inner product
        with a row of :meth:`_tangents` is a divergence.
        """
        middle = self.middle
        out = np.ones((len(self), middle.coordinates.size + 2))
        offset = np.subtract(self.coordinates, middle.coordinates, out=out[:, :-2])
        out[:, -2] = self.potential - offset @ middle.gradient[0]
        return out

    def divergences(self, centroids: "Centroids") -> Float[Array, "n g"]:
        """Return ``D(c_g || x_l)`` for all pairs, in nats: a matrix product. The factors are
        centred first, which only avoids cancellation.
        """
        out = np.empty((len(self), len(centroids.coordinates)))
        for rows, part in self.differences(centroids):
            np.maximum(part, 0.0, out=out[rows])
        return out

    def differences(self, centroids: "Centroids") -> Iterator[tuple[slice, Array]]:
        """Yield the divergences (some, G) of some rows at a time. Rounding may make some
        negative.
        """
        tangents = self._tangents(centroids)
        for rows in chunks(len(self), 8 * len(tangents), CACHED):
            yield rows, self._lifted[rows] @ tangents.T

    def paired_divergences(self, centroids: "Centroids", groups: Array) -> Float[Array, " n"]:
        """Return ``D(c || x_l)`` of each point and the centroid of its group in ``groups`` (n,)."""
        tangents = self._tangents(centroids)
        return np.maximum(np.einsum("nd,nd->n", self._lifted, tangents[groups]), 0.0)

    def _tangents(self, centroids: "Centroids") -> Float[Array, "g dim+2"]:
        """Return the tangents at centroids less that at the middle: descents, ones, and depths
        at the middle.
        """
        middle = self.middle
        out = np.ones((len(centroids.potential), middle.coordinates.size + 2))
        descent = np.subtract(middle.gradient, centroids.gradient, out=out[:, :-2])
        offset = centroids.coordinates - middle.coordinates
        height = centroids.potential - offset @ middle.gradient[0]
        out[:, -1] = -height - np.einsum("gd,gd->g", offset, descent)
        return out


@dataclasses.dataclass(frozen=True)
class Centroids:
    """``G`` points with their potential and its gradient, the dual coordinates."""

    coordinates: Float[Array, "g dim"]
    potential: Float[Array, " g"]
    dual: Callable[[], Float[Array, "g dim"]]

    @functools.cached_property
    def gradient(self) -> Float[Array, "g dim"]:
        """The dual coordinates, computed on first access: half of all centroids need none."""
        return self.dual()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the gradient in place of the function, which does not pickle."""
        return {**self.__dict__, "gradient": self.gradient, "dual": None}


def kl_matrix(
    globals_: ExponentialFamily,
    locals_: ExponentialFamily,
    divergence: Divergence | DivergenceName = "reverse",
    *,
    budget: int = BUDGET,
) -> Float[Array, "locals globals"]:
    """Return ``KL(global || local)``, or ``KL(local || global)``, for all pairs, in nats.

    Args:
        globals_: batch (G,) of a family.
        locals_: batch (L,) of the same family.
        divergence: ``"reverse"`` for the former, ``"forward"`` for the latter.
        budget: bytes of working memory, without inputs and result; locals are processed in chunks
            of this size.

    A divergence is a difference of large terms. If rounding dominates it, it is computed again by
    the family's centred closed form.

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
    centroids = points.centroids(points.coordinates)
    out = np.empty((locals_.batch_shape[0], len(points)))
    for rows in chunks(len(out), 8 * (8 * points.coordinates.shape[1] + 4 * len(points)), budget):
        some = moved(at_rest(locals_[rows]), origin)
        near = Points.of(some, divergence)
        part = out[rows] = near.divergences(centroids)
        scale = np.abs(near.potential)[:, None] + np.abs(points.potential)
        lost = np.argwhere(part < 1e-9 * scale)
        for few in chunks(len(lost), 64 * points.coordinates.shape[1], budget):
            l, g = lost[few].T
            out[rows][l, g] = np.maximum(points.divergence.between(globals_[g], some[l]), 0.0)
    return out


def chunks(length: int, row_bytes: int, budget: int = BUDGET) -> list[slice]:
    """Return slices that cover ``length`` rows, each of at most ``budget`` bytes or one row."""
    step = max(1, budget // max(row_bytes, 1))
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def barycenter(
    members: ExponentialFamily,
    labels: Int[Array, " n"],
    divergence: Divergence | DivergenceName = "reverse",
    weights: Float[Array, " n"] | None = None,
) -> ExponentialFamily:
    """Return the ``G`` members that minimise ``Σ_l w_l D(g, l)`` over the components of each group.

    For ``"reverse"``, ``D`` is ``KL(g || l)`` and the minimiser is the weighted average of natural
    parameters. For ``"forward"``, ``D`` is ``KL(l || g)`` and the minimiser is the average of mean
    parameters (claici2020, proposition 1; banerjee2005, proposition 1). The result
    does not depend on the order of components, to the last bit.

    Args:
        members: batch (N,) of local components.
        labels: the group of each component (N,), without gaps.
        divergence: ``"reverse"`` or ``"forward"``.
        weights: weight (N,) of each component; by default equal.

    >>> from posterity.families import Gamma
    >>> q = Gamma.from_standard(shape=[2.0, 4.0], rate=[1.0, 3.0])
    >>> barycenter(q, np.array([0, 0])).rate
    array([2.])
    """
    divergence = Divergence(divergence)
    # Squared means cancel in moments: these are averaged about the members' mean.
    reverse = divergence is Divergence.REVERSE
    origin = None if reverse else map_leaves(canonical_mean, members.location())
    members = moved(members, origin)
    coordinates = divergence.coordinates(members)
    weights = np.ones(len(coordinates)) if weights is None else np.asarray(weights, float)
    size = int(labels.max()) + 1
    counts = canonical_sums(weights[:, None], labels, size)
    mean = canonical_sums(coordinates * weights[:, None], labels, size) / counts
    return moved(divergence.family(members[:1], mean), opposite(origin))


def middle(members: ExponentialFamily) -> Any:
    """Return the average location of members (N,), or zero where that is within their spread; None
    for a family without a location.
    """

    def away(place: Array) -> Array:
        mean = place.mean(0)
        return np.where(np.abs(mean) > place.std(0), mean, 0.0)

    return map_leaves(away, members.location())


def moved(members: ExponentialFamily, origin: Any) -> ExponentialFamily:
    """Return the laws translated so that ``origin`` is at zero; divergences are unchanged."""
    return members if origin is None else members.translate(opposite(origin))


def opposite(offset: Any) -> Any:
    """Return the negative offset."""
    return map_leaves(operator.neg, offset)


def finite(costs: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the costs; raise a ParameterError if any is NaN or infinite."""
    if not np.isfinite(costs.max()):
        raise ParameterError(
            found="components so sharp for their distance that their divergences overflow",
            expected="components of a usual size, or divergence='reverse'",
        )
    return costs
