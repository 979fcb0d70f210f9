"""A visit: a site improves its factor, and the change is taken whole or not at all.

What a site needs is its :class:`SiteProblem`, its factor, and the posterior that reaches it: in
whatever process, with these alone it finds another factor. Whoever holds the sum commits it.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import numpy as np

from posterity.arrays.linear_algebra import symmetric
from posterity.arrays.tree import Node, field_names, identical
from posterity.arrays.tree_sums import TreeSum
from posterity.checks import check_finite, check_same_structure
from posterity.entries import Entry
from posterity.errors import ParameterError, PosterityError, SiteError
from posterity.families import ExponentialFamily, at_rest
from posterity.federation.keys import site_key
from posterity.federation.state import State
from posterity.inference.step import HALVINGS
from posterity.inference.update import LocalUpdate, TrainedApart
from posterity.models import Model, Records

DOUBT = 5e-5
"""Nats by which too few nodes may misplace a posterior before more are taken."""
NEAR = 0.1
"""Nats up to which a misplaced posterior is still where more nodes had best begin."""

PROGRAMS = 3
"""Numbers of records in a federation up to which each has a program of its own."""

Outcome = Literal["updated", "relayed", "refused", "failed", "forgotten"]


@dataclasses.dataclass(frozen=True)
class Agreement:
    """What all sites of a federation share: the model, and the local rule."""

    model: Model
    update: LocalUpdate

    def admits(self, posterior: ExponentialFamily) -> bool:
        """Whether it is a distribution under which the model has expectations."""
        # By way of the class: Equinox makes a Module of each bound method.
        admits = type(self.model).admits
        return bool(posterior.is_proper()) and bool(admits(self.model, posterior))


@dataclasses.dataclass(frozen=True)
class Federation(Agreement):
    """What a simulation holds: all sites' records, and what to do about a site that fails."""

    sites: Mapping[str, Records]
    on_error: Literal["raise", "pass"] = "raise"
    begun: Mapping[str, Entry] = dataclasses.field(default_factory=dict)
    """What it went on from: entries of a ledger."""

    def site(self, name: str) -> "SiteProblem":
        """What one site knows."""
        records = self.sites[name]
        share = float(records.weights.sum()) / self.weight if self.update.trains else 1.0
        return SiteProblem(self.model, self.update, records, self.of_many_sizes, share)

    @functools.cached_property
    def weight(self) -> float:
        """Of all sites' records together."""
        return math.fsum(float(records.weights.sum()) for records in self.sites.values())

    @functools.cached_property
    def of_many_sizes(self) -> bool:
        """Whether to compile a program for each number of records would take too long."""
        return len({records.size for records in self.sites.values()}) > PROGRAMS


class Proposal(NamedTuple):
    """Another factor of a site, at rest, and what is to be told of how it was found."""

    factor: Any
    halvings: int = 0
    residual: float | None = None
    doubt: float = 0.0


@dataclasses.dataclass(frozen=True)
class Visit:
    """What happened when a site had its turn, for people.

    ``updated``: it has a new factor. ``relayed``: it has no data, was forgotten, or had answered
    that token before. ``refused``: every shortened step would have made the posterior improper,
    so nothing changed. ``failed``: it raised, or its update was not finite or its sum beyond
    float64 (only with ``on_error="pass"``). ``forgotten``: its factor left.
    """

    step: int
    site: str
    outcome: Outcome
    halvings: int = 0
    residual: float | None = None
    """Fisher length of the last natural gradient, in sqrt(nats); None where it is not known."""
    change: float | None = None
    """By how much the posterior moved, in nats: the KL divergence from before. None if it did not
    have its turn."""
    doubt: float = 0.0
    """By how many nats, at most, too few nodes of a quadrature may have misplaced it."""
    error: str | None = None


def visit(
    federation: Federation,
    state: State,
    site: str,
    *,
    key: jax.Array,
    view: ExponentialFamily | None = None,
    damping: float = 1.0,
) -> tuple[State, Visit]:
    """The site improves its factor, seeing the posterior ``view`` (the current one by default).

    Either the whole update is committed or nothing is. ``damping`` is the share of the change
    that is taken; all of it where the model is conjugate. ``key`` is that of the step, from which
    the site's own is made.

    Raises:
        SiteError: if the site raised, or its update was not finite or the sum with it beyond the
            range of float64, and the federation says so.
        ParameterError: if the site is to leave, and what is left would be no distribution.
    """
    if site in state.leaving:
        return leave(federation, state, site), Visit(state.step, site, "forgotten")
    if state.is_forgotten(site) or federation.sites[site].silent:
        return state, Visit(state.step, site, "relayed")
    view = state.posterior if view is None else view
    factor, count = state.factor(site), state.counts.get(site, 0)
    own_key = key if federation.update.conjugate else site_key(key, site)
    try:
        found = federation.site(site).improve(view, factor, count, key=own_key)
        committed, halvings = commit(federation, state, site, found.factor, damping)
    except Exception as error:
        failure = failure_of(error, site)
        if federation.on_error == "raise":
            raise failure from error
        return state, Visit(state.step, site, "failed", error=str(failure))
    outcome = "refused" if committed is None else "updated"
    after = committed or state
    moved = distance(state.posterior, after.posterior)
    halvings += found.halvings
    return after, Visit(state.step, site, outcome, halvings, found.residual, moved, found.doubt)


def distance(before: ExponentialFamily, after: ExponentialFamily) -> float:
    """``KL(after || before)``, in nats; exactly zero where they are one."""
    if before is after or identical(before, after):
        return 0.0
    return max(float(after.kl(before)), 0.0)


# --- what the site does ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SiteProblem(Agreement):
    """What a site needs to do its part: what all share, and its own records."""

    records: Records
    padding: bool = False
    """Whether to pad the records, so that sites of other sizes use the same program."""
    share: float = 1.0
    """Of all records, where sites train apart and what they find is averaged."""

    def improve(
        self, view: ExponentialFamily, factor: ExponentialFamily, count: int = 0, *, key: jax.Array
    ) -> Proposal:
        """A better factor than ``factor``, as part of the posterior ``view``. Pure.

        ``count`` is the number of local steps that the site has taken.

        Raises:
            StructureError, ParameterError: if what the model gives is no factor, or not finite.
        """
        if self.update.conjugate:
            found = type(self.update).exact_factor(self.update, self.model, self.records)
            if identical(found, factor):  # as at every visit but the first, when checks were made
                return Proposal(factor)
            check_same_structure(factor, found, "what the model found")
            check_finite(found, "what the model found")
            return Proposal(_settled(found))
        if isinstance(self.update, TrainedApart):
            found = self.update.trained(self.model, view, self.records, key=key)
            return Proposal(_settled(factor + (found - view) * self.share))
        records = self.records.padded() if self.padding else self.records
        taken = np.asarray(count)  # an array: compiled once
        update = self.update
        while True:
            with jax.enable_x64(True):
                found, info = _improved(update, self.model, view, factor, records, taken, key)
            if not info.finite:
                raise not_finite()
            finer = update.finer()
            if finer is None or float(info.doubt) <= DOUBT:
                break
            update = finer
            if float(info.doubt) <= NEAR:  # from where the fewer nodes led, not all the way again
                found = at_rest(found)
                view, factor = view + (found - factor), found
        residual, doubt = float(info.residual), float(info.doubt)
        return Proposal(_settled(found), int(info.halvings), residual, doubt)


def _settled(found: Any) -> Any:
    """At rest, and matrices symmetric to the last bit: as it will come back from a file."""
    return _symmetric(at_rest(found))


def _symmetric(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _symmetric(own) for name, own in part.items()}
    if not isinstance(part, Node):
        return part
    kinds, names = getattr(part, "coordinates", {}), field_names(type(part))
    children = zip(names, part.children(), strict=True)
    matrix = lambda name: name in kinds and kinds[name].axes == 2
    found = [symmetric(c) if matrix(n) else _symmetric(c) for n, c in children]
    return part.of_children(found, part.kept())


def _improved(update: LocalUpdate, model: Any, *others: Any) -> Any:
    # Equinox sorts out what is no array, a visit's tenth: seldom is there any.
    if all(eqx.is_array(leaf) for leaf in jax.tree.leaves(model)):
        return _of_arrays(update, model, *others)
    return _of_any(update.traced(), model, *others)


def _improve(
    update: LocalUpdate, model: Any, q: Any, factor: Any, records: Any, count: Any, key: Any
) -> Any:
    return update(model, q, factor, records, count, key=key)


_of_arrays, _of_any = jax.jit(_improve), eqx.filter_jit(_improve)


# --- what becomes of it ------------------------------------------------------------------------


def commit(
    agreed: Agreement, state: State, site: str, factor: ExponentialFamily, damping: float = 1.0
) -> tuple[State | None, int]:
    """The state with the site's change, halved until the model admits it, and how often.

    None instead of a state if it admits no share of the change.

    Raises:
        StructureError: if the factor is not of the prior's family and shape.
        ParameterError: if it is not finite, or a sum beyond the range of float64.
    """
    old, conjugate = state.factor(site), agreed.update.conjugate
    if conjugate and factor is old and site in state.entries:  # as it was: no sum changes
        return _with_factor(agreed, state, site, old, state.exact_sum, True), 0
    check_same_structure(state.prior, factor, f"the factor of site {site!r}")
    check_finite(factor, f"the factor of site {site!r}")
    for halvings in range(HALVINGS):
        share = (1.0 if conjugate else damping) / 2**halvings
        new = part_way(old, factor, share)
        exact_sum = state.exact_sum.changed(add=[new], take=[old])
        if agreed.admits(exact_sum.value):
            alone = conjugate and share == 1
            return _with_factor(agreed, state, site, new, exact_sum, alone), halvings
    return None, HALVINGS


def part_way(old: ExponentialFamily, new: ExponentialFamily, share: float) -> ExponentialFamily:
    """``old``, moved towards ``new`` by a share of the difference; all the way it is ``new``."""
    return new if share == 1 else old + (new - old) * share


def _with_factor(
    agreed: Agreement,
    state: State,
    site: str,
    factor: ExponentialFamily,
    exact_sum: TreeSum,
    independent: bool,
) -> State:
    """The state with another factor of the site, one version on, and the sum with that."""
    held = state.entries.get(site, Entry(0, -1, factor))
    entry = Entry(held.epoch, held.sequence + 1, factor, independent)
    steps = state.counts.get(site, 0) + (agreed.update.steps or 1)
    entries, counts = {**state.entries, site: entry}, {**state.counts, site: steps}
    return dataclasses.replace(state, exact_sum=exact_sum, entries=entries, counts=counts)


def leave(agreed: Agreement, state: State, *sites: str) -> State:
    """The state without these sites' factors, who cannot come back within their epochs.

    Raises:
        LedgerError: if a site is forgotten already, or named twice.
        ParameterError: if what is left is no distribution, or one under which the model has
            no expectations.
    """
    left = state.without(*sites)
    if not agreed.admits(left.posterior):
        raise improper_without(*sites)
    return left


def improper_without(*sites: str) -> ParameterError:
    """What is wrong where nothing proper is left of a posterior."""
    return ParameterError(
        found=f"an improper posterior without {', '.join(map(repr, sites))}",
        expected="factors of the sites that stay that, with the prior, are a distribution",
        fix="These were fitted in the company of who leaves. Use `forget` with "
        "restart=True, which trains them anew; nothing was changed.",
    )


def not_finite() -> ParameterError:
    """What is wrong where a log likelihood or its gradient is not finite, or of no use."""
    return ParameterError(
        found="NaN or infinity in the log likelihood or its gradient (or jumps, which have none)",
        expected="a log likelihood that is finite near the posterior, and differentiable there",
        fix="Check the model's function and the site's data; where it jumps, pass "
        "LocalUpdate('reinforce'). The factor was not changed.",
    )


def failure_of(error: Exception, site: str) -> SiteError:
    """What is said of a site that could not do its part."""
    place = f"the update of site {site!r}"
    if isinstance(error, PosterityError):
        return SiteError(found=f"{error.found} in {place}", expected=error.expected, fix=error.fix)
    return SiteError(
        found=f"{type(error).__name__}: {error} in {place}",
        expected="an update that finishes",
        fix="Mend the site, then go on from the last state; the site's factor was not changed.",
    )
