"""Groups by the evidence of their pooled records, for families without a location.

If sites have one prior and counts are known, the log marginal likelihood of the records of several
components as one is a difference of log normalisers, for any numbers of records. If sites differ
with variance ``v``, in units of the variance of one record, ``n`` records are worth only
``n / (1 + n v)``. The most likely ``v`` is used. The normaliser of such scaled records depends on
``v``, so groups are compared with single components at the same ``v`` (jorgensen1987). Which site
has which component follows an Indian buffet, as in :mod:`.criterion`.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import scipy

from posterity.arrays.canonical import canonical_mean
from posterity.arrays.typing import Float, Int
from posterity.families import ExponentialFamily
from posterity.fusion.clustering import Clustering, sums
from posterity.fusion.geometry import PIECE, chunks
from posterity.fusion.grouping import Grouping

Array = np.ndarray
VARIANCES = np.array([0.0, 0.001, 0.01, 0.1, 1.0, 10.0])
"""Candidates for the variance between sites, in units of the variance of one record."""
EXPECTED = 0.001  # Scale of the variance in its penalty
MOST = 512  # Largest number of groups of which all pairs are compared
COMPONENTS, NUMBERS = 2048, 2**25
"""Largest number of components, and of floats in all pairs of a component and a group."""


@dataclasses.dataclass(frozen=True)
class Pooled(Grouping):
    """Components in groups: the factor of each relative to one ``prior``, its number of records,
    and the variance between sites.
    """

    family: ExponentialFamily
    prior: Float[Array, " dim"]
    learnt: Float[Array, "n dim"]
    counts: Float[Array, " n"]
    variance: float = 0.0

    @classmethod
    def of(
        cls, clustering: Clustering, priors: Float[Array, "n dim"], counts: Float[Array, " n"]
    ) -> "Pooled":
        """Return the most likely groups, starting from a clustering; ``priors`` are the natural
        parameters of its rows' priors.
        """
        judged, starts = clustering.local.judged, clustering.local.starts
        prior, learnt = canonical_mean(priors), judged.coordinates - priors
        begun = cls(starts, clustering.labels, judged.family(prior[None]), prior, learnt, counts)
        ends = []
        for variance in VARIANCES[::2].tolist():
            current = dataclasses.replace(begun, variance=variance)
            while True:
                better = current.merged().improved()
                if better.worth <= current.worth:
                    break
                current = better
            ends.append(current)
        return max(ends, key=lambda end: end.worth)

    @staticmethod
    def serves(clustering: Clustering) -> bool:
        """Return whether components have no location, and there are not too many."""
        local = clustering.local
        pairs = local.criterion.total * len(clustering.counts)
        few = local.criterion.total <= COMPONENTS
        return (
            few
            and not local.criterion.located
            and pairs * local.judged.template.dimension <= NUMBERS
        )

    @functools.cached_property
    def records(self) -> Float[Array, "n dim"]:
        """The factors of components, scaled for the variance between sites."""
        return self.learnt / (1 + self.counts * self.variance)[:, None]

    def evidence(self, records: Float[Array, "m dim"]) -> Float[Array, " m"]:
        """Return the log marginal likelihood of records, up to a term that no grouping changes."""
        out, none = np.empty(len(records)), self.family.log_normalizer()
        for some in chunks(len(records), 32 * records.shape[1], PIECE):
            out[some] = self.family.evaluated(self.prior + records[some])[0] - none
        return out

    @functools.cached_property
    def alone(self) -> Float[Array, " n"]:
        """The evidence of each component as a group of its own."""
        return self.evidence(self.records)

    @functools.cached_property
    def worth(self) -> float:
        """Nats by which these groups are better than groups of one component each."""
        groups, number = self.evidence(sums(self.records, self.labels)), np.bincount(self.labels)
        alone = (self.alone - self._presence(np.ones(1))).sum()
        against = np.log1p(self.variance / EXPECTED) / 2
        return float((groups - self._presence(number)).sum() - alone - against)

    def _presence(self, number: Any) -> Any:
        """Return the negative log probability that these sites, of all, have a group."""
        sites, gammaln = len(self.starts) - 1, scipy.special.gammaln
        return gammaln(sites + 1) - gammaln(number + 1) - gammaln(sites - number + 1)

    def with_scale(self) -> "Pooled":
        """Return the same groups with the most likely variance between sites."""
        tried = [dataclasses.replace(self, variance=v) for v in VARIANCES.tolist()]
        return max(tried, key=lambda one: one.worth)

    def gains(self, site: int) -> tuple[Float[Array, "k g"], Int[Array, " n"]]:
        """Return the gains of :meth:`.Grouping.gains` by the evidence of pooled records."""
        own, rest, labels, out = self.without(site)
        groups, number = sums(self.records[rest], labels), np.bincount(labels)
        mine = self.records[own]
        both = self.evidence((mine[:, None] + groups).reshape(-1, groups.shape[1]))
        gains = both.reshape(len(mine), -1) - self.evidence(groups) - self.alone[own, None]
        return gains - self._more(number, 1), out

    def _more(self, one: Any, other: Any) -> Any:
        """Return the change of the presence terms if two groups are merged."""
        presence = self._presence
        return presence(one + other) - presence(one) - presence(other)

    def merging(self) -> tuple[Float[Array, " pairs"], Int[Array, "2 pairs"]]:
        """Return the nats gained by merging groups without a common site, and all such pairs."""
        groups, number = sums(self.records, self.labels), np.bincount(self.labels)
        holds = np.zeros((len(self.starts) - 1, len(groups)))
        holds[np.repeat(np.arange(len(holds)), np.diff(self.starts)), self.labels] = 1.0
        pairs = np.stack(np.nonzero(np.triu(holds.T @ holds == 0, 1)))
        if len(groups) > MOST:
            pairs = pairs[:, :0]
        alone, (one, other) = self.evidence(groups), pairs
        gains = self.evidence(groups[one] + groups[other]) - alone[one] - alone[other]
        return gains - self._more(number[one], number[other]), pairs

    def merged(self) -> "Pooled":
        """Merge groups, the most likely pairs first, as long as this is a gain."""
        current = self
        while True:
            gains, pairs = current.merging()
            if not (gains > 0).any():
                return current
            into, taken = np.arange(len(np.bincount(current.labels))), set()
            for at in np.argsort(-gains, kind="stable")[: int((gains > 0).sum())].tolist():
                one, other = pairs[:, at].tolist()
                if taken.isdisjoint((one, other)):
                    taken |= {one, other}
                    into[other] = one
            labels = np.unique(into[current.labels], return_inverse=True)[1]
            current = dataclasses.replace(current, labels=labels)

    @functools.cached_property
    def levels(self) -> dict[int, float]:
        """Nats by which one group fewer is worse."""
        groups, (gains, _) = len(np.bincount(self.labels)), self.merging()
        levels = {groups: 0.0}
        if len(gains):
            levels[groups - 1] = float(-gains.max())
        return levels
