"""``federate``: fit one posterior by local updates of sites that keep their data private."""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from posterity.arguments import NATURAL, NOT_NEGATIVE, POSITIVE, Constraint
from posterity.arrays.keys import fold_in, plain
from posterity.arrays.linear_algebra import one_thread
from posterity.arrays.tree import taken
from posterity.arrays.typing import KeyArray
from posterity.artifact import loaded
from posterity.entries import Entry, check_names
from posterity.errors import ConvergenceWarning, LedgerError, PosterityError, UsageError, within
from posterity.families import ExponentialFamily
from posterity.families.checks import check_proper
from posterity.families.names import some
from posterity.federation.agreement import (
    RESTART_BUDGET,
    Agreement,
    AnyModel,
    Columns,
    OnError,
    Personal,
)
from posterity.federation.checkpoint import kept
from posterity.federation.driver import Federation
from posterity.federation.fitting import check_fit
from posterity.federation.keys import first_key
from posterity.federation.remaining import TOLERANCE
from posterity.federation.run import ROUNDS, Run
from posterity.federation.schedules import Schedule, Sequential, Synchronous
from posterity.federation.site import Site
from posterity.federation.state import State
from posterity.inference.update import LocalUpdate
from posterity.ledger import Ledger
from posterity.models import Model, Records
from posterity.models.records import joined
from posterity.models.tables import in_common
from posterity.runtime.files import AnyPath
from posterity.runtime.lazy import jax
from posterity.runtime.tracing import as_found
from posterity.status import ProgressCallback

AnyPrior = ExponentialFamily | Ledger | AnyPath
"""A prior, a ledger to continue from, or a file of either."""
PINNED = 8
"""Number of records at which a likelihood is traced, to see whether it has changed."""
SCHEDULE = Constraint(
    "a schedule, such as Sequential() or Gossip(graph)", lambda it: isinstance(it, Schedule)
)
SITES = Constraint(
    "names of sites, each a string, at least one",
    lambda names: names and all(isinstance(name, str) for name in names),
)


@as_found()
def federate(
    sites: Mapping[str, Any],
    model: AnyModel,
    prior: AnyPrior,
    *,
    schedule: Schedule | None = None,
    steps: int | None = None,
    tolerance: float | None = None,
    update: LocalUpdate | None = None,
    weights: Mapping[str, float] | None = None,
    personal: Personal = False,
    own: Columns = (),
    on_error: OnError = "raise",
    restarts: int | None = None,
    restart_budget: float = RESTART_BUDGET,
    key: KeyArray | None = None,
    progress: ProgressCallback | None = None,
    checkpoint: AnyPath | None = None,
) -> Run:
    """Fit one posterior by local updates of sites that keep their data private.

    The posterior is ``q = prior · Π t_k``, with one factor per site. It minimises the free energy
    ``Σ_k E_q[loss_k] + α KL(q ‖ prior)``, where the loss of a site is minus the *sum* of its
    records' log likelihoods. With α = 1 that is the posterior of all data, or the member of the
    family closest to it in reverse KL divergence.

    Args:
        sites: private data of each site, by name: arrays whose first axes count the records, or
            data frames, read as by :func:`posterity.models.tables.arrays`. Columns of data frames
            are put in the order of the prior's names; if the prior has no names, they name its
            coordinates. A site without records takes part and relays messages, but contributes
            nothing.
        model: a model of :mod:`posterity.models`, or a function of a parameter and a batch that
            returns one log likelihood per record.
        prior: a proper member of the posterior's family; or a ledger to continue from, in which
            the factors of sites that do not take part are left unchanged, and forgotten sites have
            no records until they are readmitted, ``ledger.update(site, ledger.prior.zero(),
            epoch=...)``; or the path of a file of either.
        schedule: :class:`Sequential` (the default), :class:`Synchronous` (the default, undamped,
            for updates that train) or :class:`Asynchronous` over a server, or :class:`Gossip`
            over a graph.
        steps: number of steps of the schedule: passes, rounds, reports or hops; by default as
            many as convergence takes, up to the number of a hundred rounds.
        tolerance: largest remaining change, in nats, at which the run counts as converged and
            ends; 1e-3 by default. With ``steps``, the run ends after that many steps at the
            latest. With ``steps`` alone, all of them are made.
        update: rule by which a site improves its factor in one visit; for fused networks,
            :class:`posterity.networks.Refinement`.
        weights: multipliers of the sites' losses, 1 by default. (The inverse of a site's number
            of records makes its loss a mean, as in gong2021, equation 1; the posterior then
            counts each site as one record.)
        personal: True if every coefficient of a regression varies between sites around a
            population coefficient, or the columns whose coefficients vary (numbers, or the
            prior's names). A mapping gives the expected spread of each column
            (:func:`posterity.models.hierarchical`). The spread is learned. :meth:`Run.site`
            returns the posterior of one site.
        own: coefficients of a regression, by number or the prior's names, that each site has
            separately: ``age@north`` is that of site north. Conditional on the shared ones they
            are independent, with the prior's distribution. In a multinomial regression these are
            columns, each with one coefficient per class.
        on_error: whether a site that fails ends the run, or is skipped and recorded.
        restarts: number of second starts from members placed over the prior, by which other optima
            are sought before the run counts as converged, beside one from the posterior's mirror
            image; by default none if the model is known to have one optimum, or several, else 2.
        restart_budget: most evaluations of log likelihoods by second starts, as a multiple of those
            that the run took, or of four hundred of all sites if those are more; 1 by default. The
            status tells if they ended early.
        key: source of all randomness; ``jax.random.key(0)`` by default.
        progress: function called after each step, with the run so far as ``result``. An exception
            in it ends the run before that step, which is not in the checkpoint either.
        checkpoint: path of a file to resume from if it exists, and to which the run is saved
            periodically, at the end, and when it is interrupted.

    Warns:
        ConvergenceWarning: if the run has not converged (``run.status`` has the distance,
            ``run.converge()`` continues), or if ``steps`` are too few to visit a graph's sites.

    Raises:
        UsageError: if arguments contradict each other, or a checkpoint is beyond ``steps``.
        LedgerError: if the names of two sites look alike, or a site has records that the ledger
            has forgotten.
        StructureError: if the graph, sites and data do not match.
        ParameterError: if data or prior have NaN, infinite or, for the model, impossible values.
        SiteError: if a site raises, or its update is not finite; ``error.run`` is the run up to
            the failure, from which it can continue.
        ArtifactError: if the checkpoint cannot be used.
        KeyboardInterrupt, Terminated: with a checkpoint, only after it was saved.

    Source: gong2021; bui2018.

    >>> import numpy as np
    >>> from posterity.families import Beta
    >>> from posterity.models import BetaBernoulli
    >>> coins = {"north": np.array([1, 1, 0]), "south": np.array([0, 1])}
    >>> run = federate(coins, BetaBernoulli(), Beta.from_standard(1.0, 1.0), steps=1)
    >>> float(run.posterior.a), float(run.posterior.b)
    (4.0, 3.0)
    """
    NATURAL.or_none().check(steps=steps)
    options = {"schedule": schedule, "update": update, "weights": weights, "key": key}
    options |= {"personal": personal, "own": own, "on_error": on_error, "tolerance": tolerance}
    options |= {"restarts": restarts, "restart_budget": restart_budget}
    run = start(sites, model, prior, **options)
    run = proceed(run, steps, tolerance is not None, progress=progress, checkpoint=checkpoint)
    if steps != 0 and not run.status.converged:
        done = f"The posterior has {run.status} (after {run.state.step} {run.schedule.unit})."
        warnings.warn(done, ConvergenceWarning, stacklevel=3)
    return run


def proceed(
    run: Run,
    steps: int | None,
    converge: bool,
    *,
    progress: ProgressCallback | None = None,
    checkpoint: AnyPath | None = None,
) -> Run:
    """Return the run after ``steps`` steps in total or, with ``converge``, at convergence. Without
    ``steps`` it ends at convergence or after a hundred rounds. It resumes from a checkpoint if one
    exists. Errors are those of :func:`federate`; no warning is issued.
    """
    most, converge = (ROUNDS * run.round, True) if steps is None else (steps, converge)
    if checkpoint is not None:
        return kept(run, checkpoint, most, converge, progress)
    with one_thread(run.agreement.prior.event_size, max(run.federation.records.values())):
        return run.until(most, converge, progress)


def start(
    sites: Mapping[str, Any],
    model: AnyModel,
    prior: AnyPrior,
    *,
    schedule: Schedule | None = None,
    update: LocalUpdate | None = None,
    weights: Mapping[str, float] | None = None,
    personal: Personal = False,
    own: Columns = (),
    tolerance: float | None = None,
    on_error: OnError = "raise",
    restarts: int | None = None,
    restart_budget: float = RESTART_BUDGET,
    key: KeyArray | None = None,
    padding: bool = True,
) -> Run:
    """Return the run before its first step. Arguments and errors are those of :func:`federate`;
    ``padding`` is passed to :class:`Agreement`.
    """
    SCHEDULE.or_none().check(schedule=schedule)
    POSITIVE.or_none().check(tolerance=tolerance)
    SITES.check(sites=list(sites))
    base: Any = loaded(prior)
    if isinstance(base, Ledger) and (personal is not False or own):
        raise UsageError(
            found=f"{'own=' if own else 'personal='} with a Ledger",
            expected="a prior, which may be `ledger.posterior`",
        )
    base = base if isinstance(base, Ledger) else Ledger(base)  # which refuses what is none
    check_names([*sites, *base.entries])
    names, base = in_common(sites, base)
    entries = base.entries
    trains = update is not None and update.trains
    records = _records(sites, weights or {}, names)
    total = math.fsum(float(own.weights.sum()) for own in records.values())
    agreement = Agreement.of(
        model,
        base.prior,
        update,
        personal=personal,
        own=own,
        sites=tuple(records),
        padding=padding,
        total_weight=total if trains else None,
        on_error=on_error,
        restarts=restarts,
        restart_budget=restart_budget,
    )
    records = {site: agreement.stratified(site, each) for site, each in records.items()}
    _check_admitted(records, entries)
    _check_data(agreement.model, records)
    agreement = dataclasses.replace(agreement, model=_pinned(agreement, records))
    check_fit(agreement, records)
    silent = frozenset(site for site, own in records.items() if own.silent)
    agreement = dataclasses.replace(agreement, silent=silent)
    members = {name: Site(name, agreement, own) for name, own in records.items()}
    federation = Federation(agreement, members, dict(entries))
    state = State.of(agreement.prior)
    if entries:
        check_proper(base.posterior, "the posterior of the ledger")
        state = state.with_entries(entries)
    if schedule is None:
        schedule = Synchronous(damping=1.0) if trains else Sequential()
    key = first_key() if key is None else plain(key)
    state = schedule.init(state, tuple(records), key=fold_in(key, 0))
    if entries:
        state = schedule.learn(state, state.entries)
    return Run(federation, schedule, state, key, tolerance=tolerance or TOLERANCE)


def _records(
    sites: Mapping[str, Any], weights: Mapping[str, float], names: Sequence[str]
) -> dict[str, Records]:
    unknown = sorted(set(weights) - set(sites))
    if unknown or not all(map(NOT_NEGATIVE.allows, weights.values())):
        raise UsageError(
            found=f"weights {dict(weights)}",
            expected=f"finite weights, not negative, of sites among {sorted(sites)}",
        )
    records = {}
    for site in sorted(sites):
        with within(f"the data of site {site!r}"):
            records[site] = Records.of(sites[site], weights.get(site, 1.0), names)
    return records


def _check_admitted(records: Mapping[str, Records], entries: Mapping[str, Entry]) -> None:
    """Raise a LedgerError for records of sites that the ledger has forgotten."""
    gone = [site for site, entry in entries.items() if entry.factor is None]
    back = [site for site in gone if site in records and not records[site].silent]
    if back:
        raise LedgerError(
            found=f"records of sites {some(back)}, which the ledger has forgotten",
            expected="records of sites that it has not, or that were readmitted",
            fix="Leave them out; or, if they are to count again, begin a new epoch for each: ledger"
            ".update(site, ledger.prior.zero(), epoch=ledger.entries[site].epoch + 1).",
        )


def _check_data(model: Model, records: Mapping[str, Records]) -> None:
    """Raise an error that names the site if its data are impossible under the model."""
    check = model.check
    if type(model).check is Model.check:  # then many sites can be checked at once
        with contextlib.suppress(PosterityError):
            for batch in joined(records.values()):
                check(batch.data)
            return
    for site, own in records.items():
        with within(f"the data of site {site!r}"):
            if own.size:
                check(own.data)


def _pinned(agreed: Agreement, sites: Mapping[str, Records]) -> Model:
    """Return the model with the operations of its likelihood of some records, if JAX runs it."""
    model = agreed.model
    first = next((records for records in sites.values() if records.size), None)
    if first is None or not agreed.update.needs_jax(model):
        return model
    some = taken(first.widened().data, slice(PINNED))

    def draw():
        return agreed.prior.sample(jax.random.key(0), ())

    with jax.enable_x64(True):
        return model.pinned(type(model).log_likelihood, jax.eval_shape(draw), some)
