"""Fusing more sites than memory holds: read once, laid down as rows, and gone through in passes."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.stacks import unstacked
from posterity.arrays.tree import leaves, map_leaves
from posterity.arrays.typing import Float, Int
from posterity.artifact.aligned import named
from posterity.checks import check_proper
from posterity.errors import UsageError
from posterity.families import ExponentialFamily, Plate, at_rest, stack
from posterity.families.batches import place
from posterity.fusion import paths
from posterity.fusion.alignment import Alignment
from posterity.fusion.common_prior import part_of, pooled_posterior, warn_of_priors
from posterity.fusion.geometry import Divergence, moved, opposite
from posterity.fusion.group_sums import ExactGroupSums
from posterity.fusion.intake import Column, Intake
from posterity.fusion.matching import Matching, _check_components
from posterity.fusion.passes import Passes
from posterity.fusion.paths import assembled
from posterity.fusion.refusals import check_has_plates
from posterity.fusion.rules import Rule
from posterity.fusion.samples import hashes_of
from posterity.fusion.sites import site_weights
from posterity.fusion.tables import Room
from posterity.ledger import Ledger

Array = np.ndarray
SAMPLED = 24
"""The share of the budget that the parameters of a sample may take: matching them takes ten times
their memory."""
LEAST = 1000
"""Components of a sample, however small the budget."""


class Outcome(NamedTuple):
    """The fused posterior, with ``rule="product"`` its ledger, and the alignment of each plate.

    ``rebased`` are sites whose own prior was not the common one.
    """

    posterior: ExponentialFamily
    ledger: Ledger | None
    plates: dict[str, Alignment]
    rebased: tuple[str, ...] = ()


def stream(
    items: Iterable[tuple[str | None, Any]],
    *,
    components: int | None,
    rule: Rule,
    divergence: Divergence,
    matching: Matching,
    prior: ExponentialFamily | None,
    weights: Mapping[str, float] | None,
    budget: int,
) -> Outcome:
    """What :func:`posterity.fuse` finds, of sites that come one by one or in batches.

    Arguments, errors and result are those of :func:`posterity.fuse`. Sites are read once. Their
    parameters are kept in memory within a quarter of the ``budget`` of bytes and in a temporary
    file beyond; matching a sample takes the rest. Names, and some 30 bytes a site and 6 a
    component, come to it.
    """
    if matching is Matching.KL_FUSION:
        raise UsageError(
            found="matching='kl-fusion' with a budget",
            expected="a matching that goes through sites in passes",
            fix="Use matching='evidence', or leave the budget out.",
        )
    every, product = matching is Matching.IDENTITY, rule is Rule.PRODUCT
    intake = Intake(prior, divergence, Room(budget // 4), every=every, product=product)
    intake.read(items)
    importance = site_weights(intake.names, weights, rule)
    if product:
        intake.check_counted_once()
    check_has_plates(components, intake.like, any(c.plate for c in intake.columns.values()))
    settled = {
        path: settle(column, matching, rule, components, importance, budget)
        for path, column in intake.columns.items()
    }
    aligned = {p: s.alignment(intake.names) for p, s in settled.items() if s.column.plate}
    if product:
        rebased, part = _rebased(intake, prior)
        if rebased and prior is None:
            warn_of_priors(rebased, part, stacklevel=4)
        alone = not aligned and not (rebased and prior is None)
        ledger = added(intake.like, intake.names, settled, prior, budget // 2, independent=alone)
        pooled = named(pooled_posterior(ledger, rebased), intake.coordinates)
        return Outcome(pooled, named(ledger, intake.coordinates), aligned, rebased)
    found = {path: averaged(one, importance) for path, one in settled.items()}
    fused = assembled(intake.like, found)
    check_proper(fused, "the fused posterior")
    return Outcome(named(fused, intake.coordinates), None, aligned)


def _rebased(intake: Intake, prior: ExponentialFamily | None) -> tuple[tuple[str, ...], str]:
    """Sites whose prior was not the common one, and what of it was not."""
    given = {} if prior is None else paths.blocks(at_rest(prior))
    found = [column.others(given.get(path)) for path, column in intake.columns.items()]
    members, totals = np.any(found, axis=0)
    either = np.asarray(members | totals)
    rebased = [intake.names[index] for index in np.flatnonzero(either).tolist()]
    return tuple(rebased), part_of(members)


class LabelsBySite(Mapping[str, Array]):
    """For each site the fused component of each local one, out of one array for all."""

    def __init__(self, names: Sequence[str], sizes: Int[Array, " sites"], labels: Array):
        self._names, self._labels = names, labels
        self._ends = np.cumsum(sizes)
        self._index: dict[str, int] = {}

    def __getitem__(self, site: str) -> Array:
        if not self._index:
            self._index = {name: index for index, name in enumerate(self._names)}
        return self._of(self._index[site])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _of(self, index: int) -> Array:
        first = self._ends[index - 1] if index else 0
        return self._labels[first : self._ends[index]]


class Settled(NamedTuple):
    """One block, its components matched, and their sums.

    ``labels`` (N,) are of components that have seen data; ``totals`` (G, D) sums of what the rule
    adds up, each times its site's weight, ``weights`` (G,) the sums of these weights and ``counts``
    (G,) of observations.
    """

    column: Column
    passes: Passes
    labels: Int[Array, " n"]
    totals: Float[Array, "g dim"]
    weights: Float[Array, " g"]
    counts: Float[Array, " g"]
    cost: float
    trace: list[float]
    known: bool

    @property
    def groups(self) -> int:
        """Fused components."""
        return len(self.weights)

    def alignment(self, names: Sequence[str]) -> Alignment:
        """As of sites in memory."""
        column, labels = self.column, self.labels
        if not column.used.all():
            labels = np.full(len(column.used), -1, self.labels.dtype)
            labels[column.used] = self.labels
        by_site = LabelsBySite(names, column.sizes, labels)
        return Alignment(by_site, self.groups, self.cost, tuple(self.trace), self.known)


def settle(
    column: Column,
    how: Matching,
    rule: Rule,
    components: int | None,
    importance: Array,
    budget: int,
) -> Settled:
    """Match a block's components and add up what belongs together, exactly."""
    sample = max(LEAST, budget // (SAMPLED * 8 * column.layout.dim))
    passes = Passes(column.table, column.keys, column.layout, sample)
    _check_components(column.table.sizes, how, components)
    if how is Matching.IDENTITY or not column.plate:
        sweep, trace = passes.as_labelled()
    elif how is Matching.HUNGARIAN:
        sweep, trace = passes.permute()
    else:
        sweep, trace = passes.search(components)
    layout, sums = column.layout, ExactGroupSums(len(sweep.counts), column.layout.dim + 2)
    content, weighing = np.zeros(len(sweep.counts), np.uint64), bool((importance != 1).any())
    wanted = slice(0, layout.dim) if rule is Rule.PRODUCT else layout.matched
    for block in column.table.blocks():
        weight = np.repeat(importance[block.sites], np.diff(block.starts))[:, None]
        counts = block.rows[:, [layout.counts]] if column.weighted else np.ones_like(weight)
        rows = np.hstack([block.rows[:, wanted], np.ones_like(weight), counts])
        if weighing:
            rows *= weight
        sums.add(rows, sweep.labels[block.span])
        np.add.at(content, sweep.labels[block.span], hashes_of(block.rows))
    totals = sums.totals
    order = np.lexsort((content, -totals[:, -1]))  # the heaviest first, ties by content
    order = np.arange(len(totals)) if how is Matching.IDENTITY else order
    rank = np.empty(len(order), sweep.labels.dtype)
    rank[order] = np.arange(len(order))
    totals, cost = totals[order], passes.misfit(sweep)
    labels = rank[sweep.labels]
    known, last = how is Matching.IDENTITY, totals[:, -1]
    return Settled(column, passes, labels, totals[:, :-2], totals[:, -2], last, cost, trace, known)


# --- the barycentre ------------------------------------------------------------------------------


def averaged(found: Settled, importance: Float[Array, " sites"]) -> ExponentialFamily:
    """The block closest to those of all sites."""
    layout = found.column.layout
    mean = found.totals / found.weights[:, None]
    back = opposite(found.passes.origin)
    if layout.forward:
        members = moved(layout.template.with_mean_parameters(mean), back)
    else:
        members = moved(layout.template.with_natural_parameters(mean), back)
    if not found.column.plate:
        return members[0]
    if not found.column.weighted:
        return Plate(members)
    like: Any = found.column.like
    total = found.column.common_total(importance=importance).total
    base = like.weights.exchangeable(total, found.groups)
    return Plate(members, base + like.weights.of_counts(found.counts / importance.sum()))


# --- the product ---------------------------------------------------------------------------------


def added(
    like: ExponentialFamily,
    names: Sequence[str],
    blocks: Mapping[str, Settled],
    given: ExponentialFamily | None,
    budget: int,
    *,
    independent: bool,
) -> Ledger:
    """The prior once, and a factor a site; or one for all, where those are beyond the budget.

    That prior is the ``given`` one, else the average of the sites' own. A factor is a posterior
    less its own prior.
    """
    of = {} if given is None else paths.blocks(at_rest(given))
    prior = assembled(like, {path: _prior(found, of.get(path)) for path, found in blocks.items()})
    ledger = Ledger(prior)
    size = len(names) * sum(leaf.nbytes for leaf in leaves(prior))
    if size <= budget:
        by_path = {path: _factors(found) for path, found in blocks.items()}
        each = {
            name: assembled(like, {path: by_path[path][index] for path in by_path})
            for index, name in enumerate(names)
        }
        return ledger.extend(each, independent=independent)
    name = together(names, blocks)
    warnings.warn(
        f"a factor for each of {len(names)} sites would take {size:,} bytes, beyond the "
        f"budget: the ledger holds one for all, {name!r}, and no single site can be forgotten; "
        "pass a larger budget= to keep them apart",
        stacklevel=4,
    )
    total = assembled(like, {path: _total(found, of.get(path)) for path, found in blocks.items()})
    return ledger.update(name, total, independent=independent)


def together(names: Sequence[str], blocks: Mapping[str, Settled]) -> str:
    """What one factor of all these sites goes by: their number, and a digest of what they said."""
    keys = np.zeros(len(names), np.uint64)
    for found in blocks.values():
        keys = keys * np.uint64(3) + found.column.keys
    return f"{len(names)} sites {int(keys.sum(dtype=np.uint64)):016x}"


def _prior(found: Settled, given: Any) -> ExponentialFamily:
    """What is counted once."""
    one = found.column.common_prior(given)
    if not found.column.plate:
        return one
    weights = None
    if found.column.weighted:
        like: Any = found.column.like
        weights = like.weights.exchangeable(found.column.common_total(given).total, found.groups)
    return Plate(stack([one] * found.groups), weights)


def _total(found: Settled, given: Any) -> ExponentialFamily:
    """What all sites together add to the prior."""
    origin, template = found.passes.origin, found.column.layout.template
    common = stack([found.column.common_prior(given)])
    more = found.totals - _own_priors(found) + moved(common, origin).natural_parameters
    members = moved(template.with_natural_parameters(more), opposite(origin)) - common
    if not found.column.plate:
        return members[0]
    like: Any = found.column.like
    return Plate(members, like.weights.of_counts(found.counts) if found.column.weighted else None)


def _own_priors(found: Settled) -> Float[Array, "g dim"]:
    """The sums (G, D) of what the sites of each group's components started from."""
    column, sums = found.column, ExactGroupSums(found.groups, found.column.layout.dim)
    rows = moved(stack(column.priors), found.passes.origin).natural_parameters
    if len(rows) == 1:
        return found.weights[:, None] * rows
    for block in column.table.blocks():
        own = np.repeat(column.own[block.sites], np.diff(block.starts))
        sums.add(rows[own], found.labels[block.span])
    return sums.totals


def _factors(found: Settled) -> list[ExponentialFamily]:
    """What each site adds to the prior, under the fused labels."""
    made = []
    for block in found.column.table.blocks():
        made += unstacked(_factors_of(found, block))
    return made


def _factors_of(found: Settled, block: Any) -> ExponentialFamily:
    """Those of some sites, as a batch."""
    layout, sites, groups = found.column.layout, len(block.starts) - 1, found.groups
    own = np.repeat(found.column.own[block.sites], np.diff(block.starts))
    members = moved(layout.natural(block.rows), opposite(found.passes.origin))
    members -= stack(found.column.priors)[own]
    if not found.column.plate:
        return members
    at = np.repeat(np.arange(sites), np.diff(block.starts)) * groups + found.labels[block.span]
    spread = lambda leaf: place(leaf, at, sites * groups, 0).reshape(sites, groups, *leaf.shape[1:])
    weights = None
    if found.column.weighted:
        counts = np.zeros((sites, groups))
        counts.reshape(-1)[at] = block.rows[:, layout.counts]
        like: Any = found.column.like
        weights = like.weights.of_counts(counts)
    return Plate(map_leaves(spread, members), weights)
