"""Whether every mode is found, or said to be missing: `python -m experiments.pursuit.modes`.

Mixtures that the family has a member for, in 5, 10 and 20 dimensions, modes six deviations apart
and of weights .6, .3 and .1; and two that are harder: half of the mass five deviations of the base
away, and half of it in a spike of a twentieth.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posterity
from experiments import harness
from experiments.pursuit import PLACE
from posterity.families import DiagonalGaussian, Gaussian

WEIGHTS = (0.6, 0.3, 0.1)
SIZES = (5, 10, 20)
NEAR = 1e-3  # of each weight: what counts as found
KINDS = ("diagonal", "full")


def log_density(means: Any, deviations: Any, weights: Any, z: Any) -> Any:
    """Of round Gaussians, in nats."""
    squared = ((z - means) ** 2).sum(-1) / deviations**2
    return jax.nn.logsumexp(jnp.log(weights) - squared / 2 - z.size * jnp.log(deviations))


def three(size: int, seed: int) -> Any:
    """Means whose distances from one another are six, turned at random: (3, d)."""
    axes = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, 3)))[0].T
    return 6 / np.sqrt(2) * axes, np.ones(3), np.array(WEIGHTS)


def far(size: int, seed: int) -> Any:
    """Two modes, one of them five deviations of the base away."""
    away = np.random.default_rng(seed).normal(size=size)
    return np.stack([0 * away, 15 * away / np.linalg.norm(away)]), np.ones(2), np.full(2, 0.5)


def spike(size: int, seed: int) -> Any:
    """A round Gaussian, and as much mass within a twentieth of its deviation."""
    place = np.random.default_rng(seed).normal(size=size)
    return np.stack([0 * place, place]), np.array([1.0, 0.05]), np.full(2, 0.5)


def measured(kind: str, size: int, law: Any, seed: int) -> dict[str, Any]:
    """One pursuit with its defaults: what was found, what it says of itself, and what it cost."""
    means, deviations, weights = law
    base = (
        DiagonalGaussian.from_standard(np.zeros(size), np.full(size, 9.0))
        if kind == "diagonal"
        else Gaussian.from_standard(np.zeros(size), 9 * np.eye(size))
    )
    target, begun = jax.tree_util.Partial(log_density, *law), time.process_time()
    result: Any = posterity.pursue(target, base, key=jax.random.key(seed))
    seconds = time.process_time() - begun
    centres = np.asarray(result.posterior.components.mean)
    distances = np.linalg.norm(centres[:, None] - means, axis=-1) / deviations
    found = np.zeros(len(means))
    for row, weight in zip(distances, np.asarray(result.posterior.weights), strict=True):
        if row.min() < np.sqrt(size):
            found[row.argmin()] += weight
    return {
        "modes": int((found > 0).sum()),
        "error": float(np.abs(found - weights).max()),
        "gap": float(result.gap),
        "state": result.status.state,
        "starts": result.starts,
        "unseen": result.unseen,
        "gradients": result.trace[-1].evaluations,
        "CPU s": seconds,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    column = lambda name: np.array([row[name] for row in rows])
    right = column("error") < NEAR
    return {
        "seeds": len(rows),
        "found": int(right.sum()),
        "missed, and converged": int((~right & (column("state") == "converged")).sum()),
        "worst error of a weight": float(column("error").max()),
        "worst gap, nats": float(column("gap").max()),
        "starts": int(column("starts").min()),
        "unseen": float(column("unseen").max()),
        "gradients, median": float(np.median(column("gradients"))),
        "CPU s, first": float(column("CPU s")[0]),
        "CPU s, median of the others": float(np.median(column("CPU s")[1:])),
    }


def run(place: harness.Place = PLACE, *, seeds: int = 50) -> dict[str, Any]:
    problems = [("three", three, size, kind) for size in SIZES for kind in KINDS]
    problems += [("half of the mass 15 away", far, 5, "diagonal"), ("spike", spike, 5, "diagonal")]
    tables: dict[str, Any] = {}
    for name, law, size, kind in problems:
        title, one = f"{name}, {size} dimensions, {kind}", functools.partial(measured, kind, size)
        make = lambda law=law, size=size, one=one: [one(law(size, s), s) for s in range(seeds)]
        rows = place.kept(f"modes, {title}, {seeds}", make)
        if rows is not None:
            tables[title] = summary(rows)
            place.write("modes", tables)
            print(title, tables[title], flush=True)
    return tables


if __name__ == "__main__":
    harness.command(run)
