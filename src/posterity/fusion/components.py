"""The components of all sites, and the statistics by which groups of them are judged."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy

from posterity.arrays.tree import leaves, map_leaves
from posterity.arrays.typing import Float, Int
from posterity.families import ExponentialFamily
from posterity.fusion.criterion import USUAL, Criterion, DescriptionLength
from posterity.fusion.geometry import PIECE, Centroids, Divergence, Points, chunks, finite
from posterity.fusion.judged import Evidence, shares

Array = np.ndarray
MANY = 2**12  # Components beyond which evenly spaced ones represent all in the population


@dataclasses.dataclass(frozen=True)
class LocalComponents:
    """The components of all sites: points in the order of sites, ``starts`` (J + 1,) of each site
    and the end, the ``origin`` to which locations are relative, and the ``numbers`` of the
    criterion.
    """

    points: Points
    starts: Int[Array, " bounds"]
    origin: Any = None
    numbers: DescriptionLength = USUAL

    @property
    def sites(self) -> int:
        """Number of sites."""
        return len(self.starts) - 1

    @functools.cached_property
    def site(self) -> Int[Array, " n"]:
        """The site of each row."""
        return np.repeat(np.arange(self.sites), np.diff(self.starts))

    @functools.cached_property
    def judged(self) -> Points:
        """The components by which the number of groups is judged: natural parameters, which add up
        like evidence. Forward divergences would favour an average that covers all.
        """
        if not self.forward:
            return self.points
        return Points.of(self.points.members(slice(None)), Divergence.REVERSE)

    @property
    def forward(self) -> bool:
        """True if components are matched on mean parameters."""
        return self.points.divergence is Divergence.FORWARD

    @functools.cached_property
    def _populations(self) -> tuple[Points, list[float]]:
        """The population, i.e. the member with the least summed ``KL(l || .)`` to all components,
        and, with a location, that of the shapes; and the average ``KL(l || population)`` of each.
        Of very many components, evenly spaced ones are used.
        """
        several = [self.judged, *([] if self.shapes is None else [self.shapes])]
        if len(self.judged) > MANY:
            rows = np.arange(0, len(self.judged), -(-len(self.judged) // MANY))
            several = [points.take(rows) for points in several]
        return _populations_of(several)

    @functools.cached_property
    def shapes(self) -> Points | None:
        """The :attr:`judged` components, all moved to the origin; None without a location."""
        judged = self.judged
        law = self.judged.template
        if law.location() is None:
            return None
        coordinates = law.centred(judged.coordinates)
        potential = judged.potential
        if not law.normalizer_stays:
            potential = judged.potential_at(coordinates)
        return Points(law, judged.divergence, coordinates, potential)

    @functools.cached_property
    def criterion(self) -> Criterion:
        """The criterion for the number of groups."""
        judged = self.judged
        surprise = self._populations[1]
        return Criterion.of(
            judged.template,
            None if judged.template.gaussian else self._known_at_sites,
            sites=self.sites,
            total=len(judged),
            surprise=surprise[0],
            shape=surprise[1] if self.shapes is not None else 0.0,
            numbers=self.numbers,
        )

    @functools.cached_property
    def _unequal(self) -> Any:
        """:meth:`unequal` as a spline of the log number of observations; None if these numbers are
        similar, unknown or zero.
        """
        known = self._known
        sites = self._known_at_sites
        if known is None or not known.min() > 0:
            return None
        ratio = self.numbers.unequal
        within = ratio if self.shapes is None else ratio**2
        if sites.max() < ratio * sites.min() and known.max() < within * known.min():
            return None
        # Those with about the least and about the largest numbers, up to a factor of two.
        few = known <= 2 * known.min()
        many = known >= known.max() / 2
        low = known[few].mean()
        high = known[many].mean()
        typical = self.judged if self.shapes is None else self.shapes
        if self.shapes is None:  # those with few records may be others than those with many
            ends = np.outer([low, high], typical.coordinates.mean(0) / known.mean())
        else:  # the prior gives those with few records other shapes
            ends = np.stack([typical.coordinates[rows].mean(0) for rows in (few, many)])
        at = np.geomspace(low, high, 64)  # knots
        share = ((at - low) / (high - low))[:, None]
        potential = typical.potential_at((1 - share) * ends[0] + share * ends[1])
        potential -= share[:, 0] * (potential[-1] - potential[0])
        return scipy.interpolate.CubicSpline(np.log(at), potential)

    def unequal(self, natural: Float[Array, "n dim"]) -> Any:
        """Return the potential of typical shapes (without a location, of typical components) with
        as many observations as these members, up to a linear term. This is the misfit of components
        that differ only in their numbers of observations.
        """
        if self._unequal is None:
            return 0.0
        known = np.log(self._records(self.judged.family(natural)))
        return self._unequal(np.clip(known, *self._unequal.x[[0, -1]]))

    @functools.cached_property
    def _known(self) -> Float[Array, " n"] | None:
        """The number of observations of each component; None if unknown."""
        return self._records(self.judged.members(slice(None)))

    @property
    def _known_at_sites(self) -> Any:
        """The geometric mean of the components' observations at each site; None if unknown."""
        if self._known is None:
            return None
        logs = np.add.reduceat(np.log(np.maximum(self._known, 1e-300)), self.starts[:-1])
        return np.exp(logs / np.diff(self.starts))

    def _records(self, members: ExponentialFamily) -> Any:
        """Return the observations of members; for Gaussians, their relative average precision."""
        if not members.gaussian or self.shapes is None:
            return members.observations()
        mean, slope, _ = self.typical
        return members.natural_parameters @ slope / (mean @ slope)

    @functools.cached_property
    def totals(self) -> tuple[float, float]:
        """Summed potentials of all components, and of their shapes, minus :meth:`unequal`."""
        judged = self.judged
        less = np.sum(self.unequal(judged.coordinates))
        shape = 0.0 if self.shapes is None else self.shapes.potential.sum() - less
        return float(judged.potential.sum() - less), float(shape)

    def traits(self, rows: Any = slice(None)) -> Float[Array, "n traits"]:
        """Return natural parameters of components and of their shapes, which groups sum up."""
        own = self.judged.coordinates[rows]
        return own if self.shapes is None else np.hstack([own, self.shapes.coordinates[rows]])

    def evidence(self, traits: Float[Array, "g traits"]) -> Evidence:
        """Return the evidence of groups with these averages of :meth:`traits`."""
        natural = traits[:, : self.judged.coordinates.shape[1]]
        less = self.unequal(natural)
        if self.shapes is None:
            centroids = self.judged.centroids(natural)
            nothing = np.zeros(len(traits))
            return Evidence(centroids.potential - less, nothing, self._surprise(centroids), nothing)
        averages = traits[:, natural.shape[1] :]
        shapes = self.shapes.centroids(averages)
        if self.criterion.both:
            potential = self._as_wide(natural, shapes)
            surprise = np.full(len(traits), self.criterion.place)
        else:
            centroids = self.judged.centroids(natural)
            potential = centroids.potential
            surprise = self._surprise(centroids)
        mean, slope, at = self.typical
        typical = np.maximum(shapes.potential - at - (averages - mean) @ slope, 0.0)
        return Evidence(potential - less, shapes.potential - less, surprise, typical)

    def _as_wide(self, natural: Float[Array, "g dim"], shapes: Centroids) -> Float[Array, " g"]:
        """Return potentials less ``KL(average shape || the average's shape)``. An average of
        natural parameters is wider than its members if these lie apart, so that divergences grow
        with the logarithm of the distance. With this term they grow with its square, like errors of
        location.
        """
        judged = self.judged
        there = judged.template.centred(natural)
        rise = np.einsum("gd,gd->g", there - shapes.coordinates, shapes.gradient)
        if not judged.template.normalizer_stays:
            rise = rise + judged.potential_at(natural) - judged.potential_at(there)
        return shapes.potential + rise

    @functools.cached_property
    def typical(self) -> tuple[Array, Array, float]:
        """The average of all shapes, its dual, and its potential."""
        assert self.shapes is not None
        middle = self.shapes.middle
        return middle.coordinates[0], middle.gradient[0], float(middle.potential[0])

    @functools.cached_property
    def places(self) -> Float[Array, "n located"]:
        """Centred locations of components, in standard deviations of an average component: in the
        metric of its divergence.
        """
        assert self.shapes is not None
        place = self.judged.template.location()
        sizes = [own.shape[-1] for own in leaves(place)]
        points = np.hstack(leaves(self.judged.members(slice(None)).location()))
        scale = np.where((spread := points.std(0)) > 0, spread, 1.0)
        average = self.shapes.family(
            np.repeat(self.shapes.middle.coordinates, len(scale) + 1, axis=0)
        )
        steps = np.vstack([np.zeros(len(scale)), np.diag(scale)])
        offsets = iter(np.split(steps, np.cumsum(sizes)[:-1], axis=1))
        moved = average.translate(map_leaves(lambda _: next(offsets), place))
        # A translation changes both parameters linearly, up to terms that the other one lacks.
        natural, mean = (p[1:] - p[0] for p in (moved.natural_parameters, moved.mean_parameters))
        metric = (natural @ mean.T + mean @ natural.T) / 2
        points = (points / scale) @ np.linalg.cholesky(metric)
        return points - points.mean(0)

    @functools.cached_property
    def masses(self) -> Float[Array, "n located+1"]:
        """Each component's observations, relative to the average, and the :attr:`places` times
        these, which groups sum up. No columns where directions are not told apart.
        """
        if not self.criterion.directed:
            return np.empty((len(self.points), 0))
        known = self._known
        weights = np.ones(len(self.points)) if known is None else known / known.mean()
        return weights[:, None] * np.insert(self.places, 0, 1.0, axis=1)

    def along(self, masses: Float[Array, "g located+1"]) -> Float[Array, " located"] | None:
        """Return the shares of the scatter within groups, of these sums of :attr:`masses`, along
        its principal directions, the largest first; None where directions are not told apart.
        """
        if not masses.shape[1]:
            return None
        means = masses[:, 1:] / masses[:, :1]
        return shares(self._scatter - masses[:, 1:].T @ means)

    @functools.cached_property
    def _scatter(self) -> Float[Array, "located located"]:
        """The squares of all :attr:`places`, summed by :attr:`masses`."""
        return self.masses[:, 1:].T @ self.places

    def _surprise(self, centroids: Centroids) -> Float[Array, " g"]:
        """Return ``KL(. || population)`` of averages of natural parameters."""
        return self._populations[0].divergences(centroids)[0]

    def rows_of(self, sites: Int[Array, " some"]) -> tuple[Int[Array, " rows"], Int[Array, " b"]]:
        """Return the rows of several sites, and each site's start among them."""
        sizes = np.diff(self.starts)[sites]
        bounds = np.concatenate([[0], sizes.cumsum()])
        return np.arange(bounds[-1]) + np.repeat(self.starts[sites] - bounds[:-1], sizes), bounds

    def parts(self, groups: int) -> Iterator[tuple[slice, Int[Array, " bounds"]]]:
        """Yield the rows of some sites at a time, and each site's start among them; their
        divergences to ``groups`` groups fit into a bounded piece of memory.
        """
        for some in chunks(self.sites, 8 * groups * self.largest, PIECE):
            first, end = self.starts[[some.start, some.stop]].tolist()
            yield slice(first, end), self.starts[some.start : some.stop + 1] - first

    @functools.cached_property
    def largest(self) -> int:
        """The largest number of components at a site: no clustering has fewer groups."""
        return int(np.diff(self.starts).max())

    def take(self, rows: Int[Array, " some"]) -> "LocalComponents":
        """Return some of the components, in the same order."""
        sizes = np.unique(self.site[rows], return_counts=True)[1]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        return LocalComponents(self.points.take(rows), starts, numbers=self.numbers)


def _populations_of(several: Sequence[Points]) -> tuple[Points, list[float]]:
    """Return, for each of several sets of points of one family, the member that minimises summed
    ``KL(l || .)``; and the average divergences.
    """
    means = []
    inner = []
    for points in several:
        means.append(points.dual.mean(0))
        inner.append(np.vdot(points.coordinates, points.dual) / len(points))
    with np.errstate(all="ignore"):  # means without digits become an error
        every = Points.of(several[0].template.with_mean_parameters(np.array(means)))
    surprise = finite(every.potential) - [points.potential.mean() for points in several] + inner
    surprise = np.maximum(surprise - np.einsum("nd,nd->n", every.coordinates, means), 0.0)
    return every, surprise.tolist()
