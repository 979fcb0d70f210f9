"""Figures 4 and 5: the Beta-exponential model on the complete graph."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from experiments.estimators import Reinforce
from experiments.gfvl import problem
from experiments.gfvl.problem import (
    WAITING_PRIOR,
    Array,
    Effort,
    WaitingPosterior,
    waiting_times,
)
from experiments.gfvl.report import (
    BEST,
    DEFAULT,
    ONE_COVER,
    PAPERS,
    TWO_COVERS,
    Curve,
    estimate,
    first_within,
    significant,
)
from experiments.gfvl.simulate import Leave, Simulation, simulate
from posterity.federation import federate
from posterity.federation.forget import forget
from posterity.graphs import NonBacktracking, Walk
from posterity.inference import ClosedForm, LocalUpdate, Quadrature, Reparameterization
from posterity.models import BetaExponential

GRAPH = problem.GRAPHS["complete"]
LEFT = GRAPH.index(problem.LEAVER)
LOCAL_ITERATIONS = {"L = 1": 1, "L = 10": 10, "L = 50": 50}
HOPS = 150
BEFORE, AFTER = 100, 150  # visits before someone asks to leave, and after


def estimators() -> dict[str, LocalUpdate]:
    """One iteration a visit, at the paper's rate: only the estimator differs."""
    kinds = {
        PAPERS: Reinforce(problem.PAPERS_SAMPLES, 0.0),
        "REINFORCE, leave-one-out": Reinforce(problem.PAPERS_SAMPLES),
        "implicit reparameterisation": Reparameterization(problem.PAPERS_SAMPLES),
        "quadrature": Quadrature(),
        BEST: ClosedForm(),
    }
    return {
        name: LocalUpdate(kind, steps=1, rate=problem.PAPERS_RATE) for name, kind in kinds.items()
    }


def defaults() -> dict[str, tuple[LocalUpdate, Walk | None]]:
    """What a user gets, and variants, for the question of how many hops are needed."""
    return {
        DEFAULT: (LocalUpdate(), None),
        "rate 1, 20 iterations": (LocalUpdate(rate=1.0, steps=20), None),
        "rate 1, 5 iterations": (LocalUpdate(rate=1.0, steps=5), None),
        "rate 1/2, 100 iterations": (LocalUpdate(rate=0.5, steps=100), None),
        "default, non-backtracking walk": (LocalUpdate(), NonBacktracking()),
        "default with REINFORCE, leave-one-out": (LocalUpdate(Reinforce()), None),
    }


def run(
    sites: Mapping[str, Any],
    update: LocalUpdate | None = None,
    *,
    mean_loss: bool = False,
    seed: int = 0,
    **options: Any,
) -> Simulation:
    options["weights"] = {agent: 1 / problem.RECORDS for agent in sites} if mean_loss else None
    options |= {"update": update or LocalUpdate(), "key": jax.random.key(seed)}
    return simulate(sites, BetaExponential(), WAITING_PRIOR, GRAPH, **options)


def divergence(trial: Simulation, target: WaitingPosterior) -> Array:
    return target.kl(trial.posteriors.a, trial.posteriors.b)


def local_iterations(effort: Effort, *, mean_loss: bool) -> tuple[dict[str, Curve], float]:
    """Figure 4 as the paper made it, under one of the losses; and the floor."""
    sites, found = waiting_times(0), {}
    weight = 1 / problem.RECORDS if mean_loss else 1.0
    target = WaitingPosterior.of(WAITING_PRIOR, sites.values(), weight)
    for name, steps in effort.some(LOCAL_ITERATIONS, "L = 10").items():
        visits = effort.iterations // steps // (2 if mean_loss else 1)
        size = {"visits": visits, "every": max(1, visits // 400), "repetitions": effort.noisy}
        update = problem.papers_update(steps)
        trial = run(sites, update, mean_loss=mean_loss, diverging=True, **size)  # and is counted
        found[name] = Curve(divergence(trial, target), trial.visits, steps)
    return found, target.floor


def by_estimator(effort: Effort, known: Curve | None = None) -> tuple[dict[str, Curve], float]:
    """Under the sum loss, L = 1, the paper's rate; `known` is the paper's own, if there is one."""
    sites = waiting_times(0)
    target = WaitingPosterior.of(WAITING_PRIOR, sites.values())
    found = {}
    for name, update in effort.some(estimators(), PAPERS, BEST).items():
        if name == PAPERS and known is not None:
            found[name] = known
            continue
        # Their draws cost much, or they draw nothing; and they spread little.
        few = isinstance(update.estimator, Reparameterization | Quadrature)
        many = max(effort.noisy // 5, 2) if few else effort.noisy
        size = {"visits": effort.iterations, "every": max(1, effort.iterations // 400)}
        trial = run(sites, update, repetitions=many, diverging=True, **size)
        found[name] = Curve(divergence(trial, target), trial.visits)
    return found, target.floor


def by_default(effort: Effort) -> tuple[dict[str, Curve], dict[str, Any], float]:
    """The default update and variants; visits until a run is at the floor; the floor."""
    sites = waiting_times(0)
    target = WaitingPosterior.of(WAITING_PRIOR, sites.values())
    curves, hops = {}, {}
    for name, (update, walk) in effort.some(defaults(), DEFAULT).items():
        noisy = isinstance(update.estimator, Reinforce)
        visits, many = (4 * HOPS, effort.noisy) if noisy else (HOPS, effort.walks)
        trial = run(sites, update, visits=visits, repetitions=many, walk=walk)
        curves[name] = Curve(divergence(trial, target), trial.visits, update.steps or 20)
        hops[name] = hops_to_floor(curves[name], target.floor)
    return curves, hops, target.floor


def hops_to_floor(curve: Curve, floor: float) -> dict[str, Any]:
    """Hops, by run, until KL is at most 1.2 times the floor; and when the mean over runs is."""
    first = first_within(curve.kl, problem.WITHIN * floor, curve.visits) - 1
    mean = first_within(curve.mean[None], problem.WITHIN * floor, curve.visits) - 1
    reached = ~np.isnan(first)
    never = {"share of runs that did not get there": significant(1 - reached.mean())}
    within = estimate(first[reached]) if reached.sum() > 1 else {"mean": None}
    together = None if np.isnan(mean[0]) else int(mean[0])
    return {**within, **never, "hops until the mean KL over runs is": together}


def over_data_sets(effort: Effort) -> dict[str, Any]:
    means = []
    for seed in range(effort.data_sets):
        sites = waiting_times(seed)
        target = WaitingPosterior.of(WAITING_PRIOR, sites.values())
        trial = run(sites, visits=HOPS, repetitions=effort.walks, seed=seed)
        found = Curve(divergence(trial, target), trial.visits)
        means.append(hops_to_floor(found, target.floor)["mean"])
    return {**estimate(np.array(means)), "least": min(means), "most": max(means)}


def fixed_point() -> tuple[Any, WaitingPosterior]:
    """Where sweeps over a server end, and what they ought to approach."""
    sites = waiting_times(0)
    done = federate(sites, BetaExponential(), WAITING_PRIOR, steps=12)
    return done.posterior, WaitingPosterior.of(WAITING_PRIOR, sites.values())


def unlearning(effort: Effort, *, leavers: float) -> tuple[dict[str, Curve], dict[str, Any], float]:
    """Figure 5: after a request, KL to the posterior of those who stay; one cover; the floor."""
    sites = waiting_times(0, problem.COMMON_WAIT, leavers)
    rest = problem.without_leaver(sites)
    target = WaitingPosterior.of(WAITING_PRIOR, rest.values())
    curves, covered = {}, {}
    for how, asked in (("during the walk", False), ("asked directly", True)):
        size = {"visits": BEFORE + AFTER, "repetitions": effort.walks}
        trial = run(sites, leave=Leave(problem.LEAVER, BEFORE, asked), **size)
        kl = divergence(trial, target)
        curves[how] = Curve(kl[:, BEFORE:], np.arange(AFTER + 1))
        covered[how] = after_cover(kl, np.asarray(trial.positions), target.floor, asked)
    scratch = run(rest, visits=AFTER, repetitions=effort.walks)
    curves["from scratch"] = Curve(divergence(scratch, target), scratch.visits)
    covered |= sweeps(sites, target)
    return curves, covered, target.floor


def after_cover(kl: Array, walked: Array, floor: float, asked: bool) -> dict[str, Any]:
    """KL over the floor once, after the factor has left, everyone else was visited; and twice."""
    left = np.array([0 if asked else _first(row == LEFT) for row in walked[:, BEFORE:]])
    once = covered(walked[:, BEFORE:], left)
    twice = covered(walked[:, BEFORE:], once)
    return {
        ONE_COVER: _at(kl, once, floor),
        TWO_COVERS: _at(kl, twice, floor),
        "visits of one cover": estimate((once - left)[once <= AFTER]),
    }


def covered(walked: Array, start: Array) -> Array:
    """Visits, by repetition, until everyone but the leaver was visited from `start` on."""
    others = [k for k in range(GRAPH.size) if k != LEFT]
    last = [max(_first(row[s:] == k) for k in others) for row, s in zip(walked, start, strict=True)]
    return np.array(last) + start + 1


def _at(kl: Array, end: Array, floor: float) -> dict[str, Any]:
    done = end <= AFTER
    ratio = kl[done, BEFORE + end[done]] / floor
    spread = {"median": 0.5, "95 % of runs are below": 0.95}
    quantiles = {name: significant(np.quantile(ratio, q)) for name, q in spread.items()}
    return {**estimate(ratio), **quantiles, "runs not done in time": int((~done).sum())}


def _first(there: Array) -> int:
    return int(there.argmax()) if there.any() else 10 * AFTER


def sweeps(sites: Mapping[str, Array], target: WaitingPosterior) -> dict[str, Any]:
    """`posterity.forget` on a run over a server, with 0, 1 or 2 passes of refinement."""
    trained = federate(sites, BetaExponential(), WAITING_PRIOR, steps=10)
    found = {}
    for number in (0, 1, 2):
        q = forget(trained, problem.LEAVER, sweeps=number, allow_unconverged=True).ledger.posterior
        kl = float(target.kl(q.a, q.b))
        found[f"forget, {number} sweeps"] = {"KL over floor": significant(kl / target.floor)}
    return found


CASES = {"homogeneous": problem.COMMON_WAIT, "leaver disagrees": problem.LEAVERS_WAIT}
