"""Sites that differ by more than components do in themselves: which of these are one.

A dispersion takes any distance between matched components for a difference of sites. Where they lie
several deviations of a record apart, that is to be learned together with the matches: where a
component lies, and the logarithm of its covariance, are a draw from a population plus a difference
of the site, all normal. The matches, and the variances within groups, are those of the highest
marginal likelihood, as yurochkin2019 has it for means.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int
from posterity.families import ExponentialFamily
from posterity.families.normal_wishart import NormalPrecision
from posterity.fusion.agglomeration import Places
from posterity.fusion.clustering import Clustering, sums
from posterity.fusion.criterion import MATCHES
from posterity.fusion.grouping import Grouping

Array = np.ndarray
APART = 10.0
"""Times that location has the dispersion that is expected, from which matched components are no
copies of one as such: they are four deviations of a record apart, all directions together."""
DIRECTIONS, MOST = 128, 1024
"""Directions of a location, and components, up to which they are matched anew."""
SHARES = np.concatenate([[0.001, 0.003], np.arange(0.01, 0.1, 0.02), np.arange(0.1, 1.01, 0.06)])
"""Shares of the variance of all components that are tried as those within groups."""
STARTS = (0.003, 0.03, 0.1, 0.2, 0.35, 0.6)  # The same of location with which the matching begins
EQUAL = 1e-12
"""Variance of log covariances that are the same but for rounding, which tell nothing apart."""


def differ(clustering: Clustering) -> bool:
    """Return whether matched components lie so far apart that the dispersion of location, which
    costs no more than its logarithm, has swallowed what would tell that they are not one.
    """
    judged, criterion = clustering.judged, clustering.local.criterion
    spare = (criterion.total - len(judged.centres)) * criterion.located
    few = criterion.located <= DIRECTIONS and criterion.total <= MOST
    return bool(few and 2 * (judged.misfit - judged.shape) > APART * criterion.expected * spare > 0)


class Trait:
    """One property of components, as points about their middle whose scatter is alike in all
    directions; variances within groups below the ``expected`` one speak against nothing.
    """

    def __init__(self, points: Float[Array, "n size"], expected: float = np.inf):
        self.points = points - points.mean(0)
        self.squares = (self.points**2).sum(1)
        self.size, self.expected = points.shape[1], expected
        self.variance = max(float((self.points**2).mean()), np.finfo(float).tiny)

    def evidence(self, share: float, number: Any, middle: Any, square: Any) -> Any:
        """Return the log density of groups, beside that of the same as strangers, where so large a
        share of the variance lies within groups: by the number of members, the squared length of
        their sum (``middle``) and the sum of their squared lengths.
        """
        within, total = share * self.variance, self.variance
        whole = within + number * (total - within)
        middle = middle / np.maximum(number, 1)
        quadratic = (square - middle) / within + middle / whole - square / total
        logs = (number - 1) * np.log(within) + np.log(whole) - number * np.log(total)
        return -np.where(number > 0, quadratic + self.size * logs, 0.0) / 2

    def unexpected(self, share: float) -> float:
        """Nats that speak against so large a share (:data:`.criterion.MATCHES`)."""
        ratio = min(self.expected / (share * self.variance), 1.0)
        return MATCHES * self.size / 2 * (ratio - 1 - np.log(ratio))


@dataclasses.dataclass(frozen=True)
class Effects(Grouping):
    """Components of sites in the groups (``labels``) that are likeliest where these differ, and the
    share of the variance of each trait that lies within groups.
    """

    traits: tuple[Trait, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, clustering: Clustering) -> "Effects":
        """The likeliest groups; every component alone, if they are no better than the best of so
        many ways to choose them would be by chance.
        """
        local = clustering.local
        traits = [Trait(Places.of(local).points, local.criterion.expected)]
        members = local.judged.members(slice(None))
        shape = isinstance(members, NormalPrecision) and Trait(_log_covariances(members))
        if shape and shape.variance > EQUAL:
            traits.append(shape)
        alone = cls(local.starts, np.arange(len(local.points)), tuple(traits), ())
        met = dataclasses.replace(alone, labels=clustering.labels).with_scale()
        rest = [1.0] * (len(traits) - 1)
        begun = [dataclasses.replace(alone, shares=(share, *rest)) for share in STARTS]
        best = max((start.improved() for start in [met, *begun]), key=lambda end: end.worth)
        return best if best.worth > best.ways else dataclasses.replace(alone, shares=best.shares)

    def gains(self, site: int) -> tuple[Float[Array, "k g"], Int[Array, " n"]]:
        """Nats by the traits of components."""
        own, rest, labels, out = self.without(site)
        groups = int(labels.max()) + 1
        number, total = np.bincount(labels), 0.0
        for trait, share in zip(self.traits, self.shares, strict=True):
            others, x, square = trait.points[rest], trait.points[own], trait.squares[own, None]
            middle = sums(others, labels, groups)
            length = (middle**2).sum(1)
            inner = np.bincount(labels, trait.squares[rest])
            both = length + 2 * x @ middle.T + square
            total = total + trait.evidence(share, number + 1, both, inner + square)
            total = total - trait.evidence(share, number, length, inner)
        return np.asarray(total), out

    def with_scale(self) -> "Effects":
        """The shares of variances that are likeliest."""
        best = [
            max(SHARES.tolist(), key=lambda share, trait=trait: self._worth(trait, share))
            for trait in self.traits
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
        """Nats by which these groups are better than none."""
        if len(np.unique(self.labels)) == len(self.labels):
            return 0.0
        return sum(self._worth(*own) for own in zip(self.traits, self.shares, strict=True))

    @property
    def ways(self) -> float:
        """Logarithm of the number of ways to choose as many matches, site after site."""
        log = lambda n: float(scipy.special.gammaln(n + 1))
        total, seen = 0.0, set(self.labels[: self.starts[1]].tolist())
        for first, end in zip(self.starts[1:-1], self.starts[2:], strict=True):
            own = self.labels[first:end].tolist()
            k, l, n = len(own), len(seen), len(seen & set(own))
            total += np.log(min(k, l) + 1) + log(k) + log(l) - log(k - n) - log(l - n) - log(n)
            seen |= set(own)
        return float(total)


def _log_covariances(members: ExponentialFamily) -> Float[Array, "n numbers"]:
    """Logarithms of expected covariances beside their mean, as vectors as long as these."""
    law: Any = members
    covariances, degrees = np.asarray(law.inverse_scale), np.asarray(law.degrees_of_freedom)
    if covariances.ndim == 2:  # variances
        return np.log(covariances / degrees)
    covariances = covariances / degrees[:, None, None]
    root = np.linalg.inv(np.linalg.cholesky(covariances.mean(0)))
    values, vectors = np.linalg.eigh(root @ covariances @ root.T)
    logs = (vectors * np.log(values)[:, None]) @ vectors.swapaxes(1, 2)
    one, other = np.triu_indices(logs.shape[1])
    return logs[:, one, other] * np.where(one == other, 1.0, np.sqrt(2))
