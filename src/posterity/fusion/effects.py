"""Matching of components of sites that differ by far more than sampling.

A dispersion explains any distance between matched components as a difference of sites. If matched
components lie several standard deviations of a record apart, the scale of these differences is
estimated together with the matches. The location of a component, and the logarithm of its
covariance, are normal draws from a population plus a normal difference of the site. Matches and
variances within groups maximise the marginal likelihood, as in yurochkin2019 for means.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy

from posterity.arrays.typing import Bool, Float, Int
from posterity.families import ExponentialFamily
from posterity.families.normal_wishart import NormalPrecision
from posterity.fusion.clustering import Clustering, assign, sums

Array = np.ndarray
DIRECTIONS = 128  # Largest number of directions of a location that is rematched
MOST = 1024  # Largest number of components that is rematched
SHARES = np.concatenate([[0.001, 0.003], np.arange(0.01, 0.1, 0.02), np.arange(0.1, 1.01, 0.06)])
"""Candidates for the share of the variance that lies within groups."""


def differ(clustering: Clustering) -> bool:
    """Return whether matched components lie so far apart that their dispersion, which costs only
    its logarithm, is no evidence against a match (``far`` of :class:`.DescriptionLength`).
    """
    judged = clustering.judged
    criterion = clustering.local.criterion
    spare = (criterion.total - len(judged.centres)) * criterion.located
    limit = criterion.numbers.far * criterion.expected * spare
    few = criterion.located <= DIRECTIONS and criterion.total <= MOST
    return bool(few and 2 * (judged.misfit - judged.shape) > limit > 0)


class Trait:
    """One property of components, as centred points with the same scatter in all directions.
    Variances within groups above the ``expected`` one are penalised, with the weight of as many
    ``matches``.
    """

    def __init__(
        self, points: Float[Array, "n size"], expected: float = np.inf, matches: float = 0.0
    ):
        self.points = points - points.mean(0)
        self.squares = (self.points**2).sum(1)
        self.size = points.shape[1]
        self.expected = expected
        self.matches = matches
        self.variance = max(float((self.points**2).mean()), np.finfo(float).tiny)

    def evidence(self, share: float, number: Any, middle: Any, square: Any) -> Any:
        """Return the log density of groups minus that of ungrouped members, for a ``share`` of the
        variance within groups. Groups are described by the ``number`` of members, the squared
        length of their sum (``middle``) and the sum of their squared lengths (``square``).
        """
        within = share * self.variance
        total = self.variance
        whole = within + number * (total - within)
        middle = middle / np.maximum(number, 1)
        quadratic = (square - middle) / within + middle / whole - square / total
        logs = (number - 1) * np.log(within) + np.log(whole) - number * np.log(total)
        return -np.where(number > 0, quadratic + self.size * logs, 0.0) / 2

    def unexpected(self, share: float) -> float:
        """Return the penalty of a share, in nats."""
        ratio = min(self.expected / (share * self.variance), 1.0)
        return self.matches * self.size / 2 * (ratio - 1 - np.log(ratio))


@dataclasses.dataclass(frozen=True)
class Effects:
    """The most likely groups (``labels``) of components of sites that differ, and the share of the
    variance of each trait that lies within groups. Components of sites begin at ``starts``; groups
    have at most one of each site.
    """

    starts: Int[Array, " bounds"]
    labels: Int[Array, " n"]
    traits: tuple[Trait, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(
        cls,
        clustering: Clustering,
        *,
        starts: Sequence[float] = (0.003, 0.03, 0.1, 0.2, 0.35, 0.6),
        equal: float = 1e-12,
    ) -> "Effects":
        """Return the most likely groups, or groups of one component each, if the evidence does not
        exceed the logarithm of the number of ways to choose as many matches. Matching begins at
        each of the shares ``starts`` of location. Log covariances with a variance up to ``equal``
        differ by rounding alone, and are not used.
        """
        local = clustering.local
        criterion = local.criterion
        traits = [Trait(local.places, criterion.expected, criterion.numbers.matches)]
        members = local.judged.members(slice(None))
        shape = isinstance(members, NormalPrecision) and Trait(_log_covariances(members))
        if shape and shape.variance > equal:
            traits.append(shape)
        alone = cls(local.starts, np.arange(len(local.points)), tuple(traits), ())
        met = dataclasses.replace(alone, labels=clustering.labels).with_scale()
        rest = [1.0] * (len(traits) - 1)
        begun = [dataclasses.replace(alone, shares=(share, *rest)) for share in starts]
        best = max((start.improved() for start in [met, *begun]), key=operator.attrgetter("worth"))
        return best if best.worth > best.ways else dataclasses.replace(alone, shares=best.shares)

    def gains(self, site: int) -> tuple[Float[Array, "k g"], Int[Array, " n"]]:
        """Return the nats that each component of a site gains by joining each group of the other
        sites, and these groups' labels (n,), -1 for the site itself.
        """
        own = slice(*self.starts[site : site + 2])
        rest = np.ones(len(self.labels), bool)
        rest[own] = False
        labels = np.unique(self.labels[rest], return_inverse=True)[1]
        out = np.full(len(rest), -1)
        out[rest] = labels
        groups = int(labels.max()) + 1
        number = np.bincount(labels)
        total = 0.0
        for trait, share in zip(self.traits, self.shares, strict=True):
            others = trait.points[rest]
            x = trait.points[own]
            square = trait.squares[own, None]
            middle = sums(others, labels, groups)
            length = (middle**2).sum(1)
            inner = np.bincount(labels, trait.squares[rest])
            both = length + 2 * x @ middle.T + square
            total = total + trait.evidence(share, number + 1, both, inner + square)
            total = total - trait.evidence(share, number, length, inner)
        return np.asarray(total), out

    def with_scale(self) -> "Effects":
        """Return the same groups with the most likely shares of variances."""
        best = [
            max(SHARES.tolist(), key=functools.partial(self._worth, trait)) for trait in self.traits
        ]
        return dataclasses.replace(self, shares=tuple(best))

    def _worth(self, trait: Trait, share: float) -> float:
        labels = self.labels
        length = (sums(trait.points, labels) ** 2).sum(1)
        inner = np.bincount(labels, trait.squares)
        nats = trait.evidence(share, np.bincount(labels), length, inner).sum()
        return float(nats) - trait.unexpected(share)

    @functools.cached_property
    def worth(self) -> float:
        """Nats by which these groups are better than no groups."""
        if len(np.unique(self.labels)) == len(self.labels):
            return 0.0
        return sum(self._worth(*own) for own in zip(self.traits, self.shares, strict=True))

    @property
    def ways(self) -> float:
        """Logarithm of the number of ways to choose as many matches, site after site."""
        total = 0.0
        seen = set(self.labels[: self.starts[1]].tolist())
        for first, end in zip(self.starts[1:-1], self.starts[2:], strict=True):
            own = set(self.labels[first:end].tolist())
            k = len(own)
            l = len(seen)
            n = len(seen & own)
            logs = scipy.special.gammaln(np.array([k, l, k - n, l - n, n]) + 1)
            total += float(np.log(min(k, l) + 1) + logs @ [1, 1, -1, -1, -1])
            seen |= own
        return total

    def improved(self, *, sweeps: int = 10) -> "Effects":
        """Rematch site by site, and refit the shares, until the evidence does not rise."""
        current = self
        for _ in range(sweeps):
            before = current
            for site in range(len(self.starts) - 1):
                current = current._matched(site)
            current = current.with_scale()
            if current.worth <= before.worth:
                break
        return current

    def _matched(self, site: int) -> "Effects":
        gains, labels = self.gains(site)
        own = assign(-gains, np.array([0, len(gains)]), 0.0)
        groups = gains.shape[1]
        own = np.where(own == groups, groups + np.arange(len(own)), own)
        labels[labels < 0] = own
        return dataclasses.replace(self, labels=np.unique(labels, return_inverse=True)[1])

    @functools.cached_property
    def margins(self) -> Float[Array, " n"]:
        """Nats lost if each component is elsewhere, ungrouped or in another group, rather than
        where it is, with the others of its site where they are best in either case.
        """
        return np.array([lost for site in range(len(self.starts) - 1) for lost in self._lost(site)])

    def _lost(self, site: int) -> Iterator[float]:
        gains, labels = self.gains(site)
        k, groups = gains.shape
        own = self.labels[slice(*self.starts[site : site + 2])]
        pairs = np.stack([self.labels, labels])[:, labels >= 0]
        place = dict(pairs.T.tolist())
        # Columns beyond the groups are places of their own.
        here = [place.get(label, groups + row) for row, label in enumerate(own.tolist())]
        costs = np.hstack([-gains, np.where(np.eye(k, dtype=bool), 0.0, np.inf)])

        def least(row: int, allowed: Bool[Array, " places"]) -> float:
            """Return the least cost of the site's components if one has an allowed place."""
            other = costs.copy()
            other[row, ~allowed] = np.inf
            return float(other[scipy.optimize.linear_sum_assignment(other)].sum())

        for row, place in enumerate(here):
            kept = np.arange(costs.shape[1]) == place
            yield least(row, ~kept) - least(row, kept)


def _log_covariances(members: ExponentialFamily) -> Float[Array, "n numbers"]:
    """Return logarithms of expected covariances relative to their mean, as vectors."""
    law: Any = members
    covariances = np.asarray(law.inverse_scale)
    degrees = np.asarray(law.degrees_of_freedom)
    if covariances.ndim == 2:  # variances
        return np.log(covariances / degrees)
    covariances = covariances / degrees[:, None, None]
    root = np.linalg.inv(np.linalg.cholesky(covariances.mean(0)))
    values, vectors = np.linalg.eigh(root @ covariances @ root.T)
    logs = (vectors * np.log(values)[:, None]) @ vectors.swapaxes(1, 2)
    one, other = np.triu_indices(logs.shape[1])
    return logs[:, one, other] * np.where(one == other, 1.0, np.sqrt(2))
