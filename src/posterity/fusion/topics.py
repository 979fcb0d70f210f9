"""Merging of topics by the evidence of their words.

A topic's posterior is its prior plus counts of words. So the evidence for a merge is known: the log
marginal likelihood of the words of several topics as one, minus the sum of each topic's own. Topics
are merged greedily by this evidence (heller2005). But documents are mixtures of topics, and a topic
that does not improve prediction costs every document. So the least number of topics is chosen whose
words are within one standard error as likely as those of the best number (breiman1984). Topics of
one site may be merged if their prior is known, which is then counted once; otherwise they are not.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from posterity.arrays.canonical import canonical_mean
from posterity.arrays.typing import Bool, Float, Int
from posterity.families import ExponentialFamily, stack
from posterity.fusion.absorb import of_one_label
from posterity.fusion.block_table import HASH, BlockTable
from posterity.fusion.blocks import Block, MemberPriors
from posterity.fusion.clustering import Clustering
from posterity.fusion.confidence import Confidence
from posterity.fusion.matching import canonical_order

Array = np.ndarray
TOGETHER = 512  # Number of new topics that are merged together with the previous ones
SEEN = 1e-3  # Counts up to this are zero: variational fits leave such counts for absent words


def are_topics(block: Block | BlockTable) -> bool:
    """Return whether a block is a plate of laws of symbols without mixing weights (topics)."""
    like: Any = block.like
    return like.is_plate and like.weights is None and like.members.emits_symbols


class Words:
    """The counts (n, V) of words in topics, relative to the ``prior`` (V,); :meth:`put` changes
    them.
    """

    def __init__(self, counts: Float[Array, "n words"], prior: Float[Array, " words"]):
        self.prior = prior
        self.counts = np.zeros(counts.shape)
        self.totals = np.zeros(len(counts))
        # By word, so that the words of a topic are contiguous rows.
        self.roots = np.zeros(counts.T.shape, np.float32)
        for row, own in enumerate(counts):
            self.put(row, own)

    def put(self, row: int, counts: Float[Array, " words"]) -> None:
        """Set the counts of a topic."""
        seen = np.flatnonzero(counts > SEEN)
        some = counts[seen]
        self.counts[row] = 0.0
        self.roots[:, row] = 0.0
        self.counts[row, seen] = some
        self.totals[row] = some.sum()
        self.roots[seen, row] = np.sqrt(some / max(some.sum(), SEEN))

    def gains(self, row: int, others: Int[Array, " m"]) -> Float[Array, " m"]:
        """Return the nats gained by merging a topic with each of the others."""
        seen = np.flatnonzero(self.counts[row])  # other words gain nothing
        own = self.counts[row, seen]
        gain = _together(self.prior[seen], own, self.counts[np.ix_(others, seen)]).sum(1)
        return gain - _together(self.prior.sum(), self.totals[row], self.totals[others])

    def nearest(
        self, row: int, allowed: Bool[Array, " n"], *, most: int = 16
    ) -> Int[Array, " some"]:
        """Return the topics, at most ``most``, for which a merge with one loses least, to first
        order.
        """
        seen = np.flatnonzero(self.counts[row])
        near = self.roots[seen, row] @ self.roots[seen]
        share = self.totals * self.totals[row] / np.maximum(self.totals + self.totals[row], SEEN)
        cost = np.where(allowed, share * np.maximum(1 - near, 0.0), np.inf)
        cost[row] = np.inf
        some = np.argsort(cost, kind="stable")[:most]
        return some[np.isfinite(cost[some])]


def _together(prior: Any, own: Any, theirs: Any) -> Any:
    """Return a term of the log evidence of two counts as one, minus those of each alone."""
    apart = gammaln(prior + own) + gammaln(prior + theirs)
    return gammaln(prior + own + theirs) + gammaln(prior) - apart


class Merger:
    """Merges topics that are added in parts: it has the counts of merged topics (g, V), and the
    label of each topic that was added.
    """

    def __init__(self, prior: Float[Array, " words"], *, apart: bool):
        self.prior = prior
        self.apart = apart
        self.counts = np.zeros((0, len(prior)))
        self.labels = np.zeros(0, int)
        self._sites: list[set[int]] = []
        self._scores = np.zeros(3)

    def add(self, counts: Float[Array, "n words"], site: Int[Array, " n"]) -> None:
        """Add topics of these sites."""
        self.labels = np.concatenate([self.labels, len(self.counts) + np.arange(len(counts))])
        self.counts = np.vstack([self.counts, counts])
        self._sites += [{own} if self.apart else set() for own in site.tolist()]
        self._scores += _scores(counts, self.prior)
        if len(self.counts) > 2 * TOGETHER:
            self._merge(0.0, None)

    def finish(self, components: int | None) -> dict[int, float]:
        """Merge into ``components`` topics, or the fewest within one standard error of the best
        number. Return, for each number, the nats of evidence lost beyond that standard error.
        """
        total, first, second = self._scores
        error = np.sqrt(max(second - first**2 / max(total, 1.0), 0.0))
        return self._merge(float(error), components)

    def _merge(self, allowed: float, components: int | None) -> dict[int, float]:
        words = Words(self.counts, self.prior)
        size = len(self.counts)
        alive = np.ones(size, bool)
        into = np.arange(size)
        sites = self._sites
        gains = np.full((size, size), -np.inf)

        def look(row: int) -> None:
            others = alive.copy()
            if self.apart:
                others &= [sites[row].isdisjoint(own) for own in sites]
            few = words.nearest(row, others)
            few = few[~np.isfinite(gains[row, few])]
            gains[row, few] = gains[few, row] = words.gains(row, few)

        for row in range(size):
            look(row)
        lost = 0.0
        least = 0.0
        number = size
        losses = {size: 0.0}
        while components is None or number > components:
            one, other = divmod(int(gains.argmax()), size)
            gain = float(gains[one, other])
            kept = min(one, other)
            gone = max(one, other)
            if not np.isfinite(gain):
                break
            lost = lost - gain
            number = number - 1
            least = min(least, lost)
            losses[number] = lost
            if components is None and lost - least > allowed:
                break
            words.put(kept, words.counts[kept] + words.counts[gone])
            into[into == gone] = kept
            alive[gone] = False
            sites[kept] |= sites[gone]
            gains[[kept, gone]] = -np.inf
            gains[:, [kept, gone]] = -np.inf
            look(kept)
            for row in np.flatnonzero(alive & ~np.isfinite(gains.max(1))):
                look(int(row))
        rows = np.flatnonzero(alive)
        self.counts = words.counts[rows]
        self.labels = np.searchsorted(rows, into)[self.labels]
        self._sites = [sites[row] for row in rows]
        return {number: max(loss - least - allowed, 0.0) for number, loss in losses.items()}


def _scores(counts: Float[Array, "n words"], prior: Float[Array, " words"]) -> Array:
    """Return the number of words, and the sums of their log probabilities and squares of these."""
    out = np.array([counts.sum(), 0.0, 0.0])
    for own in counts:
        logs = np.log((own + prior) / (own.sum() + prior.sum()))
        out[1:] += own @ logs, own @ logs**2
    return out


class Merged(NamedTuple):
    """The fused topic of each topic, the first topic (n,) of its site with the same one, the prior
    (V,) of one topic, and the losses by number of topics.
    """

    labels: Int[Array, " n"]
    into: Int[Array, " n"]
    prior: Float[Array, " words"]
    losses: dict[int, float]


def merge_topics(
    members: Callable[[Int[Array, " some"]], ExponentialFamily],
    site: Int[Array, " n"],
    order: Int[Array, " n"],
    priors: MemberPriors,
    *,
    joined: bool,
    components: int | None,
) -> Merged:
    """Merge topics into ``components`` topics or the best number; topics of one site are merged
    only if ``joined``.

    ``order`` has the rows site by site, in an order that is independent of the order of sites. An
    unknown prior has the least concentration of any word.
    """
    starts = np.flatnonzero(np.diff(site[order], prepend=-1))
    first = starts[np.diff(starts // TOGETHER, prepend=-1) > 0]
    apart = not (joined and priors.exchangeable.all())
    merger = None
    for rows in np.split(order, first[1:]):
        law: Any = members(rows)
        alpha = np.array(law.concentration)
        own = site[rows]
        base = np.empty_like(alpha)
        for one in np.unique(own):
            known = priors.exchangeable[one]
            mine = own == one
            law = priors.laws[priors.own[one]] if known else None
            base[mine] = law.concentration if known else alpha[mine].min()
        if merger is None:
            laws = [law for law in priors.laws if not law.batch_shape]
            many = stack(laws).concentration if laws else base  # pyright: ignore
            merger = Merger(canonical_mean(np.asarray(many)), apart=apart)
        merger.add(np.maximum(alpha - base, 0.0), own)
    assert merger is not None  # there are at least two sites
    losses = merger.finish(components)
    labels = np.empty(len(order), int)
    labels[order] = merger.labels
    return Merged(labels, of_one_label(site, labels), merger.prior, losses)


class TopicConfidence(Confidence):
    """Confidence in merged topics, by the evidence of their words. There are no warnings: the
    number of topics serves prediction and is not a property of the data.
    """

    suspect = False  # pyright: ignore
    identified = True  # pyright: ignore
    runner_up = None  # pyright: ignore

    def __init__(self, matched: Confidence, merged: Merged):
        super().__init__(matched.clustering, merged.losses, matched.free)
        self.matched = matched
        self.prior = merged.prior

    @functools.cached_property
    def components(self) -> dict[int, float]:
        """Nats of evidence lost for each number of topics, beyond one standard error."""
        return dict(sorted(self.levels.items())) if self.free else {}

    @functools.cached_property
    def margins(self) -> Float[Array, " n"]:
        """Nats of evidence by which each topic's group is better than any other group."""
        totals = np.zeros((len(self.clustering.counts), len(self.prior)))
        for part in self.matched.parts:
            np.add.at(totals, part.labels, self._counts(part))
        return np.concatenate([self._margins(part, totals) for part in self.matched.parts])

    def _counts(self, part: Clustering) -> Float[Array, "n words"]:
        law: Any = part.local.judged.members(slice(None))
        return np.maximum(np.asarray(law.concentration) - self.prior, 0.0)

    def _margins(self, part: Clustering, totals: Float[Array, "g words"]) -> Float[Array, " n"]:
        counts = self._counts(part)
        groups = len(totals)
        n = len(part.labels)
        words = Words(np.vstack([totals, counts, totals[part.labels] - counts]), self.prior)
        margins = np.empty(n)
        rows = np.arange(len(words.counts))
        for at, group in enumerate(part.labels.tolist()):
            one = groups + at
            others = (rows < groups) & (rows != group)
            elsewhere = words.gains(one, words.nearest(one, others)).max(initial=-np.inf)
            margins[at] = words.gains(one, np.array([one + n]))[0] - elsewhere
        return margins


def topics_in_table(table: BlockTable, joined: bool, components: int | None) -> Merged:
    """Merge topics of sites in a table, which are read some at a time."""
    site = np.repeat(np.arange(len(table.keys)), table.store.sizes)
    hashes = np.concatenate([block.rows[:, HASH] for block in table.store.blocks()])
    order = np.lexsort((hashes.view(np.uint64), table.keys[site]))

    def members(rows: Int[Array, " some"]) -> ExponentialFamily:
        sample = table.rows_of(np.unique(site[rows]))
        return table.natural(sample.rows[np.searchsorted(sample.places, rows)])

    return merge_topics(members, site, order, table.priors, joined=joined, components=components)


def topics_in_memory(block: Block, joined: bool, components: int | None) -> Merged:
    """Merge topics of sites in memory."""
    order, _ = canonical_order(block.members, np.cumsum([0, *block.sizes]), None)
    how = block.members.__getitem__, block.site, order, block.priors
    return merge_topics(*how, joined=joined, components=components)
