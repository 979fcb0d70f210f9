"""A clustering of all sites' components under the rule that a site's own stay apart."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy

from posterity.arrays.assignment import assignment
from posterity.arrays.typing import Bool, Float, Int
from posterity.families import ExponentialFamily
from posterity.fusion.criterion import Criterion
from posterity.fusion.geometry import (
    PIECE,
    ROOM,
    Centroids,
    Divergence,
    Nearest,
    Points,
    cheapest,
    chunks,
    moved,
)

Array = np.ndarray
MANY = 2**14
"""Components beyond which those that change their group are added to its sum and taken from it."""
SEVERAL = 32  # Groups from which on those that stay as they were are not looked at again
SMALL = 2**14  # Entries of a membership matrix below which a dense one is faster than a sparse one


WIDE = 2**19
"""Numbers in all components of a sample from which on only the best level of merging is refined:
every level costs a pass of special functions over all of them, and more numbers a component make
the levels of merging, whose objectives are true ones, the surer."""


UNEQUAL, ALIKE, KNOTS = 16.0, 2.0, 64
"""Ratio from which on numbers of observations are unequal, up to which they are alike, and how
many numbers are looked at."""


class Evidence(NamedTuple):
    """What is known of groups from the averages of their members.

    Attributes:
        potential: the log normaliser, less what makes misfits of location quadratic.
        shape: the log normaliser of the average shape.
        surprise: nats of what the average says beyond the population.
        typical: ``KL(typical shape || average shape)``; zero where nothing moves.
    """

    potential: Float[Array, " g"]
    shape: Float[Array, " g"]
    surprise: Float[Array, " g"]
    typical: Float[Array, " g"]


@dataclasses.dataclass(frozen=True)
class LocalComponents:
    """All sites' components: points, grouped by site, and where each site's begin and end.

    ``starts`` (J + 1,) has the first row of each site, and the end.
    """

    points: Points
    starts: Int[Array, " bounds"]

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
        """The components as the number of groups is judged: on natural parameters.

        These add up as evidence does; forward divergences forgive an average that covers all.
        """
        if not self.forward:
            return self.points
        return Points.of_parts(self.points.members, len(self.points), Divergence.REVERSE)

    @property
    def forward(self) -> bool:
        """True where components are matched on mean parameters."""
        return self.points.divergence is Divergence.FORWARD

    @functools.cached_property
    def population(self) -> Points:
        """The one member closest to all components: it minimises summed KL(l || .)."""
        return self._population[0]

    @functools.cached_property
    def _population(self) -> tuple[Points, float]:
        """And ``KL(l || population)`` on average."""
        return self._populations[0]

    @functools.cached_property
    def _populations(self) -> list[tuple[Points, float]]:
        """Those of all components, and of their shapes if they move: of very many, of as many as
        tell it at even steps.
        """
        several = [self.judged, *([] if self.shapes is None else [self.shapes])]
        if len(self.judged) > MANY:
            rows = np.arange(0, len(self.judged), -(-len(self.judged) // MANY))
            several = [points.take(rows) for points in several]
        return _populations_of(several)

    @functools.cached_property
    def shapes(self) -> Points | None:
        """The components as they are judged, all moved to the origin; None where nothing moves."""
        judged = self.judged
        if judged.template.location() is None:
            return None

        def at_origin(rows: slice) -> ExponentialFamily:
            members = judged.members(rows)
            return moved(members, members.location())

        potential = judged.potential if judged.template.normalizer_stays else None
        return Points.of_parts(at_origin, len(judged), potential=potential)

    @functools.cached_property
    def criterion(self) -> Criterion:
        """What the number of groups is judged by."""
        judged, surprise = self.judged, self._population[1]
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
        typical = self._apart(averages, shape)
        less = self.unequal(centroids.coordinates)
        return Evidence(potential - less, shape - less, surprise, typical)

    def _widened(self, centroids: Centroids, shapes: Centroids) -> Float[Array, " g"]:
        """``KL(average shape || the centroid's shape)``: an average of natural parameters is wider
        than its members by how far apart they lie, so that its divergences grow with the logarithm
        of a distance; with this they grow with its square, as errors of location do.
        """
        own = self.judged.family(centroids.coordinates)
        there = moved(own, own.location())
        stays = there.normalizer_stays
        potential = centroids.potential if stays else np.asarray(there.log_normalizer())
        step = there.natural_parameters - shapes.coordinates
        rise = np.einsum("gd,gd->g", step, shapes.gradient)
        return np.maximum(potential - shapes.potential - rise, 0.0)

    def _apart(self, shapes: Array, potential: Array) -> Float[Array, " g"]:
        """``KL(typical shape || shape)`` of averages of shapes."""
        mean, slope, at = self.typical
        return np.maximum(potential - at - (shapes - mean) @ slope, 0.0)

    @functools.cached_property
    def typical(self) -> tuple[Array, Array, float]:
        """The average of all shapes, its dual, and its potential."""
        assert self.shapes is not None
        mean, slope = self.shapes.middle
        return mean[0], slope[0], float(self.shapes.potential_at(mean)[0])

    def surprise(self, centroids: Centroids) -> Float[Array, " g"]:
        """What averages of natural parameters say beyond the population: ``KL(. || population)``,
        or that of the average component's location, where shapes are priced by themselves.
        """
        if self.criterion.both:
            return np.full(len(centroids.potential), self.criterion.place)
        return self.population.divergences(centroids)[0]

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
        """From the potentials of all components, and of their shapes, added up."""
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
    every = Points.of(several[0].template.with_mean_parameters(means))
    surprise = every.potential - [points.potential.mean() for points in several] + inner
    surprise = np.maximum(surprise - np.einsum("nd,nd->n", every.coordinates, means), 0.0)
    parts = [slice(n, n + 1) for n in range(len(several))]
    each = [
        dataclasses.replace(
            every, coordinates=every.coordinates[one], potential=every.potential[one]
        )
        for one in parts
    ]
    return list(zip(each, surprise.tolist(), strict=True))


class Before(NamedTuple):
    """What was known of the clustering that another is made of, which has its ``kept`` groups; in
    those that are ``moved`` members changed.
    """

    centroids: Centroids
    closest: Nearest | None
    costs: Float[Array, "n old"] | None
    kept: Int[Array, " g"]
    moved: Bool[Array, " g"]


@dataclasses.dataclass(frozen=True)
class Clustering:
    """Labels ``0 .. G - 1`` of all components, with the centroids that fit them best."""

    local: LocalComponents
    labels: Int[Array, " n"]

    @functools.cached_property
    def counts(self) -> Float[Array, " g"]:
        """Components in each group."""
        return np.bincount(self.labels).astype(float)

    @functools.cached_property
    def totals(self) -> Float[Array, "g dim"]:
        """Sums of the coordinates of each group's components."""
        return sums(self.local.points.coordinates, self.labels)

    @functools.cached_property
    def shape_totals(self) -> Float[Array, "g dim"]:
        """The same of their shapes; there are some."""
        shapes = self.local.shapes
        assert shapes is not None
        return sums(shapes.coordinates, self.labels)

    @functools.cached_property
    def centroids(self) -> Centroids:
        """Each group's average, with its gradient."""
        points, before = self.local.points, self._before
        if before is None:
            return points.centroids(self.totals / self.counts[:, None])
        moved = before.moved
        mine = points.centroids(self.totals[moved] / self.counts[moved, None])
        return before.centroids.take(before.kept).with_moved(moved, mine)

    _before: ClassVar["Before | None"] = None
    """The statistics of the clustering that this one was made of, if most of its groups stay."""

    @functools.cached_property
    def misfit(self) -> float:
        """Summed divergence of components to their centroids: a sum of Jensen gaps, in nats."""
        gap = self.local.points.potential.sum() - self.counts @ self.centroids.potential
        return max(float(gap), 0.0)

    @functools.cached_property
    def objective(self) -> float:
        """Description length, in nats: what choosing the number of components minimises."""
        return self.judged.length(self.local.criterion, self.counts)

    @functools.cached_property
    def judged(self) -> Judged:
        """What the number of groups is judged by."""
        local, counts = self.local, self.counts
        points, centroids, shapes = local.judged, self.centroids, local.shapes
        if local.forward:
            centroids = points.centroids(sums(points.coordinates, self.labels) / counts[:, None])
        centres = centroids.coordinates
        if shapes is not None:
            centres = np.hstack([centres, self.shape_totals / counts[:, None]])
        evidence = local.evidence_of(centroids, centres)
        return Judged.of(centres, evidence, counts, *local.totals)

    def same(self, other: "Clustering") -> bool:
        """True for the same partition, whatever the numbers of its groups."""
        groups = len(self.counts)
        pairs = self.labels * len(other.counts) + other.labels
        together = int(np.count_nonzero(np.bincount(pairs)))
        return groups == len(other.counts) == together

    @functools.cached_property
    def _costs(self) -> Float[Array, "n g"] | None:
        """All divergences, unless they take more than :data:`ROOM`."""
        points, centroids, before = self.local.points, self.centroids, self._before
        if 8 * len(points) * len(self.counts) > ROOM:
            return None
        if before is None or before.costs is None:
            return points.divergences(centroids)
        costs = before.costs[:, before.kept]
        costs[:, before.moved] = points.divergences(centroids.take(before.moved))
        return costs

    def costs(self, rows: Any = slice(None)) -> Float[Array, "some g"]:
        """Divergence of components to every centroid."""
        if self._costs is not None:
            return self._costs[rows]
        return self.local.points.take(rows).divergences(self.centroids)

    @property
    def own_costs(self) -> Float[Array, " n"]:
        """Divergence of every component to its centroid."""
        return self.local.points.paired_divergences(self.centroids, self.labels)

    @property
    def nearest(self) -> Int[Array, " n"]:
        """Each site's best assignment to these centroids."""
        return self._nearest[0]

    @property
    def contested(self) -> Int[Array, " some"]:
        """The sites of which several components are nearest to one centroid."""
        return self._nearest[1]

    @functools.cached_property
    def _nearest(self) -> tuple[Int[Array, " n"], Int[Array, " some"]]:
        local = self.local
        labels = self._closest.groups.copy() if self._costs is None else cheapest(self._costs)
        sites = contested(labels, local.site, len(self.counts))
        for some in chunks(len(sites), 8 * len(self.counts) * local.largest(), PIECE):
            rows, bounds = local.rows_of(sites[some])
            labels[rows] = assign(self.costs(rows), bounds)
        return labels, sites

    @functools.cached_property
    def _closest(self) -> Nearest:
        """The nearest centroid of each component, whatever the others of its site have."""
        points, before = self.local.points, self._before
        if before is None or before.closest is None:
            return points.nearest(self.centroids)
        place = np.full(len(before.centroids.potential), -1)
        place[before.kept] = np.arange(len(before.kept))
        known = before.closest._replace(groups=place[before.closest.groups])
        return points.nearest_again(known, self.centroids, before.moved)

    def relabelled(self, labels: Int[Array, " n"]) -> "Clustering":
        """Other labels; groups that nobody uses disappear.

        Where few of very many components get another label, only these are added up; where few of
        many groups change, only these are looked at again.
        """
        groups = len(self.counts)
        new = Clustering(self.local, packed(labels, groups))
        few = len(labels) <= MANY
        if (few and groups < SEVERAL) or labels.max() >= groups:
            return new
        moved, kept = np.flatnonzero(labels != self.labels), _kept(labels, groups)
        if not len(moved):
            return self
        changed = np.zeros(groups, bool)
        changed[labels[moved]] = changed[self.labels[moved]] = True
        if "centroids" in vars(self) and 2 * np.count_nonzero(changed[kept]) <= len(kept):
            known = vars(self).get("_closest"), vars(self).get("_costs")
            vars(new)["_before"] = Before(self.centroids, *known, kept, changed[kept])
        if few or 4 * len(moved) > len(labels):
            return new
        local, both = self.local, np.concatenate([labels[moved], self.labels[moved]])
        for name, points in (("totals", local.points), ("shape_totals", local.shapes)):
            if points is not None and name in vars(self):
                rows = points.coordinates[moved]
                change = sums(np.concatenate([rows, -rows]), both, groups)
                vars(new)[name] = (vars(self)[name] + change)[kept]
        return new


def packed(labels: Int[Array, " n"], groups: int) -> Int[Array, " n"]:
    """Labels without gaps: the last groups take the numbers, below ``groups``, of empty ones."""
    kept = _kept(labels, groups)
    number = np.zeros(kept.max() + 1, int)
    number[kept] = np.arange(len(kept))
    return labels if len(number) == len(kept) else number[labels]


def _kept(labels: Int[Array, " n"], groups: int) -> Int[Array, " g"]:
    """The label that each group has once they are :func:`packed`."""
    used = np.bincount(labels, minlength=groups) > 0
    left = int(used.sum())
    kept = np.arange(left)
    kept[~used[:left]] = left + np.flatnonzero(used[left:])
    return kept


def sums(
    rows: Float[Array, "n dim"], labels: Int[Array, " n"], groups: int | None = None
) -> Float[Array, "g dim"]:
    """Sums of the rows of each label, of ``groups`` or of as many as there are."""
    groups, total = int(labels.max()) + 1 if groups is None else groups, len(labels)
    if groups * total <= SMALL:
        return np.eye(groups)[:, labels] @ rows
    ones, ends = np.ones(total), np.arange(total + 1)
    return scipy.sparse.csc_array((ones, labels, ends), shape=(groups, total)) @ rows


def assign(
    costs: Float[Array, "n g"], starts: Int[Array, " bounds"], price: float = np.inf
) -> Int[Array, " n"]:
    """Each site's best assignment of its rows to different columns (kuhn1955).

    A row may also stay alone at a ``price``, if that is finite: it is then labelled ``g``.
    """
    labels, groups = cheapest(costs), costs.shape[1]
    if price < np.inf:
        labels[costs[np.arange(len(costs)), labels] > price] = groups
    # Where the nearest columns differ already, they are the best assignment.
    site = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    for at in contested(labels, site, groups).tolist():
        rows = slice(starts[at], starts[at + 1])
        own = costs[rows]
        if price < np.inf:
            own = np.hstack([own, np.full((len(own), len(own)), price)])
        labels[rows] = np.minimum(assignment(own), groups)
    return labels


def contested(labels: Int[Array, " n"], site: Int[Array, " n"], groups: int) -> Int[Array, " some"]:
    """The sites of which two rows have one label below ``groups``."""
    width = groups + 1
    pairs = site * width + labels
    if int(site[-1] + 1) * width <= 8 * len(labels):  # less than sorting, where there is room
        taken = np.flatnonzero(np.bincount(pairs) > 1)
    else:
        pairs = np.sort(pairs)
        taken = pairs[1:][pairs[1:] == pairs[:-1]]
    return np.unique(taken[taken % width < groups] // width) if len(taken) else taken


def refine(clustering: Clustering, *, sweeps: int = 20) -> Clustering:
    """Alternate assignment and centroids at a fixed number of groups; the misfit only falls."""
    for _ in range(sweeps):
        if (clustering.nearest == clustering.labels).all():
            break
        proposal = clustering.relabelled(clustering.nearest)
        fewer = len(proposal.counts) < len(clustering.counts)
        if fewer or proposal.misfit >= clustering.misfit * (1 - 1e-9):
            break
        clustering = proposal
    return clustering


def polish(clustering: Clustering, *, sweeps: int = 10) -> Clustering:
    """Reassign site by site, each time without the site's own pull on the centroids.

    Alternation stalls where a component holds a centroid in place; taking the site out first
    and charging ``n / (n + 1)`` of the divergence, what joining ``n`` others costs to second
    order, does not. A site's change is kept only if the misfit falls.
    """
    for _ in range(sweeps):
        changed = _accept(clustering, _leave_one_out(clustering))
        if changed is None:
            break
        clustering = changed
    return clustering


def _leave_one_out(clustering: Clustering) -> Int[Array, " n"]:
    """Each site's best labels, against centroids of all other sites' components."""
    local, counts, labels = clustering.local, clustering.counts, clustering.labels
    out = np.empty_like(labels)
    for rows, starts in local.parts(len(counts)):
        points, own = local.points.take(rows), labels[rows]
        weighted = clustering.costs(rows) * (counts / (counts + 1))
        # A group of one's own keeps its centroid, which staying costs nothing.
        left = np.maximum(counts[own] - 1, 1.0)[:, None]
        total, shared = clustering.totals[own], counts[own] > 1
        without = np.where(shared[:, None], (total - points.coordinates) / left, points.coordinates)
        others, share = points.centroids(without), np.where(shared, (left / (left + 1))[:, 0], 1.0)
        sizes = np.diff(starts)
        for size in set(sizes.tolist()):
            at = starts[:-1][sizes == size, None] + np.arange(size)
            costs = points.own_divergences(at, others) * share[at][:, None, :]
            weighted[at[:, :, None], own[at][:, None, :]] = costs
        out[rows] = assign(weighted, starts)
    return out


def _accept(clustering: Clustering, proposals: Int[Array, " n"]) -> Clustering | None:
    """Apply the proposals of one site after another where the misfit falls; None if nowhere."""
    local, points = clustering.local, clustering.local.points
    labels, counts = clustering.labels.copy(), clustering.counts.copy()
    total = clustering.centroids.coordinates * counts[:, None]
    potential = clustering.centroids.potential.copy()
    threshold, changed = 1e-9 * clustering.misfit, False
    moving = np.flatnonzero(proposals != labels)
    for rows in np.split(moving, np.flatnonzero(np.diff(local.site[moving])) + 1):
        before, after = labels[rows], proposals[rows]
        groups, place = np.unique(np.concatenate([before, after]), return_inverse=True)
        sign = np.repeat([-1.0, 1.0], len(rows))
        new_counts = counts[groups] + np.bincount(place, sign)
        if (new_counts == 0).any() or not len(rows):
            continue
        moves = sign[:, None] * np.tile(points.coordinates[rows], (2, 1))
        new_total = total[groups] + sums(moves, place)
        moved = points.centroids(new_total / new_counts[:, None]).potential
        gain = new_counts @ moved - counts[groups] @ potential[groups]
        if gain <= threshold:
            continue
        labels[rows], total[groups], counts[groups] = after, new_total, new_counts
        potential[groups], changed = moved, True
    return Clustering(local, labels) if changed else None
