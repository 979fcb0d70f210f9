"""Which intervals hold in a meta-analysis: `python -m experiments.personal.one_shot`.

Fields of 3 to 30 studies of one effect, with known standard errors, equal or from 0.3 to 3 (log
uniform); effects differ by 0 to 2 of the typical error. How often does each 95 % interval cover
the population's mean, and how long is it? Writes `one_shot.json`; a stopped run goes on.
"""

import itertools
from typing import Any

import numpy as np
import scipy

import posterity
from experiments import harness

PLACE = harness.Place.of(__file__, "personal")
SITES = (3, 5, 10, 20, 30)
ERRORS = ("equal", "unequal")
SPREADS = (0.0, 0.5, 1.0, 2.0)
FIELDS = 500
"""Fields of each kind: a share of 0.95 then has a standard error of 0.01."""
LEVEL = 0.95
WALD, KNAPP, AT_LEAST_ONE = "plug-in normal", "Hartung-Knapp", "Hartung-Knapp, scale at least 1"
INTEGRATED = "integrated over the spread"
NEW = "a new site, integrated"


def run(place: harness.Place = PLACE, *, fields: int = FIELDS) -> dict[str, Any]:
    """Return and write coverage and length of intervals, by method and kind of field."""
    kinds = itertools.product(SITES, ERRORS, SPREADS)
    found = {
        f"{count} sites, {errors} errors, spread {spread:g}": place.kept(
            f"one-shot-{count}-{errors}-{spread:g}-{fields}",
            lambda kind=(count, errors, spread): _covered(*kind, fields),
        )
        for count, errors, spread in kinds
    }
    methods = (WALD, KNAPP, AT_LEAST_ONE, INTEGRATED, NEW)
    least = {name: min(own[name]["coverage"] for own in found.values()) for name in methods}
    summary = {
        "goal": f"intervals of {LEVEL:.0%} cover as often, in every kind of field",
        "least coverage": least,
        "mean coverage": {
            name: float(np.mean([own[name]["coverage"] for own in found.values()]))
            for name in methods
        },
        "results": found,
        "settings": {"fields": fields, "level": LEVEL, "versions": harness.versions("scipy")},
    }
    place.write("one_shot", summary)
    return summary


def _covered(count: int, errors: str, spread: float, fields: int) -> dict[str, Any]:
    """Return coverage and median length of each interval of this kind of field."""
    rows = [_field(count, errors, spread, seed) for seed in range(fields)]
    return {
        name: {
            "coverage": float(np.mean([row[name][0] for row in rows])),
            "median length": float(np.median([row[name][1] for row in rows])),
        }
        for name in rows[0]
    }


def _field(count: int, errors: str, spread: float, seed: int) -> dict[str, tuple[bool, float]]:
    """Return whether each interval of one field covers the truth, which is 0, and its length."""
    kind = [count, ERRORS.index(errors), SPREADS.index(spread), seed]
    rng = np.random.default_rng(kind)
    drawn = 0.3 * 10 ** rng.uniform(size=count)
    error = np.ones(count) if errors == "equal" else drawn
    *effects, new = spread * rng.normal(size=count + 1)
    seen = np.array(effects) + error * rng.normal(size=count)
    sites = {
        f"{place:02}": posterity.Gaussian.from_standard([mean], [[sd**2]]).named(["effect"])
        for place, (mean, sd) in enumerate(zip(seen, error, strict=True))
    }
    population = posterity.fuse(sites, personal=True).population
    weights = 1 / (error**2 + population.spread**2)
    mean = weights @ seen / weights.sum()
    scale = np.sqrt(weights @ (seen - mean) ** 2 / (count - 1))
    normal = scipy.stats.norm.ppf((1 + LEVEL) / 2)
    student = scipy.stats.t.ppf((1 + LEVEL) / 2, count - 1)
    own = weights.sum() ** -0.5
    ends = {
        WALD: mean + own * normal * np.array([-1, 1]),
        KNAPP: mean + own * student * scale * np.array([-1, 1]),
        AT_LEAST_ONE: mean + own * student * max(scale, 1) * np.array([-1, 1]),
        INTEGRATED: population.interval(LEVEL)[0],
    }
    covered = {
        name: (bool(low < 0 < high), float(high - low)) for name, (low, high) in ends.items()
    }
    low, high = population.prediction_interval(LEVEL)[0]
    return {**covered, NEW: (bool(low < new < high), float(high - low))}


if __name__ == "__main__":
    harness.command(run)
