"""What noise on factors costs four hospitals: `python -m experiments.privacy.run`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments import harness, provenance
from experiments.data import heart_disease
from experiments.heart import kinds, trials
from experiments.heart.preparation import Split, prepare
from experiments.privacy.membership import attack_auc, difference_test
from posterity.engine.privacy.noise import GaussianMechanism, proper_factor, record_contributions

PLACE = harness.Place.of(__file__)
SEEDS, NOISES = 10, 5
DELTA = 1e-5
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
CLIPS = {
    "record": {0.5: 0.05, 1.0: 0.05, 2.0: 0.1, 4.0: 0.1, 8.0: 0.2},
    "site": dict.fromkeys(EPSILONS, 0.1),
}
"""By unit and epsilon, chosen on a split that is not reported (seed 1000)."""
RELATIONS = {"record": "add or remove", "site": "replace"}
SMALL = "switzerland"  # of fewer patients than the posterior has natural parameters
UNCLIPPED = 1e9
PRIOR, MODEL = kinds.logistic().prior, kinds.logistic().model
Rows = Mapping[str, np.ndarray]


def mechanism(unit: str, clip: float, noise: float = 0.0, shares: int = 1) -> GaussianMechanism:
    """At the prior, which everybody knows; without noise unless it is said."""
    return GaussianMechanism(PRIOR, clip, noise, RELATIONS[unit], shares)  # pyright: ignore


def noises() -> dict[float, float]:
    """The noise, in sensitivities, of one release, by epsilon."""
    calibrated = GaussianMechanism.calibrated
    return {e: calibrated(PRIOR, 1.0, epsilon=e, delta=DELTA).noise for e in EPSILONS}


def contributions(splits: Mapping[str, Split], seed: int) -> dict[str, Rows]:
    """By unit and hospital: a row a patient, and one of the hospital's own posterior."""
    alone = trials.fit_alone(kinds.logistic(), splits, seed)
    return {
        "record": {
            site: record_contributions(MODEL, PRIOR, (split.x_train, split.y_train))
            for site, split in splits.items()
        },
        "site": {site: (q - PRIOR).natural_parameters[None] for site, q in alone.items()},
    }


def released(rows: Rows, made: Any, rng: np.random.Generator) -> Any:
    total = PRIOR.zero()
    for site in sorted(rows):
        total = total + made.release(rows[site], rng=rng)
    return PRIOR + proper_factor(PRIOR, total)


def scores(q: Any, splits: Mapping[str, Split]) -> dict[str, float]:
    x, y = trials.together(trials.held_out(splits))
    p = np.clip(kinds.predict_logistic(q, x), kinds.SMALLEST, 1 - kinds.SMALLEST)
    return {
        "log likelihood": trials.mean_log_likelihood(p, y),
        "AUROC": attack_auc(p[y == 1], p[y == 0]).value,
    }


def attacked(split: Split, made: GaussianMechanism, rng: np.random.Generator) -> float:
    """AUC of who has the posteriors before and after one hospital, and knows all candidates."""
    members, others = (record_contributions(MODEL, PRIOR, pair) for pair in (split[:2], split[2:]))
    after = PRIOR + made.release(members, rng=rng)
    return difference_test(PRIOR, after, members, others, mechanism=made).auc


def one_seed(seed: int, table: Any, noise: Mapping[float, float], draws: int) -> dict[str, Any]:
    """All methods, on one split of the patients; means over draws of the noise."""
    splits = prepare(table, seed=seed)
    rows, rng = contributions(splits, seed), np.random.default_rng(seed)
    sites, key = trials.training(splits), trials.purpose(seed, 1)
    federated = trials.fit(kinds.logistic(), "server, sequential", sites, key=key)
    whole = released(rows["record"], mechanism("record", UNCLIPPED), rng)
    found: dict[str, Any] = {
        "federated": scores(federated.posterior, splits),
        "one shot, nothing clipped": scores(whole, splits),
        "prior": scores(PRIOR, splits),
    }
    for unit, clips in CLIPS.items():
        for clip in sorted(set(clips.values())):
            quiet = released(rows[unit], mechanism(unit, clip), rng)
            found[f"{unit}, clip {clip:g}, no noise"] = scores(quiet, splits)
        for shares, name in ((1, "each"), (len(splits), "shared")):
            for epsilon in EPSILONS:
                made = mechanism(unit, clips[epsilon], noise[epsilon], shares)
                drawn = [scores(released(rows[unit], made, rng), splits) for _ in range(draws)]
                means = {k: float(np.mean([each[k] for each in drawn])) for k in drawn[0]}
                found[f"{unit}, {name}, {epsilon:g}"] = means
    attacks = {"no noise": mechanism("record", UNCLIPPED)}
    attacks |= {f"{e:g}": mechanism("record", CLIPS["record"][e], noise[e]) for e in EPSILONS}
    attack = {
        name: float(np.mean([attacked(splits[SMALL], made, rng) for _ in range(draws)]))
        for name, made in attacks.items()
    }
    return {"scores": found, "attack": attack}


def run(place: harness.Place = PLACE, *, quick: bool = False) -> dict[str, Any]:
    seeds, draws = (2, 1) if quick else (SEEDS, NOISES)
    table, noise = heart_disease(), noises()
    each = [one_seed(seed, table, noise, draws) for seed in range(seeds)]
    areas = [{name: own["AUROC"] for name, own in seed["scores"].items()} for seed in each]
    lost = [own["federated"] - own["record, shared, 4"] for own in areas]
    found = harness.over_seeds(each)
    goals = {
        "AUROC lost at epsilon 4 a patient, noise shared: 0.02": harness.statistics(lost),
        "AUC of the attack on one hospital's release at epsilon 1: 0.6": found["attack"]["1"],
    }
    summary = {
        "goals": [
            harness.at_most(f"{goal} at most", own, float(goal.split()[-1]))
            for goal, own in goals.items()
        ],
        "results": found,
        "settings": {
            "seeds": seeds,
            "draws of noise a seed": draws,
            "delta": DELTA,
            "clip": {unit: {f"{e:g}": c for e, c in own.items()} for unit, own in CLIPS.items()},
            "relation": RELATIONS,
            "noise, in sensitivities": {f"{e:g}": harness.rounded(s) for e, s in noise.items()},
            "versions": provenance.versions("dp-accounting"),
        },
    }
    place.write("expected", summary)
    return summary


if __name__ == "__main__":
    harness.command(run)
