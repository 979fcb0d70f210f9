"""Logistic regression by pursued mixtures: `python -m experiments.pursuit.logistic`.

First two features of which one matters, and that are all but the same in training: the posterior
has two modes. Then few patients of the heart-disease data, where it has one.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import harness
from experiments.data import heart_disease
from experiments.pursuit import CACHE, RESULTS, pictures, predictions
from experiments.pursuit.predictions import MEAN_FIELD, OURS, TRUTH, Problem
from posterity.errors import ConvergenceWarning
from posterity.families import DiagonalGaussian, Mixture
from posterity.models import LogisticRegression

EFFECT, APART = 3.0, 0.15
"""Of the feature that matters; the standard deviation of the difference between both."""
SPIKE, SLAB = 0.2, 3.0
"""Standard deviations of the prior of an effect: none to speak of, or one; each half the time."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is run."""

    counts: tuple[int, ...] = (1, 2, 4, 8)
    steps: int = 4000
    """Of rivals' climbs."""
    burn_in: int | None = None
    """Of the chains of SGLD."""
    sets: int = 16
    records: int = 60
    tests: int = 400
    splits: int = 10
    patients: int = 60
    """To learn from; the others are for the test."""


FULL = Effort()
QUICK = Effort(counts=(1, 2), steps=50, burn_in=250, sets=1, records=10, tests=20, splits=0)


def prior() -> Mixture:
    """Each effect of two is small or large: four laws of both."""
    pairs = np.array(list(itertools.product([SPIKE**2, SLAB**2], repeat=2)))
    each = DiagonalGaussian.from_standard(np.zeros((4, 2)), pairs)
    return Mixture.from_standard(np.ones(4), each)


def twins(seed: int, effort: Effort) -> Problem:
    """Two features that are all but the same where one learns, and are not where one predicts."""
    rng = np.random.default_rng(seed)
    effects = EFFECT * np.eye(2)[rng.integers(2)]

    def labelled(x: Any) -> tuple[Any, Any]:
        chance = 1 / (1 + np.exp(-x @ effects))
        return x, (rng.uniform(size=len(x)) < chance).astype(np.float64)

    first = rng.normal(size=effort.records)
    x = np.stack([first, first + APART * rng.normal(size=effort.records)], 1)
    base = DiagonalGaussian.from_standard(np.zeros(2), np.full(2, SLAB**2))
    train, test = labelled(x), labelled(rng.normal(size=(effort.tests, 2)))
    return Problem(LogisticRegression(), prior(), base, train, test)


def one_set(seed: int, effort: Effort) -> dict[str, Any]:
    """Scores on one set of records, and the weight of the lesser mode."""
    problem = twins(seed, effort)
    points, weights = predictions.exact(problem)
    chains = {"burn_in": effort.burn_in}
    found = predictions.curve(problem, effort.counts, seed, steps=effort.steps, chains=chains)
    up = float(weights[points[:, 0] > points[:, 1]].sum())
    return {
        **found,
        TRUTH: predictions.score(problem, points, weights),
        "weight of the lesser mode": min(up, 1 - up),
    }


def patients(split: int, effort: Effort) -> Problem:
    """Standardised by those to learn from; what is missing is their mean."""
    table = heart_disease()
    order = np.random.default_rng(split).permutation(len(table.y))
    own, others = order[: effort.patients], order[effort.patients :]
    mean, spread = np.nanmean(table.X[own], 0), np.nanstd(table.X[own], 0)
    x = (table.X - mean) / np.where(spread > 0, spread, 1.0)
    x = np.column_stack([np.ones(len(x)), np.where(np.isnan(x), 0.0, x)])
    y = table.y.astype(np.float64)
    law = DiagonalGaussian.from_standard(np.zeros(x.shape[1]), np.ones(x.shape[1]))
    return Problem(LogisticRegression(), law, law, (x[own], y[own]), (x[others], y[others]))


def one_split(split: int, effort: Effort) -> dict[str, Any]:
    """Scores of one split."""
    chains = {"burn_in": effort.burn_in}
    return predictions.curve(
        patients(split, effort), effort.counts, split, steps=effort.steps, chains=chains
    )


def run(effort: Effort, results: Path = RESULTS, cache: Path = CACHE) -> dict[str, Any]:
    """Measure, judge, draw and write; returns what `logistic.json` holds."""
    few = dataclasses.replace(effort, sets=0, splits=0)
    most = max(effort.counts)
    parts = {
        "twin features": (one_set, effort.sets),
        "heart disease": (one_split, effort.splits),
    }
    goals, reports, curves = [], {}, {}
    for name, (one, count) in parts.items():
        rows = []
        for seed in range(count):
            make = functools.partial(one, seed, effort)
            place = f"logistic-{name.replace(' ', '-')}-{seed}"
            rows.append(harness.kept(cache, place, make, few))
            print(name, seed, {k: rows[-1][k] for k in (OURS, MEAN_FIELD)}, flush=True)
        if rows:
            own = predictions.gain(rows, most)
            if one is one_set:  # where the posterior has two modes
                goals.append(predictions.verdict(name, own))
            reports[name] = {
                "data sets": len(rows),
                "gain over mean-field VI": own,
                **harness.over_seeds(rows),
            }
            curves[name] = rows
    found = {
        "paper": "the slides print no numbers",
        "problem": f"twin features: {effort.records} records, x₂ = x₁ + {APART:g} noise; "
        f"{effort.tests} test records with x₁ and x₂ independent; one effect is {EFFECT:g}, one 0; "
        f"each has the prior N(0, {SPIKE**2:.2g})/2 + N(0, {SLAB**2:g})/2; truth by a grid. Heart "
        f"disease: {effort.patients} patients to learn from, the others for the test, N(0, 1) "
        "priors; one mode",
        "spread": "standard error of the mean over data sets, or over splits, which share records",
        "seeds": "numbers of data sets and splits",
        "goals": goals,
        "effort": dataclasses.asdict(effort),
        **reports,
        "made with": harness.versions(),
    }
    harness.write(results, "logistic", found)
    if curves:
        pictures.curves(curves, results / "logistic.png")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = harness.command_line(__doc__, RESULTS, CACHE)
    parser.add_argument("--splits", type=int, default=FULL.splits, help="of heart disease")
    chosen = parser.parse_args(arguments)
    # what has not converged is judged by its score
    warnings.simplefilter("ignore", ConvergenceWarning)
    effort = QUICK if chosen.quick else dataclasses.replace(FULL, splits=chosen.splits)
    found = run(effort, chosen.results, chosen.cache)
    harness.print_goals(found["goals"])


if __name__ == "__main__":
    main()
