"""Posteriors with two modes, by pursued mixtures: `python -m experiments.pursuit.two_modes`.

A line with Student noise and two instruments that contradict each other; and a logistic regression
on two features of which one matters, and that are all but the same in training.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments import harness
from experiments.pursuit import CACHE, RESULTS, pictures, predictions
from experiments.pursuit.predictions import MEAN_FIELD, OURS, TRUTH, Problem
from posterity.families import DiagonalGaussian, Mixture
from posterity.models import FunctionModel, LogisticRegression

FREEDOM, SCALE, SLOPE = 2.0, 0.3, 2.0
"""Degrees of freedom and scale of the noise, and the slope that the instruments disagree about."""
EFFECT, APART = 3.0, 0.15
"""Of the feature that matters; the standard deviation of the difference between both."""
SPIKE, SLAB = 0.2, 3.0
"""Standard deviations of the prior of an effect: none to speak of, or one; each half the time."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is run: components, steps of rivals' climbs, burn-in of SGLD, sets of records.

    ``pairs`` are records of the line, one an instrument; ``records`` those of the twin features.
    """

    counts: tuple[int, ...] = (1, 2, 4, 8)
    steps: int = 4000
    burn_in: int | None = None
    lines: int = 10
    twins: int = 16
    pairs: int = 5
    records: int = 60
    tests: int = 400


QUICK = Effort((1, 2), steps=50, burn_in=250, lines=1, twins=1, pairs=4, records=10, tests=20)


def student(z: Any, data: Any) -> Any:
    """Log likelihoods (n,) of records (x, y): y = z₀ + z₁ x + Student noise of known scale."""
    x, y = data
    away = (y - z[0] - z[1] * x[:, 0]) / SCALE
    constant = math.lgamma((FREEDOM + 1) / 2) - math.lgamma(FREEDOM / 2)
    constant -= math.log(FREEDOM * math.pi) / 2 + math.log(SCALE)
    return constant - (FREEDOM + 1) / 2 * jnp.log1p(away**2 / FREEDOM)


LINE = FunctionModel(student, lambda z, x: z[0] + z[1] * x[:, 0], "gaussian", SCALE**2)


def line(seed: int, effort: Effort) -> Problem:
    """Both instruments see the same inputs; one has the slope 2, the other -2."""
    rng = np.random.default_rng(seed)

    def records(pairs: int) -> tuple[Any, Any]:
        x = np.tile(rng.uniform(-2, 2, pairs), 2)
        slope = np.repeat([SLOPE, -SLOPE], pairs)
        return x[:, None], slope * x + SCALE * rng.standard_t(FREEDOM, 2 * pairs)

    prior = DiagonalGaussian.from_standard(np.zeros(2), np.full(2, 4.0))
    return Problem(LINE, prior, prior, records(effort.pairs), records(effort.tests // 2))


def spike_and_slab() -> Mixture:
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
    return Problem(LogisticRegression(), spike_and_slab(), base, train, test)


PROBLEMS: dict[str, tuple[Callable[[int, Effort], Problem], Callable[[Any], Any], str, str]] = {
    "line with two instruments": (
        line,
        lambda points: points[:, 1] > 0,
        "lines",
        f"y = a + b x + Student noise ({FREEDOM:g} degrees, scale {SCALE:g}); N(0, 4) priors; "
        f"pairs of records, of slopes {SLOPE:g} and -{SLOPE:g}; test records of both",
    ),
    "twin features": (
        twins,
        lambda points: points[:, 0] > points[:, 1],
        "twins",
        f"x₂ = x₁ + {APART:g} noise, independent in the test; one effect is {EFFECT:g}, one 0; "
        f"each has the prior N(0, {SPIKE**2:.2g})/2 + N(0, {SLAB**2:g})/2",
    ),
}
"""By name: the problem of a seed, which points are in one of the modes, sets in `Effort`, words."""


def scores(name: str, seed: int, effort: Effort) -> dict[str, Any]:
    """Scores on one set of records, and the weight of the lesser mode."""
    make, in_one, *_ = PROBLEMS[name]
    problem = make(seed, effort)
    points, weights = predictions.exact(problem)
    options = {"steps": effort.steps, "chains": {"burn_in": effort.burn_in}}
    one = float(weights[in_one(points)].sum())
    return {
        **predictions.curve(problem, effort.counts, seed, **options),
        TRUTH: predictions.score(problem, points, weights),
        "weight of the lesser mode": min(one, 1 - one),
    }


def run(
    *, results: Path = RESULTS, cache: Path = CACHE, only_kept: bool = False, quick: bool = False
) -> dict[str, Any]:
    """Measure, judge, draw and write; returns what `two_modes.json` holds."""
    effort, goals, reports = QUICK if quick else Effort(), [], {}
    few = dataclasses.replace(effort, lines=0, twins=0)
    for name, (_, _, sets, setting) in PROBLEMS.items():
        rows = []
        for seed in range(getattr(effort, sets)):
            make = functools.partial(scores, name, seed, effort)
            row = harness.kept(cache, f"{sets}-{seed}", None if only_kept else make, few)
            if row is not None:
                rows.append(row)
                print(name, seed, {k: row[k] for k in (TRUTH, OURS, MEAN_FIELD)}, flush=True)
        if rows:
            gain = predictions.gain(rows, max(effort.counts))
            goals.append(predictions.verdict(name, gain))
            reports[name] = {
                "setting": setting,
                "data sets": len(rows),
                "gain over mean-field VI": gain,
                **harness.over_seeds(rows),
            }
    found = {
        "paper": "the slides print no numbers",
        "truth": "by a grid: two parameters",
        "spread": "standard error of the mean over data sets",
        "seeds": "numbers of data sets",
        "goals": goals,
        "effort": dataclasses.asdict(effort),
        **reports,
        "made with": harness.versions(),
    }
    harness.write(results, "two_modes", found)
    if reports:
        pictures.curves(reports, results / "two_modes.png")
    return found


if __name__ == "__main__":
    harness.command(run)
