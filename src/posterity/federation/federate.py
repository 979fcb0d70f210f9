"""``federate``: improve one posterior by local steps of sites whose data stay where they are."""

import contextlib
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np

from posterity.arguments import NATURAL, POSITIVE, Constraint, one_of, renamed
from posterity.arrays.tree import structure
from posterity.artifact import loaded
from posterity.checks import check_proper
from posterity.entries import check_names
from posterity.errors import (
    ConvergenceWarning,
    PosterityError,
    StructureError,
    UsageError,
)
from posterity.families import ExponentialFamily
from posterity.federation.checkpoint import kept
from posterity.federation.driver import Federation
from posterity.federation.gossip import OverGraph
from posterity.federation.keys import first_key, fold_in
from posterity.federation.run import ROUNDS, Run
from posterity.federation.schedules import Schedule, Sequential, Synchronous
from posterity.federation.site import Site
from posterity.federation.state import State
from posterity.federation.status import TOLERANCE
from posterity.federation.tables import in_order
from posterity.federation.visit import Agreement
from posterity.inference.cubature import Cubature
from posterity.inference.pooling import PartialPooling
from posterity.inference.update import LocalUpdate
from posterity.ledger import Ledger
from posterity.models import FunctionModel, Model, Records, hierarchical
from posterity.models.records import joined
from posterity.status import ProgressCallback

PROGRAMS = 3
"""Numbers of records in a federation up to which each has a program of its own."""
ON_ERROR = one_of("raise", "pass")
MOST_WORK, SECONDS = 1e7, 1.2e-5
"""Partial pooling: nodes x shared parameters x records of a pass, and CPU seconds for each."""
SCHEDULE = Constraint(
    "a schedule, such as Sequential() or Gossip(graph)", lambda it: isinstance(it, Schedule)
)
MODEL = Constraint(
    "a model of posterity.models, or a function of a parameter and a batch",
    lambda it: isinstance(it, Model) or callable(it),
)
SITES = Constraint(
    "names of sites, each a string, at least one",
    lambda names: names and all(isinstance(name, str) for name in names),
)


@renamed(
    until="tolerance",
    callback="progress",
    every="Leave it out: a checkpoint is written every 20 seconds, and at the end.",
)
def federate(
    sites: Mapping[str, Any],
    model: Model | Callable[[Any, Any], Any],
    prior: ExponentialFamily | Ledger | str | os.PathLike[str],
    *,
    schedule: Schedule | None = None,
    steps: int | None = None,
    tolerance: float | None = None,
    update: LocalUpdate | None = None,
    weights: Mapping[str, float] | None = None,
    personal: bool | Sequence[int | str] | Mapping[Any, float] = False,
    on_error: Literal["raise", "pass"] = "raise",
    key: jax.Array | None = None,
    progress: ProgressCallback | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Run:
    """Improve one posterior by local steps of sites whose data stay where they are.

    The posterior is ``q = prior · Π t_k``, one factor a site; it minimises the free energy
    ``Σ_k E_q[loss_k] + α KL(q ‖ prior)``, where the loss of a site is minus the *sum* of its
    records' log likelihoods. With α = 1 that is the posterior of all data, or the member of the
    family closest to it in reverse KL divergence.

    Args:
        sites: by name, each site's private data: arrays whose first axes count its records, or
            data frames, whose columns are put in the order of the prior's names (or name the
            prior's coordinates). A site without records takes part, relays, and contributes
            nothing.
        model: of :mod:`posterity.models`, or any function of a parameter and a batch that gives
            one log likelihood a record.
        prior: a proper member of the family that the posterior shall have; or a ledger to go on
            from, whose factors of sites that do not take part stay as they are; or the path of
            a file of either.
        schedule: :class:`Sequential` (the default), :class:`Synchronous` (the default of updates
            that train, undamped) or :class:`Asynchronous` over a server, :class:`Gossip` over a
            graph.
        steps: of the schedule: passes, rounds, reports or hops; by default as many as it takes
            to converge, up to those of a hundred rounds.
        tolerance: nats that may be left to change in a run which has converged, and then ends;
            with ``steps``, after these at the latest. 1e-3 by default; with ``steps`` alone all
            of these are made.
        update: how a site improves its factor in one visit; for networks that were fused
            :class:`posterity.networks.Refinement`.
        weights: factors of sites' losses, 1 by default. (The inverse of a site's number of
            records makes its loss a mean, as in gong2021, equation 1; such a posterior counts a
            site as one record.)
        personal: True where every coefficient of a regression differs from site to site about
            one of the population, or the columns of those that do (numbers, or the prior's
            names), with the spread to expect if
            it is a mapping (:func:`posterity.models.hierarchical`); :meth:`Run.site` then gives a
            site its own posterior. How far sites differ is learned.
        on_error: whether a site that fails ends the run, or is passed over and noted.
        key: of all that is random, ``jax.random.key(0)`` by default.
        progress: called after each step, with the run so far as ``result``; what it raises ends the
            run before that step, which is then not in the checkpoint either.
        checkpoint: a file from which the run goes on, if it is there, and where it is saved from
            time to time, at the end, and when it is interrupted.

    Warns:
        ConvergenceWarning: if the run has not converged; ``run.status`` says how far it is, and
            ``run.converge()`` goes on. Before it starts, if ``steps`` are too few for a graph.

    Raises:
        UsageError: if arguments make no sense together, or a checkpoint is beyond ``steps``.
        LedgerError: if names of two sites look alike.
        StructureError: if graph, sites or data do not fit together.
        ParameterError: if data or prior hold NaN, infinity or what the model cannot produce.
        SiteError: if a site raises, or its update is not finite; ``error.run`` is the run up to
            there, to go on from.
        ArtifactError: if the checkpoint cannot be used.
        KeyboardInterrupt, Terminated: with a checkpoint, only once it was saved.

    Source: gong2021; bui2018.

    >>> from posterity.families import Beta
    >>> from posterity.models import BetaBernoulli
    >>> coins = {"north": np.array([1, 1, 0]), "south": np.array([0, 1])}
    >>> run = federate(coins, BetaBernoulli(), Beta.from_standard(1.0, 1.0), steps=1)
    >>> float(run.posterior.a), float(run.posterior.b)
    (4.0, 3.0)
    """
    NATURAL.or_none().check(steps=steps)
    options = {"schedule": schedule, "update": update, "weights": weights, "key": key}
    options |= {"personal": personal, "on_error": on_error, "tolerance": tolerance}
    run = start(sites, model, prior, **options)
    if few := too_few_hops(run, steps):
        warnings.warn(few, ConvergenceWarning, stacklevel=3)
    run = proceed(run, steps, tolerance is not None, progress=progress, checkpoint=checkpoint)
    if steps != 0 and not run.status.converged:
        warnings.warn(_not_converged(run), ConvergenceWarning, stacklevel=3)
    return run


def proceed(
    run: Run,
    steps: int | None,
    converge: bool,
    *,
    progress: ProgressCallback | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Run:
    """The run after ``steps`` steps in all or, with ``converge``, once it has converged.

    Without ``steps`` it ends once it has converged, or after a hundred rounds. With a checkpoint
    it goes on from there. Errors as of :func:`federate`; nothing is warned of.
    """
    most, converge = (ROUNDS * run.round, True) if steps is None else (steps, converge)
    if checkpoint is not None:
        return kept(run, checkpoint, most, converge, progress)
    while not run.is_at_goal(most, converge):
        run = run.towards(most, converge, progress)
    return run


def start(
    sites: Mapping[str, Any],
    model: Model | Callable[[Any, Any], Any],
    prior: ExponentialFamily | Ledger | str | os.PathLike[str],
    *,
    schedule: Schedule | None = None,
    update: LocalUpdate | None = None,
    weights: Mapping[str, float] | None = None,
    personal: bool | Sequence[int | str] | Mapping[Any, float] = False,
    tolerance: float | None = None,
    on_error: Literal["raise", "pass"] = "raise",
    key: jax.Array | None = None,
) -> Run:
    """The run before its first step; arguments and errors as for :func:`federate`."""
    ON_ERROR.check(on_error=on_error)
    SCHEDULE.or_none().check(schedule=schedule)
    MODEL.check(model=model)
    POSITIVE.or_none().check(tolerance=tolerance)
    SITES.check(sites=list(sites))
    given: Any = loaded(prior)
    check_names([*sites, *(given.entries if isinstance(given, Ledger) else ())])
    model = model if isinstance(model, Model) else FunctionModel(model)
    sites, given = in_order(sites, given)
    if personal is not False:
        if isinstance(given, Ledger):
            raise UsageError(
                found="a ledger to go on from, with personal parameters",
                expected="a prior for them",
                fix="Pass `ledger.posterior`, as a prior.",
            )
        model, given = hierarchical(model, given, personal)
    if update is None:
        update = PartialPooling() if PartialPooling.serves(model, given.prior if isinstance(given, Ledger) else given) else LocalUpdate()
    if schedule is None:
        schedule = Synchronous(damping=1.0) if update.trains else Sequential()
    ledger = given if isinstance(given, Ledger) else Ledger(given)
    prior = ledger.prior
    key = first_key() if key is None else key
    records = _records(sites, weights or {}, model)
    update = update.resolve(model, prior)
    _check_fit(model, update, records, prior)
    _check_cost(model, update, records, prior)
    silent = frozenset(site for site, held in records.items() if held.silent)
    agreement = Agreement(model, update, tuple(records), silent, on_error)
    federation = Federation(agreement, _sites(agreement, records), dict(ledger.entries))
    begun = State.of(prior)
    if ledger.entries:
        check_proper(ledger.posterior, "the posterior of the ledger")
        begun = begun.with_entries(ledger.entries)
    first = schedule.init(begun, tuple(records), key=fold_in(key, 0))
    if ledger.entries:
        first = schedule.learn(first, first.entries)
    return Run(federation, schedule, first, key, tolerance=tolerance or TOLERANCE)


def _sites(agreement: Agreement, records: Mapping[str, Records]) -> dict[str, Site]:
    """Each site with its records and what it has to know of the others' sizes."""
    weights = {site: float(held.weights.sum()) for site, held in records.items()}
    total, update = math.fsum(weights.values()), agreement.update
    # To compile a program for each number of records would take too long where there are many.
    padding = len({held.size for held in records.values()}) > PROGRAMS
    share = lambda site: weights[site] / total if update.trains else 1.0
    return {
        site: Site(site, agreement.model, update, held, padding, share(site))
        for site, held in records.items()
    }


def too_few_hops(run: Run, steps: int | None) -> str | None:
    """A warning of a walk that is too short to visit all sites of its graph."""
    schedule = run.schedule
    if not isinstance(schedule, OverGraph) or not 0 < (steps or 0) <= schedule.cover:
        return None
    return (
        f"{steps} hops are too few: it takes {schedule.about_cover} to visit all "
        f"{schedule.network.size} sites of this graph, and more to converge."
    )


def _not_converged(run: Run) -> str:
    return f"The posterior has {run.status} (after {run.state.step} {run.schedule.unit})."


def _records(
    sites: Mapping[str, Any], weights: Mapping[str, float], model: Model
) -> dict[str, Records]:
    """Every site's data, checked, by sorted name."""
    unknown = sorted(set(weights) - set(sites))
    if unknown or not all(math.isfinite(w) and w >= 0 for w in weights.values()):
        raise UsageError(
            found=f"weights {dict(weights)}",
            expected=f"finite weights, not negative, of sites among {sorted(sites)}",
            fix="Check names and numbers; weight 0 mutes a site.",
        )
    records = {}
    for site in sorted(sites):
        with _at_site(site):
            records[site] = Records.of(sites[site], weights.get(site, 1.0))
    if not _pass_together(model, records.values()):
        check = model.check  # bound once: Equinox makes a Module of it each time
        for site, held in records.items():
            with _at_site(site):
                if held.size:
                    check(held.data)
    return records


def _pass_together(model: Model, sites: Iterable[Records]) -> bool:
    """Whether the data of all sites pass a check of many at once, which takes a call a batch."""
    if type(model).check is not Model.check:
        return False
    try:
        for batch in joined(sites):
            model.check(batch.data)
    except PosterityError:
        return False
    return True


@contextlib.contextmanager
def _at_site(site: str) -> Iterator[None]:
    """Says of errors whose data they are about."""
    try:
        yield
    except PosterityError as error:
        raise error.at(f"the data of site {site!r}") from error


def _check_fit(
    model: Model, update: LocalUpdate, sites: Mapping[str, Records], prior: ExponentialFamily
) -> None:
    """Raise a StructureError if the shapes of a site's data do not fit the prior's.

    What else is wrong with a model is told at the visit of the site where it shows.
    """
    if update.trains or isinstance(update, PartialPooling):  # which check as they go
        return
    checked, own = set(), isinstance(model, FunctionModel)
    # What JAX raises where shapes differ; a user's function raises what it likes.
    shapes = TypeError if own else (TypeError, ValueError)
    for site, records in sites.items():
        leaves = jax.tree.leaves(records.data)
        kind = tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves)
        if records.size == 0 or kind in checked:
            continue
        checked.add(kind)
        try:
            with jax.enable_x64(True):
                gradient = eqx.filter_eval_shape(_gradient, update, model, prior, records)
        except StructureError as error:
            raise error.at(f"the model at site {site!r}") from error
        except Exception as error:
            if isinstance(error, shapes) and not isinstance(error, jax.errors.JAXTypeError):
                raise _misfit(site, leaves, prior, str(error).splitlines()[0]) from error
        else:
            if structure(gradient) != structure(prior):
                raise _misfit(site, leaves, prior, f"the model finds {gradient!r}")


def _check_cost(
    model: Model, update: LocalUpdate, sites: Mapping[str, Records], prior: ExponentialFamily
) -> None:
    """Raise a UsageError where partial pooling would take minutes a pass."""
    estimator = update.estimator
    if not model.joint or not isinstance(estimator, Cubature):
        return
    size, records = prior.event_size, sum(held.size for held in sites.values())
    nodes = (estimator.finer() or estimator).number(size)
    if (work := nodes * size * records) > MOST_WORK:
        raise UsageError(
            found=f"partial pooling of {records} records with {size} shared parameters by up to "
            f"{nodes} nodes: about {work * SECONDS / 60:.0f} minutes a pass",
            expected=f"no more than {MOST_WORK * SECONDS / 60:.0f} minutes",
            fix="Let fewer columns differ, as in personal=[0], or take fewer nodes: "
            "update=LocalUpdate(Cubature(32, most=32)) of posterity.inference.cubature.",
        )


def _misfit(site: str, leaves: list[Any], prior: Any, why: str) -> StructureError:
    return StructureError(
        found=f"records of shapes {[np.shape(leaf) for leaf in leaves]} at site {site!r}, which do "
        f"not go together with {prior!r} ({why})",
        expected="data, model and prior of matching dimensions",
        fix="Compare the number of columns with the dimension of the prior.",
    )


def _gradient(update: LocalUpdate, model: Model, q: ExponentialFamily, records: Records) -> Any:
    estimator = update.estimator
    assert estimator is not None, "resolve fills it in"
    return estimator(model, q, records, key=jax.random.key(0))
