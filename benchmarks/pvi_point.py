"""Rounds of partitioned variational inference beside plain JAX, and draws; one point a process."""

import functools
import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import plain_pvi
from benchmarks.federation_point import Size, names, waits
from benchmarks.measure import answer, timings
from experiments.estimators import Reinforce
from experiments.gfvl.simulate import simulate
from posterity import Beta, DiagonalGaussian, Gaussian
from posterity.federation import federate, start
from posterity.graphs import Network, complete
from posterity.inference import LocalUpdate
from posterity.models import BetaExponential, LogisticRegression, NeuralNetwork

RATE, SAMPLES, LAYERS = 0.5, 30, (784, 50, 10)
PLAIN, ROUNDS, NEAR = ((20, 0.5), (5, 0.5), (2, 1.0), (1, 1.0)), 10, 1e-3
"""Steps a visit and rates of plain JAX, the most rounds of it, and the KL divergence, in nats."""


def labelled(size: Size, seed: int) -> dict[str, Any]:
    """Logistic regression, of columns with unit variance."""
    rng, d = np.random.default_rng(seed), size.dimension
    weights = rng.normal(size=d) / np.sqrt(d)

    def site() -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(size.records, d))
        return x, (rng.random(size.records) < 1 / (1 + np.exp(-x @ weights))).astype(float)

    return {name: site() for name in names(size)}


def logistic_round(
    size: Size, seed: int, runs: int, budget: float, *, diagonal: bool
) -> dict[str, Any]:
    """A round after the first, which compiles; and how far the two posteriors' means lie apart."""
    sites, d = labelled(size, seed), size.dimension
    prior = Gaussian.from_standard(np.zeros(d), np.eye(d))
    if diagonal:
        prior = DiagonalGaussian.from_standard(np.zeros(d), np.ones(d))
    update = LocalUpdate(steps=size.steps, rate=RATE)
    run = federate(sites, LogisticRegression(), prior, steps=1, update=update)
    ours = lambda: run.advance(1).posterior.precision_mean
    with jax.enable_x64(True):
        own = [tuple(map(jnp.asarray, pair)) for pair in sites.values()]
        total = (jnp.asarray(prior.precision_mean), jnp.asarray(prior.precision))
        zero = tuple(jnp.zeros_like(part) for part in total)
        go_on = functools.partial(plain_pvi.logistic_round, sites=own, steps=size.steps, rate=RATE)
        state = go_on((total, [zero] * len(own)))
        plain = lambda: go_on(state)
        found = _in_turns(ours, plain, runs, budget)
        gap = np.abs(np.asarray(ours()) - np.asarray(plain()[0][0])).max()
    return found | {"largest_difference": float(gap)}


def default_to_kl(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """`federate` with its defaults and rounds of plain JAX, both until `NEAR` the optimum.

    Plain JAX takes the steps a visit and the rate that lead there in the least time, of some. The
    time of `federate` is that until its status says so, and that of the passes which lead there.
    """
    sites, d = labelled(size, seed), size.dimension
    prior = Gaussian.from_standard(np.zeros(d), np.eye(d))
    best = federate(sites, LogisticRegression(), prior, tolerance=1e-9).posterior
    until_said = lambda: federate(sites, LogisticRegression(), prior)
    begun = lambda passes: start(sites, LogisticRegression(), prior).advance(passes)
    done, kl = until_said(), lambda run: float(run.posterior.kl(best))
    first = next(passes for passes in itertools.count(1) if kl(begun(passes)) <= NEAR)
    found: dict[str, Any] = {"passes": done.state.step, "first_near": first, "kl": kl(done)}
    with jax.enable_x64(True):
        own = [tuple(map(jnp.asarray, pair)) for pair in sites.values()]
        total = (jnp.asarray(prior.precision_mean), jnp.asarray(prior.precision))
        zero = [tuple(jnp.zeros_like(part) for part in total)] * len(own)
        for steps, rate in PLAIN:
            after = functools.partial(_rounds, (total, zero), own, steps=steps, rate=rate)
            near = (n for n in range(1, ROUNDS) if _kl(prior, after(n), best) <= NEAR)
            if (rounds := next(near, None)) is not None:
                plain = functools.partial(after, rounds)
                turns = _in_turns(until_said, plain, runs, budget) | {"rounds": rounds}
                turns["passes alone"] = _in_turns(lambda: begun(first), plain, runs, budget)
                found[f"{steps} steps a visit, rate {rate}"] = turns
    ways = [way for name, way in found.items() if "rate" in name]
    alone = {"ratio_cpu": max(way["passes alone"]["ratio_cpu"] for way in ways)}
    return found | {"ratio_cpu": max(way["ratio_cpu"] for way in ways), "passes alone": alone}


def _rounds(state: Any, sites: Any, rounds: int, **how: Any) -> Any:
    for _ in range(rounds):
        state = plain_pvi.logistic_round(state, sites, **how)
    return state


def _kl(prior: Gaussian, state: Any, best: Gaussian) -> float:
    member = prior._with(**dict(zip(prior.coordinates, map(np.asarray, state[0]), strict=True)))
    return float(member.kl(best)) if member.is_proper() else np.inf


def released_code(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """As many rounds by MattAshman/pvi, with as many expectations a visit, if it is there.

    `PVI_PEER` names the folder of its code, `PVI_PYTHON` an interpreter that has torch and tqdm.
    """
    folder, python = (os.environ.get(name) for name in ("PVI_PEER", "PVI_PYTHON"))
    if not folder or not python:
        return {"absent": "set PVI_PEER to the folder of MattAshman/pvi, PVI_PYTHON to its Python"}
    sites, d = labelled(size, seed), size.dimension
    rounds = 2 * runs
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "sites.npz"
        x, y = zip(*sites.values(), strict=True)
        np.savez(data, x=np.stack(x), y=np.stack(y))
        script = Path(__file__).with_name("peer_pvi.py")
        command = [python, script, folder, data, str(rounds), str(size.steps)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout.splitlines()[-1])
    prior = DiagonalGaussian.from_standard(np.zeros(d), np.ones(d))
    update = LocalUpdate(steps=size.steps, rate=RATE)
    run = federate(sites, LogisticRegression(), prior, steps=1, update=update)
    ours = timings(lambda: run.advance(1), runs=rounds, budget=budget)
    best = federate(sites, LogisticRegression(), prior).posterior
    off = lambda mean: float(np.sqrt(((mean - best.mean) ** 2 * best.precision).mean()))
    found: dict[str, Any] = {"rounds": rounds}
    for clock in ("wall_s", "cpu_s"):
        peer = float(np.median(theirs[clock]))
        found[clock] = {"posterity": ours[clock], "peer": peer}
        found[f"ratio_{clock[:-2]}"] = peer / ours[clock]
    means = {"peer": np.array(theirs["mean"]), "posterity": run.advance(rounds - 1).posterior.mean}
    return found | {"means_off_in_deviations": {who: off(mean) for who, mean in means.items()}}


def network_round(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """One hidden layer, categorical; the same number of draws and steps on both sides."""
    rng, (inputs, hidden, outputs) = np.random.default_rng(seed), LAYERS
    make = lambda: (rng.normal(size=(size.records, inputs)), rng.integers(0, outputs, size.records))
    sites = {name: make() for name in names(size)}
    shapes = [np.zeros((inputs, hidden)), np.zeros((hidden, outputs))]
    network = NeuralNetwork(
        lambda w, x: jnp.tanh(x @ w[0]) @ w[1], shapes, likelihood="categorical"
    )
    prior = network.prior(variance=0.01, key=jax.random.key(seed))
    many = {"sizes": LAYERS, "steps": size.steps, "samples": 8, "rate": 0.1}

    def begun(dtype: str, number: int = 0) -> Any:
        update = LocalUpdate("variational-online-newton", steps=size.steps, rate=0.1, dtype=dtype)
        key = jax.random.key(number)
        return federate(sites, network, prior, steps=1, update=update, key=key)

    runs_of = {dtype: begun(dtype) for dtype in ("float64", "float32")}
    plain_of = {dtype: _plain_network(sites, prior, dtype, many) for dtype in runs_of}
    found = {}
    for ours, theirs in itertools.product(runs_of, plain_of):
        turns = _in_turns(lambda run=runs_of[ours]: run.advance(1), plain_of[theirs], runs, budget)
        found[f"{ours} beside plain in {theirs}"] = turns
    return found | {"distance": _distances(runs_of["float64"], runs_of["float32"], begun)}


def _plain_network(sites: dict[str, Any], prior: Any, dtype: str, many: Any) -> Callable[[], None]:
    """A round in plain JAX, compiled."""
    with jax.enable_x64(dtype == "float64"):
        own = [(jnp.asarray(x, dtype), jnp.asarray(y)) for x, y in sites.values()]
        start = tuple(jnp.asarray(v, dtype) for v in (prior.precision_mean, prior.precision))
        zero = tuple(jnp.zeros_like(part) for part in start)

    def call() -> None:
        with jax.enable_x64(dtype == "float64"):
            total = start
            for x, y in own:
                total, _ = plain_pvi.network_visit(total, zero, x, y, jax.random.key(0), **many)
            jax.block_until_ready(total)

    call()
    return call


def _distances(wide: Any, narrow: Any, begun: Any) -> dict[str, float]:
    """Root mean square of how far means lie apart after ten rounds, in standard deviations."""
    ends = [run.advance(9).posterior for run in (wide, narrow, begun("float64", 1))]
    apart = lambda q: float(np.sqrt(((q.mean - ends[0].mean) ** 2 * ends[0].precision).mean()))
    return {"float32 from float64": apart(ends[1]), "another key": apart(ends[2])}


def reinforce_bound(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Time of all of a simulated visit, and of its draws alone by the sampler that it uses."""
    sites, prior = waits(size, seed), Beta.from_standard(2.0, 2.0)
    network, key = Network.from_graph(complete(names(size))), jax.random.key(seed)
    update = LocalUpdate(Reinforce(SAMPLES, 0.0), steps=size.steps, rate=0.005)
    many: dict[str, Any] = {"visits": size.visits, "repetitions": size.repetitions}

    def ours() -> None:
        simulate(sites, BetaExponential(), prior, network, update=update, **many, key=key)

    with jax.enable_x64(True):
        member = Beta(jnp.asarray(30.0), jnp.asarray(32.0))

        @jax.jit
        def draws(key: Any) -> Any:
            def step(total: Any, number: Any) -> Any:
                keys = jax.random.split(jax.random.fold_in(key, number), size.repetitions)
                drawn = jax.vmap(lambda own: member.sample(own, (SAMPLES,)))(keys)
                return total + drawn.sum(), None

            return jax.lax.scan(step, 0.0, jnp.arange(size.visits * size.steps))[0]

        draws(key).block_until_ready(), ours()
        return _in_turns(ours, lambda: draws(key).block_until_ready(), runs, budget)


def _in_turns(
    ours: Callable[[], Any], plain: Callable[[], Any], runs: int, budget: float
) -> dict[str, Any]:
    """CPU and wall seconds of each in its best turn, and the ratio of these."""
    both, spent = [], 0.0
    while not both or (len(both) < 2 * runs and spent < budget):
        pair = [timings(call, runs=1, budget=0.0) for call in (ours, plain)]
        both.append(pair)
        spent += sum(one["wall_s"] for one in pair)
    found: dict[str, Any] = {"turns": len(both)}
    for clock in ("wall_s", "cpu_s"):
        mine, theirs = (np.array([pair[n][clock] for pair in both]) for n in (0, 1))
        found[clock] = {"posterity": float(mine.min()), "plain": float(theirs.min())}
        found[f"ratio_{clock[:-2]}"] = float(mine.min() / theirs.min())
    return found


KINDS = {
    "logistic round, diagonal": functools.partial(logistic_round, diagonal=True),
    "logistic round, full": functools.partial(logistic_round, diagonal=False),
    "default to 1e-3 nats": default_to_kl,
    "network round": network_round,
    "released PVI code": released_code,
    "REINFORCE beside its draws": reinforce_bound,
}


if __name__ == "__main__":
    answer(Size, KINDS)
