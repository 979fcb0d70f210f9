"""Diagonal posteriors of regressions on raw columns, beside SciPy's optimum of the same energy.

    python -m experiments.robustness.diagonal 200      # random problems, by number

Columns have means up to 1,000 and deviations from .01 to 100, sites 1 to 20. A problem is wrong in
silence where the status says converged and the posterior is more than 1e-3 nats from the reference,
and a false alarm where it does not and the posterior is within.
"""

import collections
import json
import sys
import time
import warnings

import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from posterity.families import DiagonalGaussian, Gaussian, Product
from posterity.federation import federate
from posterity.inference import LocalUpdate
from posterity.models import LogisticRegression

COLUMNS, RECORDS = (4, 10, 24), 120
"""Few sizes, since each is compiled; regressions of the library have any up to ``MOST``."""
MOST = 100
ALLOWED = 1e-3
NODES = np.linspace(-9, 9, 300)  # wide predictors need more than Gauss and Hermite give
CHANCES = np.exp(-(NODES**2) / 2) / np.exp(-(NODES**2) / 2).sum()


def logistic(z, data):
    """A user's own."""
    x, y = data
    f = x @ z
    return y * f - jnp.logaddexp(0.0, f)


def poisson(z, data):
    """A user's own, which grows without bound."""
    x, y = data
    f = x @ z
    return y * f - jnp.exp(f)


def of_blocks(z, data):
    """A user's own, of two blocks."""
    return logistic(jnp.concatenate([z["first"], z["second"]]), data)


def problem(number):
    """Kind, prior, sizes of the blocks held apart, update and sites of a random problem."""
    rng = np.random.default_rng(number)
    kinds = ["regression"] * 10 + ["own"] * 5 + ["poisson"] * 2 + ["blocks"] * 2 + ["noisy"]
    kind = kinds[number % len(kinds)]
    columns = rng.integers(3, MOST) if kind == "regression" else COLUMNS[number // 20 % 3]
    far = rng.choice([0.0, 1.0, 5.0, 20.0, 130.0, 1000.0])
    deviation = rng.choice([0.01, 0.1, 1.0, 10.0, 100.0], columns - 1)
    means = far * rng.choice([-1.0, 1.0], columns - 1) * rng.random(columns - 1)
    slopes = rng.normal(size=columns - 1) / np.sqrt(columns) / deviation
    sites = {}
    for site in range(rng.integers(1, 21)):
        x = np.c_[np.ones(RECORDS), means + deviation * rng.normal(size=(RECORDS, columns - 1))]
        f = (x[:, 1:] - means) @ slopes + 0.2
        chance = 1 / (1 + np.exp(-f))
        y = rng.poisson(np.exp(np.clip(f / 2, -5, 3))) if kind == "poisson" else rng.random(
            RECORDS
        ) < chance  # fmt: skip
        sites[f"site {site:02d}"] = (x, y.astype(float))
    apart = np.eye(columns, dtype=bool)
    prior = DiagonalGaussian.from_standard(np.zeros(columns), np.ones(columns))
    if kind == "blocks":
        half = columns // 2
        apart[:half, :half] = True
        first = Gaussian.from_standard(np.zeros(half), np.eye(half))
        rest = DiagonalGaussian.from_standard(np.zeros(columns - half), np.ones(columns - half))
        prior = Product(first=first, second=rest)
    models = {"regression": LogisticRegression(), "poisson": poisson, "blocks": of_blocks}
    update = LocalUpdate("variational-online-newton") if kind == "noisy" else None
    return kind, prior, apart, models.get(kind, logistic), update, sites


def energy(kind, x, y, mean, covariance):
    """Free energy under a standard normal prior; its slope in the mean, and curvature."""
    variance = np.einsum("ni,ij,nj->n", x, covariance, x)
    if kind == "poisson":
        rate = np.exp(x @ mean + variance / 2)
        fit, slope, bend = y * (x @ mean) - rate, y - rate, rate
    else:
        f = (x @ mean)[:, None] + np.sqrt(variance)[:, None] * NODES
        chance = 1 / (1 + np.exp(-f))
        fit = (y[:, None] * f - np.logaddexp(0, f)) @ CHANCES
        slope, bend = (y[:, None] - chance) @ CHANCES, (chance * (1 - chance)) @ CHANCES
    divergence = np.trace(covariance) + mean @ mean - len(mean) - np.linalg.slogdet(covariance)[1]
    curvature = np.eye(len(mean)) + (x.T * bend) @ x
    return divergence / 2 - fit.sum(), mean - x.T @ slope, curvature


def optimum(kind, apart, sites):
    """By L-BFGS in means that the curvature whitens, and covariances by their own equation."""
    x, y = (np.concatenate(parts) for parts in zip(*sites.values(), strict=True))
    mean = np.zeros(x.shape[1])
    covariance = np.diag(1 / (1 + (x**2).sum(0)))
    for _ in range(200):
        root = np.linalg.cholesky(energy(kind, x, y, mean, covariance)[2])

        def whitened(step, mean=mean, covariance=covariance, root=root):
            moved = mean + solve_triangular(root.T, step)
            with np.errstate(over="ignore", invalid="ignore"):
                value, slope, _ = energy(kind, x, y, moved, covariance)
            slope = solve_triangular(root, slope, lower=True)
            return (value, slope) if np.isfinite(value) else (1e300, 0 * slope)

        found = minimize(whitened, 0 * mean, jac=True, options={"gtol": 1e-8}, method="L-BFGS-B")
        mean = mean + solve_triangular(root.T, found.x)
        after = np.linalg.inv(np.where(apart, energy(kind, x, y, mean, covariance)[2], 0.0))
        moved = np.abs(np.diagonal(after) / np.diagonal(covariance) - 1).max()
        covariance = after
        if moved < 1e-9 and np.abs(found.x).max() < 1e-6:
            return mean, covariance
    return None


def divergence(mean, covariance, other, others):
    """KL between Gaussians."""
    ratio, away = np.linalg.solve(others, covariance), mean - other
    terms = np.trace(ratio) - len(mean) - np.linalg.slogdet(ratio)[1]
    return (terms + away @ np.linalg.solve(others, away)) / 2


def main(count, first=0):
    """Each problem's line, and how often which outcome was had."""
    outcomes = collections.Counter()
    for number in range(first, first + count):
        kind, prior, apart, model, update, sites = problem(number)
        began = time.process_time()
        with warnings.catch_warnings(action="ignore"):
            run = federate(sites, model, prior, update=update)
        seconds, status = time.process_time() - began, run.status
        reference = optimum(kind, apart, sites)
        parts = run.posterior.parts()
        mean = np.concatenate([part.mean for part in parts])
        blocks = [np.diag(p.variance) if p.diagonal else p.covariance for p in parts]
        spread = np.zeros((len(mean), len(mean)))
        start = 0
        for block in blocks:
            spread[start : start + len(block), start : start + len(block)] = block
            start += len(block)
        off = np.nan if reference is None else divergence(mean, spread, *reference)
        near = off <= ALLOWED
        outcome = (
            "no reference" if reference is None
            else ("right" if near else "wrong in silence") if status.converged
            else "false alarm" if near else "said"
        )  # fmt: skip
        outcomes[outcome] += 1
        about = {"number": number, "kind": kind, "columns": len(mean), "sites": len(sites)}
        told = {"off": float(off), "left": status.left, "seconds": round(seconds, 2)}
        print(json.dumps(about | told | {"outcome": outcome, "status": str(status)}), flush=True)
    print(dict(outcomes))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
