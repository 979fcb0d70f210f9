"""One measurement of federation, in a process of its own: JSON in as the argument, JSON out."""

import dataclasses
import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import networkx
import numpy as np

from benchmarks import naive_gossip
from benchmarks.launch import ROOT
from benchmarks.measure import SHORT, answer, peak, timings
from experiments.estimators import Reinforce
from experiments.gfvl.simulate import simulate
from posterity import Beta, Gaussian
from posterity.federation import Gossip, federate
from posterity.federation.forget import certify, forget
from posterity.graphs import Network, complete
from posterity.inference import LocalUpdate
from posterity.models import BetaBernoulli, BetaExponential, LinearRegression, LogisticRegression

DEGREE, HOPS_OF_A_RUN, WALKS = 4, 100, 4
SWEEPS_AT_MOST = 12
LEAVERS_WAIT, COMMON_WAIT = 0.9, 0.3


@dataclasses.dataclass(frozen=True)
class Size:
    """What is varied."""

    sites: int = 10
    records: int = 100
    dimension: int = 2
    repetitions: int = 1000
    visits: int = 100
    steps: int = 20


def names(size: Size) -> list[str]:
    """Of the sites, sorted by number."""
    return [f"site {k:06d}" for k in range(size.sites)]


def coins(size: Size, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {site: rng.binomial(1, 0.3, size.records).astype(float) for site in names(size)}


def waits(size: Size, seed: int, leavers: float = COMMON_WAIT) -> dict[str, Any]:
    """Waiting times; those of the last site may have another mean."""
    rng, last = np.random.default_rng(seed), names(size)[-1]
    means = {site: leavers if site == last else COMMON_WAIT for site in names(size)}
    return {site: rng.exponential(mean, size.records) for site, mean in means.items()}


def regressions(size: Size, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=size.dimension)
    draw = lambda x: (x, x @ weights + rng.normal(size=len(x)))
    return {s: draw(rng.normal(size=(size.records, size.dimension))) for s in names(size)}


def links(network: Network) -> naive_gossip.Links:
    """Neighbours as lists, for the plain loop."""
    offsets, neighbours = np.asarray(network.offsets), np.asarray(network.neighbours)
    return [neighbours[a:b].tolist() for a, b in itertools.pairwise(offsets)]


# --- speed beside the plain loop -----------------------------------------------------------------


def conjugate_speed(
    size: Size, seed: int, runs: int, budget: float, plain_walk: str = "conjugate"
) -> dict[str, Any]:
    """Walk steps a second, Beta-Bernoulli on a complete graph; beside one walk as the algorithm
    reads or with sums kept, or NumPy's many.
    """
    sites, prior = coins(size, seed), Beta.from_standard(1.0, 1.0)
    network = Network.from_graph(complete(names(size)))
    rng, own, key = np.random.default_rng(seed), links(network), jax.random.key(seed)
    records, walks = list(sites.values()), size.repetitions

    def ours() -> None:
        many: dict[str, Any] = {"visits": size.visits, "repetitions": walks}
        simulate(sites, BetaBernoulli(), prior, network, **many, key=key)

    if plain_walk == "in_step":
        plain = lambda: naive_gossip.in_step((1.0, 1.0), records, own, size.visits, walks, rng)
        return _speeds(ours, plain, size, size.visits * walks, 1, runs, budget)
    visits = 50 * size.visits
    walk = getattr(naive_gossip, plain_walk)
    plain = lambda: walk((1.0, 1.0), records, own, visits, rng)
    return _speeds(ours, plain, size, visits, 1, runs, budget)


def waiting_speed(
    update: LocalUpdate, size: Size, seed: int, runs: int, budget: float
) -> dict[str, Any]:
    """Walk steps a second, Beta-exponential; the plain loop is always REINFORCE."""
    sites, prior = waits(size, seed), Beta.from_standard(2.0, 2.0)
    network = Network.from_graph(complete(names(size)))
    statistics = [(float(x.size), float(x.sum())) for x in sites.values()]
    rng, own, key = np.random.default_rng(seed), links(network), jax.random.key(seed)

    def ours() -> None:
        many: dict[str, Any] = {
            "visits": size.visits,
            "repetitions": size.repetitions,
            "update": update,
        }
        simulate(sites, BetaExponential(), prior, network, **many, key=key)

    plain = lambda: naive_gossip.waiting(
        (2.0, 2.0), statistics, own, size.visits, rng, steps=size.steps
    )
    return _speeds(ours, plain, size, size.visits, size.steps, runs, budget)


def reinforce_speed(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    update = LocalUpdate(Reinforce(30, 0.0), steps=size.steps, rate=0.005)
    return waiting_speed(update, size, seed, runs, budget)


def default_speed(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """The default estimator, with as many local iterations."""
    return waiting_speed(LocalUpdate(steps=size.steps), size, seed, runs, budget)


def _speeds(
    ours: Callable[[], None],
    plain: Callable[[], Any],
    size: Size,
    plain_visits: int,
    steps: int,
    runs: int,
    budget: float,
) -> dict[str, Any]:
    first = timings(ours, runs=1, budget=0.0)
    # In turns, so that whatever else the machine does falls on both.
    turns = max(1, min(2 * runs, int(budget / first["cpu_s"])))
    timed = lambda call: timings(call, runs=1, budget=10 * SHORT, least=SHORT)
    both = [[timed(call) for call in (ours, plain)] for _ in range(turns)]
    found: dict[str, Any] = {"turns": turns, "first_call_with_compilation_cpu_s": first["cpu_s"]}
    for clock in ("wall", "cpu"):
        fast = np.array([size.visits * size.repetitions / own[f"{clock}_s"] for own, _ in both])
        slow = np.array([plain_visits / own[f"{clock}_s"] for _, own in both])
        speed = {"simulate": float(fast.max()), "plain loop": float(slow.max())}
        found[f"steps_per_s_{clock}"] = speed
        found[f"iterations_per_s_{clock}"] = {who: steps * v for who, v in speed.items()}
        found[f"ratio_{clock}"] = speed["simulate"] / speed["plain loop"]
    return found


# --- growth --------------------------------------------------------------------------------------


def regular(size: Size, seed: int) -> networkx.Graph:
    """A random graph of the sites, in which each has as many links; of as many it is connected."""
    graph = networkx.random_regular_graph(DEGREE, size.sites, seed=seed)
    return networkx.relabel_nodes(graph, dict(enumerate(names(size))))


def sites_growth(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """A few walks of ten visits a site over a random regular graph, from data to posteriors."""
    sites, prior = coins(size, seed), Beta.from_standard(1.0, 1.0)
    graph = regular(size, seed)

    def call() -> None:
        visits = 10 * size.sites
        many: dict[str, Any] = {"visits": visits, "repetitions": WALKS, "every": visits}
        simulate(sites, BetaBernoulli(), prior, graph, **many, key=jax.random.key(seed))

    return _growth(call, sum(x.nbytes for x in sites.values()), runs, budget)


def hops_growth(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """A hundred hops of `federate`, with its checks, sums and ledger, once it is under way."""
    sites, prior = coins(size, seed), Beta.from_standard(1.0, 1.0)
    graph = regular(size, seed)
    run = federate(sites, BetaBernoulli(), prior, schedule=Gossip(graph), steps=10)
    call = lambda: run.advance(HOPS_OF_A_RUN)
    return _growth(call, sum(x.nbytes for x in sites.values()), runs, budget)


def unequal_pass(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """A first pass over logistic regressions of 5 to 2,500 records a site, with compilation."""
    rng, d = np.random.default_rng(seed), size.dimension
    weights, sites = rng.normal(size=d), {}
    for site in names(size):
        records = int(np.exp(rng.uniform(np.log(5), np.log(2500))))
        x = rng.normal(size=(records, d))
        sites[site] = (x, (rng.random(records) < 1 / (1 + np.exp(-x @ weights))).astype(float))
    prior = Gaussian.from_standard(np.zeros(d), np.eye(d))
    done = []
    first = timings(
        lambda: done.append(federate(sites, LogisticRegression(), prior, steps=1)),
        runs=1,
        budget=0.0,
    )
    return first | {"next pass": timings(lambda: done[0].advance(1), runs=runs, budget=budget)}


def many_conjugate(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """`federate` over very many conjugate sites, one more pass, and a site forgotten."""
    sites, done = coins(size, seed), []
    call = lambda: done.append(
        federate(sites, BetaBernoulli(), Beta.from_standard(1.0, 1.0), steps=1)
    )
    first = timings(call, runs=1, budget=0.0)
    next_pass = timings(lambda: done[0].advance(1), runs=runs, budget=budget)
    leaver = names(size)[0]
    forget_one = _of_many(lambda: done[0].forget(leaver), 20, runs, budget)
    return first | {"next pass": next_pass, "forget": forget_one}


def cold_example(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """The first example of docs/federate.md in a new process: the least CPU time of some runs."""
    del size, seed, budget
    page = (ROOT / "docs" / "federate.md").read_text()
    block = page.split("```python\n")[1].split("```")[0]
    code = f"{block}\nfrom benchmarks.resident import highest\nprint(highest())\n"
    cpu, peaks = [], []
    for _ in range(runs):
        before = os.times()
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        )
        after = os.times()
        cpu.append(sum(after[2:4]) - sum(before[2:4]))
        peaks.append(int(done.stdout.split()[-1]))
    return {"cpu_s": min(cpu), "median_cpu_s": float(np.median(cpu)), "peak_bytes": max(peaks)}


def dimension_growth(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """One sweep of linear regression over ten sites, and the posterior's mean."""
    sites = regressions(size, seed)
    d = size.dimension
    prior = Gaussian.from_standard(np.zeros(d), np.eye(d))
    call = lambda: federate(sites, LinearRegression(), prior, steps=1).posterior.mean
    return _growth(call, sum(x.nbytes + y.nbytes for x, y in sites.values()), runs, budget)


def _growth(call: Callable[[], Any], size: int, runs: int, budget: float) -> dict[str, Any]:
    first = peak(call)
    return {**first, **timings(call, runs=runs, budget=budget), "input_bytes": size}


# --- forgetting ----------------------------------------------------------------------------------


def conjugate_forget(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """`Run.forget` and training anew without the site, Beta-Bernoulli."""
    sites, prior, last = coins(size, seed), Beta.from_standard(1.0, 1.0), names(size)[-1]
    run = federate(sites, BetaBernoulli(), prior, steps=1)
    rest = {site: data for site, data in sites.items() if site != last}
    again = lambda: federate(rest, BetaBernoulli(), prior, steps=1)
    gone, anew = run.forget(last).posterior, again().posterior
    return {
        "forget": _of_many(lambda: run.forget(last), 200, runs, budget),
        "retrain": _of_many(again, 5, runs, budget),
        "same": bool((gone.natural_parameters == anew.natural_parameters).all()),
    }


def _of_many(call: Callable[[], Any], times: int, runs: int, budget: float) -> dict[str, Any]:
    """Seconds of one of many calls: clocks of CPU time may tick in milliseconds."""

    def calls() -> None:
        for _ in range(times):
            call()

    found = timings(calls, runs=runs, budget=budget)
    return {k: v / times if k.endswith("_s") else v for k, v in found.items()}


def waiting_forget(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """`forget` with two sweeps, beside training anew to the same certified distance."""
    sites, last = waits(size, seed, LEAVERS_WAIT), names(size)[-1]
    prior = Beta.from_standard(2.0, 2.0)
    run = federate(sites, BetaExponential(), prior, steps=10)
    subtracted = forget(run, last, sweeps=2)
    rest = {site: data for site, data in sites.items() if site != last}
    train = lambda sweeps: federate(rest, BetaExponential(), prior, steps=sweeps)
    assert subtracted.run is not None, "a run was given"
    goal = certify(subtracted.run).distance
    enough = (n for n in range(1, SWEEPS_AT_MOST) if certify(train(n)).distance <= goal)
    sweeps = next(enough, None)
    found = {
        "distance": goal,
        "distance, subtraction alone": certify(run.forget(last)).distance,
        "distance, retrained": [certify(train(n)).distance for n in range(1, 6)],
        "sweeps to retrain": sweeps,
        "forget": _of_many(lambda: run.forget(last).sweep(2), 5, runs, budget),
    }
    if sweeps is not None:
        found["retrain"] = _of_many(lambda: train(sweeps), 5, runs, budget)
    return found


KINDS = {
    "conjugate speed": conjugate_speed,
    "conjugate speed, sums kept": functools.partial(conjugate_speed, plain_walk="kept_sums"),
    "conjugate speed, NumPy in step": functools.partial(conjugate_speed, plain_walk="in_step"),
    "REINFORCE speed": reinforce_speed,
    "default speed": default_speed,
    "sites": sites_growth,
    "hops": hops_growth,
    "sites of unequal size": unequal_pass,
    "many conjugate sites": many_conjugate,
    "cold example": cold_example,
    "dimension": dimension_growth,
    "conjugate forget": conjugate_forget,
    "waiting forget": waiting_forget,
}


if __name__ == "__main__":
    answer(Size, KINDS)
