"""All sites' components, and what groups of them are judged by."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int
from posterity.families import ExponentialFamily
from posterity.fusion.criterion import Criterion
from posterity.fusion.geometry import PIECE, Centroids, Divergence, Points, chunks

Array = np.ndarray
MANY = 2**14  # Components beyond which as many as tell it, at even steps, stand for all
WIDE = 2**19
"""Numbers in all components of a sample from which on only the best level of merging is refined:
every level costs a pass of special functions over all of them, and more numbers a component make
the levels of merging, whose objectives are true ones, the surer."""
UNEQUAL, ALIKE, KNOTS = 16.0, 2.0, 64
"""Ratio from which on numbers of observations are unequal, up to which they are alike, and how
many numbers are looked at."""


class Evidence(NamedTuple):
    """Evidence on groups from the averages of their members: the log normaliser, less what makes
    misfits of location quadratic, and that of the average shape; nats of what the average
    says beyond the population, and ``KL(typical shape || average shape)``, zero where none moves.
    """

    potential: Float[Array, " g"]
    shape: Float[Array, " g"]
    surprise: Float[Array, " g"]
    typical: Float[Array, " g"]


@dataclasses.dataclass(frozen=True)
class LocalComponents:
    """All sites' components: points, grouped by site, where each site's begin (J + 1,), and the
    end, and the ``origin`` from which they are seen.
    """

    points: Points
    starts: Int[Array, " bounds"]
    origin: Any = None

    @property
    def sites(self) -> int:
        """Number of sites."""
        return len(self.starts) - 1

    @property
    def wide(self) -> bool:
        """True where components have so many numbers that a search looks at few clusterings."""
        return self.points.coordinates.size > WIDE

    @functools.cached_property
    def site(self) -> Int[Array, " n"]:
        """The site of each row."""
        return np.repeat(np.arange(self.sites), np.diff(self.starts))

    @functools.cached_property
    def judged(self) -> Points:
        """The components as the number of groups is judged: on natural parameters, which add up as
        evidence does; forward divergences forgive an average that covers all.
        """
        if not self.forward:
            return self.points
        return Points.of_parts(self.points.members, len(self.points), Divergence.REVERSE)

    @property
    def forward(self) -> bool:
        """True where components are matched on mean parameters."""
        return self.points.divergence is Divergence.FORWARD

    @functools.cached_property
    def _populations(self) -> list[tuple[Points, float]]:
        """The one member closest to all components, which minimises summed KL(l || .), and ``KL(l
        || population)`` on average; and those of their shapes if they move: of very many, of as
        many as tell it at even steps.
        """
        several = [self.judged, *([] if self.shapes is None else [self.shapes])]
        if len(self.judged) > MANY:
            rows = np.arange(0, len(self.judged), -(-len(self.judged) // MANY))
            several = [points.take(rows) for points in several]
        return _populations_of(several)

    @functools.cached_property
    def shapes(self) -> Points | None:
        """The components as they are judged, all moved to the origin; None where nothing moves."""
        judged, law = self.judged, self.judged.template
        if law.location() is None:
            return None
        coordinates, potential = np.empty_like(judged.coordinates), judged.potential
        if not law.normalizer_stays:
            potential = np.empty(len(judged))
        for rows in judged.parts:
            coordinates[rows] = law.centred(judged.coordinates[rows])
            if not law.normalizer_stays:
                potential[rows] = judged.potential_at(coordinates[rows])
        return Points(law, judged.divergence, coordinates, potential)

    @functools.cached_property
    def criterion(self) -> Criterion:
        """The criterion by which the number of groups is judged."""
        judged, surprise = self.judged, self._populations[0][1]
        return Criterion.of(
            judged.template,
            None if judged.template.gaussian else self._known_at_sites,
            sites=self.sites,
            total=len(judged),
            surprise=surprise,
            shape=self._populations[1][1] if self.shapes is not None else 0.0,
        )

    @functools.cached_property
    def _unequal(self) -> Any:
        """:meth:`unequal` as a spline of the logarithm; None where sites know their components from
        about as many observations as each other, and no component from next to none.
        """
        known, sites = self._known, self._known_at_sites
        if self.shapes is None or known is None or not known.min() > 0:
            return None
        if sites.max() < UNEQUAL * sites.min() and known.max() < UNEQUAL**2 * known.min():
            return None
        few, many = known <= ALIKE * known.min(), known >= known.max() / ALIKE
        ends = np.stack([self.shapes.coordinates[rows].mean(0) for rows in (few, many)])
        low, high = known[few].mean(), known[many].mean()
        at = np.geomspace(low, high, KNOTS)
        share = ((at - low) / (high - low))[:, None]
        potential = self.shapes.potential_at((1 - share) * ends[0] + share * ends[1])
        potential -= share[:, 0] * (potential[-1] - potential[0])
        return scipy.interpolate.CubicSpline(np.log(at), potential)

    def unequal(self, natural: Float[Array, "n dim"]) -> Any:
        """The potential of typical shapes that are known from as many observations as members with
        these natural parameters, up to what is linear in these: it is all of the misfit of
        components that are one, but for their numbers of observations.
        """
        if self._unequal is None:
            return 0.0
        known = np.log(self._records(self.judged.family(natural)))
        return self._unequal(np.clip(known, *self._unequal.x[[0, -1]]))

    @functools.cached_property
    def _known(self) -> Float[Array, " n"] | None:
        """From how many observations components are known; None where nothing says it."""
        judged = self.judged
        known: Any = [self._records(judged.members(rows)) for rows in judged.parts]
        return None if known[0] is None else np.concatenate(known)

    @property
    def _known_at_sites(self) -> Any:
        """The same of each site, on average over its components; None where nothing says it."""
        if self._known is None:
            return None
        logs = np.add.reduceat(np.log(np.maximum(self._known, 1e-300)), self.starts[:-1])
        return np.exp(logs / np.diff(self.starts))

    def _records(self, members: ExponentialFamily) -> Any:
        """From how many observations members are known, or how sharp Gaussians are on average."""
        if not members.gaussian or self.shapes is None:
            return members.observations()
        mean, slope, _ = self.typical
        return members.natural_parameters @ slope / (mean @ slope)

    @functools.cached_property
    def totals(self) -> tuple[float, float]:
        """The potentials of all components, and of their shapes, added up: less :meth:`unequal`."""
        judged = self.judged
        less = sum(np.sum(self.unequal(judged.coordinates[rows])) for rows in judged.parts)
        shape = 0.0 if self.shapes is None else self.shapes.potential.sum()
        return float(judged.potential.sum() - less), float(shape - less)

    def traits(self, rows: Any = slice(None)) -> Float[Array, "n traits"]:
        """Natural parameters of components, and those of their shapes: what groups sum up."""
        own = self.judged.coordinates[rows]
        return own if self.shapes is None else np.hstack([own, self.shapes.coordinates[rows]])

    def evidence(self, traits: Float[Array, "g traits"]) -> Evidence:
        """The evidence of groups with these averages of :meth:`traits`."""
        dim = self.judged.coordinates.shape[1]
        return self.evidence_of(self.judged.centroids(traits[:, :dim]), traits)

    def evidence_of(self, centroids: Centroids, traits: Float[Array, "g traits"]) -> Evidence:
        """The same where centroids are known."""
        surprise, potential = self.surprise(centroids), centroids.potential
        if self.shapes is None:
            nothing = np.zeros(len(traits))
            return Evidence(potential, nothing, surprise, nothing)
        averages = traits[:, centroids.coordinates.shape[1] :]
        shape = self.shapes.potential_at(averages)
        if self.criterion.both:
            potential = potential - self._widened(centroids, self.shapes.centroids(averages, shape))
        mean, slope, at = self.typical
        typical = np.maximum(shape - at - (averages - mean) @ slope, 0.0)
        less = self.unequal(centroids.coordinates)
        return Evidence(potential - less, shape - less, surprise, typical)

    def _widened(self, centroids: Centroids, shapes: Centroids) -> Float[Array, " g"]:
        """``KL(average shape || the centroid's shape)``: an average of natural parameters is wider
        than its members by how far apart they lie, so that its divergences grow with the logarithm
        of a distance; with this they grow with its square, as errors of location do.
        """
        judged = self.judged
        there, potential = judged.template.centred(centroids.coordinates), centroids.potential
        if not judged.template.normalizer_stays:
            potential = judged.potential_at(there)
        rise = np.einsum("gd,gd->g", there - shapes.coordinates, shapes.gradient)
        return np.maximum(potential - shapes.potential - rise, 0.0)

    @functools.cached_property
    def typical(self) -> tuple[Array, Array, float]:
        """The average of all shapes, its dual, and its potential."""
        assert self.shapes is not None
        mean, slope = self.shapes.middle
        return mean[0], slope[0], float(self.shapes.potential_at(mean)[0])

    def surprise(self, centroids: Centroids) -> Float[Array, " g"]:
        """Return what averages of natural parameters say beyond the population: ``KL(. ||
        population)``, or that of the average component's location, where shapes are priced by
        themselves.
        """
        if self.criterion.both:
            return np.full(len(centroids.potential), self.criterion.place)
        return self._populations[0][0].divergences(centroids)[0]

    def alone(self, rows: slice) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """The surprise of components in groups of their own, and how untypical their shapes are."""
        surprise = self.surprise(self.judged.take(rows).alone)
        if self.shapes is None:
            return surprise, np.zeros(len(surprise))
        (mean, slope, at), shapes = self.typical, self.shapes
        above = shapes.potential[rows] - at - (shapes.coordinates[rows] - mean) @ slope
        return surprise, np.maximum(above, 0.0)

    def rows_of(self, sites: Int[Array, " some"]) -> tuple[Int[Array, " rows"], Int[Array, " b"]]:
        """The rows of several sites, and where each one's begin among them."""
        sizes = np.diff(self.starts)[sites]
        bounds = np.concatenate([[0], sizes.cumsum()])
        return np.arange(bounds[-1]) + np.repeat(self.starts[sites] - bounds[:-1], sizes), bounds

    def parts(self, groups: int) -> Iterator[tuple[slice, Int[Array, " bounds"]]]:
        """The rows of some sites after others, and where each one's begin among them: as many as
        have room for divergences to so many groups.
        """
        for some in chunks(self.sites, 8 * groups * self.largest(), PIECE):
            first, end = self.starts[[some.start, some.stop]].tolist()
            yield slice(first, end), self.starts[some.start : some.stop + 1] - first

    def largest(self) -> int:
        """Most components at any site: no clustering can have fewer groups."""
        return self._largest

    @functools.cached_property
    def _largest(self) -> int:
        return int(np.diff(self.starts).max())

    def take(self, rows: Int[Array, " some"]) -> "LocalComponents":
        """Some of the components, in the order that they have here."""
        sizes = np.unique(self.site[rows], return_counts=True)[1]
        return LocalComponents(self.points.take(rows), np.concatenate([[0], np.cumsum(sizes)]))


class Judged(NamedTuple):
    """Groups as their number is judged: their averages, what these say, and the summed divergence
    of components to them, of all they are and of their shapes.
    """

    centres: Float[Array, "g traits"]
    evidence: Evidence
    misfit: float
    shape: float

    @classmethod
    def of(
        cls, centres: Array, evidence: Evidence, counts: Array, total: float, shape: float
    ) -> "Judged":
        """Make the evidence from the potentials of all components, and of their shapes, added
        up.
        """
        misfit = max(float(total - counts @ evidence.potential), 0.0)
        return cls(centres, evidence, misfit, max(float(shape - counts @ evidence.shape), 0.0))

    def prices(self, criterion: Criterion, counts: Array) -> tuple[float, float]:
        """The sum of the prices of all groups, and the spread of shapes that it is least with."""
        _, _, surprise, typical = (values[:, None] for values in self.evidence)
        prices = criterion.prices(surprise, typical, counts[:, None], criterion.spreads)
        total, spread = criterion.shortest(prices.sum(0))
        return float(total), float(spread)

    def length(self, criterion: Criterion, counts: Array) -> float:
        """Description length, in nats."""
        price, _ = self.prices(criterion, counts)
        return float(criterion.length_of_sums(self.misfit, self.shape, price, len(counts)))


def _populations_of(several: Sequence[Points]) -> list[tuple[Points, float]]:
    """The member that minimises summed ``KL(l || .)``, and that divergence on average, of each of
    several points of one family.
    """
    means, inner = np.zeros((len(several), several[0].coordinates.shape[1])), []
    for mean, points in zip(means, several, strict=True):
        whole = len(points.parts) == 1  # whose gradient is kept
        inner.append(0.0)
        for rows in points.parts:
            dual = points.gradient if whole else points.members(rows).mean_parameters
            mean += dual.sum(0)
            inner[-1] += np.einsum("nd,nd->", points.coordinates[rows], dual) / len(points)
        mean /= len(points)
    with np.errstate(invalid="ignore"):  # where means have lost all digits: an error of costs
        every = Points.of(several[0].template.with_mean_parameters(means))
    surprise = every.potential - [points.potential.mean() for points in several] + inner
    surprise = np.maximum(surprise - np.einsum("nd,nd->n", every.coordinates, means), 0.0)
    rows = [slice(n, n + 1) for n in range(len(several))]
    own = [(every.coordinates[one], every.potential[one]) for one in rows]
    each = [Points(every.template, every.divergence, *one) for one in own]
    return list(zip(each, surprise.tolist(), strict=True))
