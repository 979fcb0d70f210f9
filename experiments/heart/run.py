"""Four hospitals federate, and one leaves: `python -m experiments.heart.run`.

Writes `expected.json` and three figures into `results` beside this file. What each seed found is
kept under the cache folder: a stopped run goes on where it was.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.progress import track

import posterity
from experiments import harness, provenance
from experiments.data import heart_disease
from experiments.heart import forgetting, kinds, trials
from experiments.heart.preparation import Split, prepare
from experiments.heart.report import draw, summarise

PLACE = harness.Place.of(__file__, "heart")
NUTS_SEEDS = 2
LIBRARY = ("arrays", "engine/privacy", "families", "federation", "graphs", "inference", "models")

Splits = dict[str, Split]


def logistic(splits: Splits, seed: int, quick: bool) -> dict[str, Any]:
    return _methods_and_forgetting(kinds.logistic(short=quick), splits, seed)


def network(splits: Splits, seed: int, quick: bool) -> dict[str, Any]:
    """The network, its prior chosen on training patients: all methods, then forgetting."""
    kind, choice = trials.chosen_network(splits, seed, short=quick)
    return {**choice, **_methods_and_forgetting(kind, splits, seed)}


def overfitted(splits: Splits, seed: int, quick: bool) -> dict[str, Any]:
    """A network made to remember: forgetting only."""
    kind = kinds.overfitted_network(key=trials.purpose(seed, trials.SCATTER), short=quick)
    key = trials.purpose(seed, trials.NOISE)
    run = trials.fit(kind, forgetting.METHOD, trials.training(splits), key=key)
    return {
        "log likelihood": {
            "training patients": _log_likelihood(kind, run, trials.training(splits)),
            "held-out patients": _log_likelihood(kind, run, trials.held_out(splits)),
        },
        "forgetting": {s: forgetting.forget_one(kind, run, splits, s, seed) for s in splits},
    }


def nuts(splits: Splits, seed: int, quick: bool) -> dict[str, Any]:
    return trials.compare_with_nuts(kinds.logistic(), splits, seed)


PARTS: dict[str, Callable[[Splits, int, bool], dict[str, Any]]] = {
    "logistic": logistic,
    "network": network,
    "overfitted network": overfitted,
    "NUTS": nuts,
}


def run(
    place: harness.Place = PLACE,
    *,
    seeds: int = 10,
    quick: bool = False,
    _parts: tuple[str, ...] = tuple(PARTS),
) -> dict[str, Any]:
    digest, data = f"{_digest()}{'-quick' if quick else ''}", heart_disease()
    found: dict[str, dict[int, Any]] = {part: {} for part in _parts}
    for seed in track(range(seeds), description="Seeds"):
        for part in _parts:
            if part == "NUTS" and seed >= NUTS_SEEDS:
                continue
            make = lambda: PARTS[part](prepare(data, seed=seed), seed, quick)  # noqa: B023
            name = f"{part.replace(' ', '-')}-{seed}"
            found[part][seed] = place.kept(f"{digest}/{name}", make)
    summary = {"settings": _settings(seeds, quick), **summarise(found)}
    place.write("expected", summary)
    draw(summary, place.results)
    return summary


def _digest() -> str:
    """Of all code that a result depends on: other code, other results."""
    library = Path(posterity.__file__).parent
    here = Path(__file__).parent
    sources = [p for name in LIBRARY for p in library.glob(f"{name}/*")]
    sources += [p for p in here.glob("*.py") if p.stem not in ("run", "report")]
    content = b"".join(path.read_bytes() for path in sorted(sources) if path.suffix == ".py")
    return hashlib.sha256(content).hexdigest()[:12]


def _settings(seeds: int, quick: bool) -> dict[str, Any]:
    return {
        "seeds": list(range(seeds)),
        "quick": quick,
        "split": "66 % of each label of each hospital for training, drawn anew for every seed",
        "logistic": {"prior variance": 1.0, "plans": _plans(kinds.logistic(short=quick))},
        "network": {
            "hidden units": kinds.HIDDEN,
            "output weights' prior variance": kinds.OUTPUT_VARIANCE,
            "other weights' prior variance, one of": kinds.VARIANCES,
            "draws a gradient": kinds.DRAWS,
            "predictive draws": kinds.PREDICTIVE_DRAWS,
            "rate": "0.2 / (1 + t / 100)^0.75",
            "plans": _plans(kinds.network(0.1, key=trials.purpose(0, 0), short=quick)),
        },
        "overfitted network": {
            "hidden units": kinds.HIDDEN_OVERFITTED,
            "prior variance": 0.1,
            "temperature": 0.2,
            "rate": "0.1 / (1 + t / 100)^0.75",
        },
        "forgetting": {"federation": forgetting.METHOD},
        "versions": {"code": _digest(), **provenance.versions("equinox", "numpyro")},
    }


def _plans(kind: kinds.Kind) -> dict[str, str]:
    return {
        name: f"{plan.steps} {plan.schedule.unit}, {plan.update.steps or 20} local steps each"
        for name, plan in kind.plans.items()
    }


def _methods_and_forgetting(kind: kinds.Kind, splits: Splits, seed: int) -> dict[str, Any]:
    runs = trials.fit_all(kind, splits, seed)
    run = runs[forgetting.METHOD]
    return {
        **trials.compare(kind, runs, splits, seed),
        "forgetting": {s: forgetting.forget_one(kind, run, splits, s, seed) for s in splits},
    }


def _log_likelihood(kind: kinds.Kind, run: Any, data: dict[str, trials.Data]) -> float:
    x, y = trials.together(data)
    return trials.mean_log_likelihood(kind.predict(run.posterior, x), y)


if __name__ == "__main__":
    harness.command(run)
