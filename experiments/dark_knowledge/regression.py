"""Table 5 and intervals, on UCI tables: `python -m experiments.dark_knowledge.regression`.

Chains of a network that learns its noise, and their student, all by the library's defaults and from
the training records alone. Log likelihoods and errors are in the units of y; scores are those of
the prediction's t law, and beside these of the normal law with the same moments.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import harness, provenance
from experiments.dark_knowledge import CACHE, RESULTS
from experiments.data import UCI_NAMES, Regression, uci_regression
from posterity import distill
from posterity.distillation import Langevin
from posterity.models import NeuralNetwork
from posterity.networks import GaussianPrior, Layers

HIDDEN = {"protein": 100}
"""Units of the hidden layer, where they are not fifty."""
TEACHER, STUDENT = "chains", "distilled"
PAPER = {TEACHER: -2.306, STUDENT: -2.350, "PBP": -2.574, "VI": -2.903, "SGD": -2.7639}
"""Table 5, Boston."""
WITHIN = 0.05
NOISES = ("constant", "varying")


def one_split(
    table: Regression, split: int, units: int, noise: str, climb: int | None
) -> dict[str, Any]:
    """Scores on the records of one split that were kept for tests."""
    test = table.is_test[split]
    x, x_test, y, y_test = table.X[~test], table.X[test], table.y[~test], table.y[test]
    spread = x.std(0)
    mean, spread = x.mean(0), np.where(spread > 0, spread, 1.0)
    x, x_test = ((part - mean) / spread for part in (x, x_test))
    net = NeuralNetwork.regression(Layers.dense(x.shape[1], units, 1), y, noise=noise)
    assert net.layers is not None
    clock = harness.Clock()
    chains = Langevin(net, GaussianPrior().network(net.layers), (x, y), climb=climb)
    # The probe is only looked at: what the chains say of the test inputs, over all their draws.
    found = distill(chains, split=True, key=jax.random.key(split), probe=x_test.astype(np.float32))
    predictions = {TEACHER: found.teacher, STUDENT: found.student.predict(x_test)}
    return {
        **{name: scores(said, y_test) for name, said in predictions.items()},
        "gap": found.status.left,
        "R-hat": found.rhat,
        "temperature": found.temperature,
        "status": str(found.status),
        "degrees of freedom": found.teacher.degrees,
        **clock.seconds,
    }


def scores(said: Any, y: np.ndarray) -> dict[str, float]:
    """Log likelihood in nats a record, error, and the share of records in intervals."""
    values = y[:, None]
    found = {"RMSE": float(np.sqrt(np.mean((values - said.mean) ** 2)))}
    normal = dataclasses.replace(said, degrees=np.inf)
    for words, law in (("", said.law()), (", normal law", normal.law())):
        found[f"log likelihood{words}"] = float(law.logpdf(values).mean())
        for percent in (50, 90):
            low, high = law.interval(percent / 100)
            share = float(((low < values) & (values < high)).mean())
            found[f"in intervals of {percent} %{words}"] = share
    return found


def run(
    tables: tuple[str, ...] = UCI_NAMES,
    /,
    *,
    splits: int | None = None,
    noise: tuple[str, ...] = NOISES,
    climb: int | None = None,
    results: Path = RESULTS,
    cache: Path = CACHE,
    only_kept: bool = False,
) -> dict[str, Any]:
    """Measure (the first ``splits``), judge and write; returns what `regression.json` holds.

    Chains ``climb`` so many steps, by default as many as the library chooses. Splits that an
    earlier run kept are not run again; ``only_kept`` writes down what there is. Rows of the file of
    which the cache has nothing stay as they were.
    """
    measured: dict[str, Any] = {}
    for name, kind in itertools.product(tables, noise):
        table, units, rows = uci_regression(name), HIDDEN.get(name, 50), []
        count = len(table.is_test) if splits is None else min(splits, len(table.is_test))
        for split in range(count):
            make = functools.partial(one_split, table, split, units, kind, climb)
            settings = units, climb
            place = f"noise-{kind}-{name}-{split}"
            row = harness.kept(cache, place, None if only_kept else make, *settings)
            if row is not None:
                rows.append(row)
                print(name, kind, split, row[TEACHER], row["CPU seconds"], flush=True)
        if rows:
            after = f", climbs of {climb:,} steps" if climb is not None else ""
            problem = f"{name}, {kind} noise{after}"
            measured[problem] = judged(problem, rows, len(table.is_test))
    path = results / "regression.json"
    before = json.loads(path.read_text()) if path.exists() else {"tables": {}, "goals": []}
    ours = [f"{problem}: " for problem in measured]
    goals = [goal for own in measured.values() for goal in own.pop("goals")]
    goals += [goal for goal in before["goals"] if not goal["goal"].startswith(tuple(ours))]
    found = {
        "paper": {"test log likelihood, table 5, Boston": PAPER},
        "protocol": "standard splits of hernandezlobato2015; inputs standardised by the training "
        "records; log likelihood in nats a record, on the scale of y",
        "spread": "standard error of the mean over splits, which share records",
        "seeds": "the number of the split",
        "goals": goals,
        "tables": before["tables"] | measured,
    }
    harness.write(results, "regression", found)
    return found


def judged(name: str, rows: Sequence[Mapping[str, Any]], splits: int) -> dict[str, Any]:
    """Statistics over splits, and the verdicts."""
    over_splits = lambda method: harness.over_seeds([row[method] for row in rows])
    statistics = {method: over_splits(method) for method in (TEACHER, STUDENT)}
    score = lambda row, method: row[method]["log likelihood"]
    behind = harness.statistics([score(row, TEACHER) - score(row, STUDENT) for row in rows])
    what = f"{name}: the student at most {WITHIN} nats below its teacher"
    goals = [harness.at_most(what, behind, WITHIN)]
    if name.startswith("boston"):
        measured = statistics[STUDENT]["log likelihood"]
        goals.append(harness.at_least(f"{name}: distilled", measured, -2.35))
    return {
        "splits run, of": [len(rows), splits],
        "teacher less student": behind,
        **statistics,
        "degrees of freedom": harness.statistics([row["degrees of freedom"] for row in rows]),
        "statuses": sorted({row["status"].partition(":")[0] for row in rows}),
        "CPU seconds a split": harness.statistics([row["CPU seconds"] for row in rows]),
        "goals": goals,
        provenance.KEY: provenance.made_with(),
    }


if __name__ == "__main__":
    harness.command(run, tables=UCI_NAMES, noise=NOISES)
