"""Which intervals hold in a meta-analysis: `python -m experiments.personal.one_shot`.

Fields of 3 to 30 studies of one effect, with known standard errors, equal or from 0.3 to 3 (log
uniform); effects differ by 0 to 2 of the typical error, of few studies also by 10 and 100. How
often does each 95 % interval cover the population's mean, a new study's effect and the spread, and
how long is it? Writes `one_shot.json`; a stopped run goes on.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np
import scipy

import posterity
from experiments import harness
from posterity.inference.expectation_propagation import Normal
from posterity.inference.random_effects import Effects, RandomEffects
from posterity.models.personal import Spreads

PLACE = harness.Place.of(__file__, "personal")
SITES = (3, 5, 10, 20, 30)
ERRORS = ("equal", "unequal")
SPREADS = (0.0, 0.5, 1.0, 2.0)
MANY = (10.0, 100.0)
"""Spreads of many errors, at which each study's effect is as good as known."""
FEW = (3, 5, 10)
"""Numbers of studies with which these are looked at: with more, all of what is tried covers."""
FIELDS = 500
"""Fields of each kind: a share of 0.95 then has a standard error of 0.01."""
LEVEL = 0.95
FLAT = 1e6
"""Deviation of the prior of the mean, in typical errors: as good as none."""
WALD, KNAPP, AT_LEAST_ONE = "plug-in normal", "Hartung-Knapp", "Hartung-Knapp, scale at least 1"
PRIORS = {
    "integrated over the spread": Spreads(),
    "integrated, prior median of one error": Spreads(errors=1.0),
    "integrated, a wider prior": Spreads(errors=1.0, common=2.5),
}
ALONE = "integrated, prior median of two errors, whatever the estimates"
INTEGRATED = (*PRIORS, ALONE)
NEW, SPREAD = "; a new site", "; the spread"
OTHERS = [f"{name}{what}" for name in INTEGRATED for what in (NEW, SPREAD)]
METHODS = (WALD, KNAPP, AT_LEAST_ONE, *INTEGRATED, *OTHERS)


def run(place: harness.Place = PLACE, *, fields: int = FIELDS) -> dict[str, Any]:
    """Return and write coverage and length of intervals, by method and kind of field."""
    usual = itertools.product(SITES, ERRORS, SPREADS)
    kinds = [*itertools.product(FEW, ERRORS, MANY), *usual]
    every = {
        f"{count} sites, {errors} errors, spread {spread:g}": place.kept(
            f"one-shot-{count}-{errors}-{spread:g}-{fields}",
            lambda kind=(count, errors, spread): _covered(*kind, fields),
            METHODS,
        )
        for count, errors, spread in kinds
    }
    found = {kind: own for kind, own in every.items() if own is not None}
    # Where there is no spread, no interval of it covers.
    shares = {
        name: [
            own[name]["coverage"]
            for kind, own in found.items()
            if not (name.endswith(SPREAD) and kind.endswith("spread 0"))
        ]
        for name in METHODS
    }
    summary = {
        "goal": f"intervals of {LEVEL:.0%} cover as often, in every kind of field",
        "least coverage": {name: min(own) for name, own in shares.items()},
        "mean coverage": {name: float(np.mean(own)) for name, own in shares.items()},
        "spread of coverage": {name: float(np.std(own)) for name, own in shares.items()},
        "left out": [kind for kind in every if kind not in found],
        "results": found,
        "settings": {
            "fields": fields,
            "seeds": f"0 to {fields - 1} of each kind of field",
            "level": LEVEL,
            "priors": {name: dataclasses.asdict(own) for name, own in PRIORS.items()},
        },
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
    kind = [count, ERRORS.index(errors), (*SPREADS, *MANY).index(spread), seed]
    rng = np.random.default_rng(kind)
    drawn = 0.3 * 10 ** rng.uniform(size=count)
    error = np.ones(count) if errors == "equal" else drawn
    *effects, new = spread * rng.normal(size=count + 1)
    seen = np.array(effects) + error * rng.normal(size=count)
    sites = zip(seen, error, strict=True)
    messages = {
        f"{place:02}": Normal(np.array([mean]) / sd**2, np.array([[sd**-2]]))
        for place, (mean, sd) in enumerate(sites)
    }
    # As posterity.fuse does, but for its check of the sites.
    common = posterity.Gaussian.from_standard([0.0], [[FLAT**2]]).named(["effect"])
    population = Effects(RandomEffects.of(common, True), messages)
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
    }
    covered = {name: _judged(own, 0.0) for name, own in ends.items()}
    priors = {name: RandomEffects.of(common, True, own) for name, own in PRIORS.items()}
    alone = {"effect": Spreads().errors * float(np.median(error))}
    priors[ALONE] = RandomEffects.of(common, alone)
    for name, prior in priors.items():
        integrated = Effects(prior, messages)
        vars(integrated)["spread"] = population.spread  # which has nothing to do with this prior
        covered[name] = _judged(integrated.interval(LEVEL)[0], 0.0)
        covered[f"{name}{NEW}"] = _judged(integrated.prediction_interval(LEVEL)[0], new)
        covered[f"{name}{SPREAD}"] = _judged(integrated.spread_interval(LEVEL)[0], spread)
    return covered


def _judged(ends: Any, truth: float) -> tuple[bool, float]:
    low, high = ends
    return bool(low < truth < high), float(high - low)


if __name__ == "__main__":
    harness.command(run)
