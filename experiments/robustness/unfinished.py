"""What unfinished runs say is left, beside what is: `python -m experiments.robustness.unfinished`.

Each run has made a few steps of a random schedule by a random local rule; its optimum is that of
a federation by line searches to 1e-10 nats. Goes on where an earlier run ended
(`results/unfinished.jsonl`), and writes `results/unfinished.json`.
"""

import collections
import math
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.special import expit

from experiments import harness
from experiments.estimators import BonnetPrice, Reinforce
from experiments.robustness.problems import poisson, wide
from posterity.errors import SiteError
from posterity.federation import Asynchronous, Gossip, Sequential, Synchronous, federate
from posterity.federation.federate import start
from posterity.graphs import ring
from posterity.inference.update import LocalUpdate
from posterity.models import LogisticRegression

RESULTS = Path(__file__).parent / "results"
SITES = ("a", "b", "c", "d")
FACTOR = 3.0  # what is said may be so many times too little or too much
UPDATES: dict[str, Any] = {
    "line search": LocalUpdate(),
    "rate .01": LocalUpdate(rate=0.01),
    "rate .1": LocalUpdate(rate=0.1, steps=2),
    "reinforce": LocalUpdate(Reinforce(), steps=10),
    "Bonnet and Price": LocalUpdate(BonnetPrice(), steps=5),
    "batches": LocalUpdate(batch_size=8, steps=5),
}
SCHEDULES: dict[str, Any] = {
    "sequential": Sequential(),
    "synchronous": Synchronous(damping=0.3),
    "asynchronous": Asynchronous(),
    "gossip": Gossip(ring(list(SITES))),
}


def unfinished(seed: int) -> dict[str, Any]:
    """One run: what it says is left, and what is."""
    rng = np.random.default_rng([4, seed])
    rule, order = str(rng.choice(list(UPDATES))), str(rng.choice(list(SCHEDULES)))
    counts, diagonal = rng.random(2) < [0.3, 0.3]
    mean, scale = rng.choice([0.0, 0.0, 2.0, 20.0]), 10 ** rng.uniform(-1, 1)
    slopes, data = rng.normal(size=2) * [1, 0.5 / scale], {}
    for site in SITES:
        x = np.c_[np.ones(24), mean + scale * rng.normal(size=24)]
        predictor = (x - [0, mean]) @ slopes
        rate, chance = np.exp(predictor.clip(-4, 3)), expit(predictor)
        y = rng.poisson(rate) if counts else rng.random(24) < chance
        data[site] = x, y.astype(float)
    variance = rng.choice([1.0, 10.0, 100.0])
    prior = wide(np.full(2, variance), diagonal)
    model: Any = poisson if counts else LogisticRegression()
    with warnings.catch_warnings(action="ignore"):
        optimum = federate(data, model, prior, tolerance=1e-10)
        settings = {"schedule": SCHEDULES[order], "update": UPDATES[rule]}
        run = start(data, model, prior, key=jax.random.key(seed), **settings)
        try:
            run = run.advance(int(rng.integers(1, 6)) * run.round)
        except SiteError as error:  # a fixed rate may lead out of all bounds
            run: Any = error.run  # pyright: ignore[reportAttributeAccessIssue]
        began = time.process_time()
        status = run.status
    left = float(optimum.posterior.kl(run.posterior))
    return {
        "seed": seed,
        "rule": rule,
        "order": order,
        "diagonal": bool(diagonal),
        "counts": bool(counts),
        "mean": mean,
        "scale": scale,
        "state": status.state,
        "said": status.left,
        "left": left,
        "why": list(status.reasons),
        "rounds": run.state.step // run.round,
        "optimum": optimum.status.left,
        "seconds": round(time.process_time() - began, 2),
    }


def verdict(row: dict[str, Any]) -> str:
    if row["state"] == "converged":
        return "converged" if row["left"] <= 1e-2 else "silent"
    if not math.isfinite(row["said"]):
        return "not known"
    ratio = row["said"] / max(row["left"], 1e-12)
    return "too little" if ratio < 1 / FACTOR else "too much" if ratio > FACTOR else "within"


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in rows:
        for kind in (row["rule"], row["order"], "all"):
            table[kind][verdict(row)] += 1
    return {
        "left": "KL divergence of the optimum from the posterior, in nats",
        "within": f"said within a factor of {FACTOR}",
        "counts": {kind: dict(sorted(counts.items())) for kind, counts in sorted(table.items())},
    }


def run(*, count: int = 500, minutes: float = math.inf, results: Path = RESULTS) -> dict[str, Any]:
    """So many runs, less those that are in the file; none begins after so many minutes."""
    keys, path = [(seed,) for seed in range(count)], results / "unfinished.jsonl"
    found = summary(harness.rows(path, ("seed",), keys, unfinished, minutes))
    harness.write(results, "unfinished", found)
    return found


if __name__ == "__main__":
    harness.command(run)
