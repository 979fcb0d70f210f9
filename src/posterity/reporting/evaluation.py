"""Predictions compared with observations: scores, calibration, and survival curves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posterity.artifact.provenance import TARGET
from posterity.reporting.charts import Axis, Series, chart, through
from posterity.reporting.markup import Markup, figure, paragraph, shown, table
from posterity.tabular.pooled import predictions
from posterity.tabular.predictions import Predicted, predicted
from posterity.tabular.reading import PLAIN, Reading
from posterity.tabular.recipe import Recipe, recipe_in
from posterity.tabular.scores import calibration, groups

MEANINGS = {
    "log_score": ("Log score", "nats a record; higher is better"),
    "brier": ("Brier score", "mean squared error of the probability; lower is better"),
    "auroc": (
        "AUROC",
        "share of pairs whose record with the event has the higher prediction; 0.5 is chance",
    ),
    "concordance": ("Concordance", "share of pairs in the right order; 0.5 is chance"),
    "accuracy": ("Accuracy", "share of records whose more probable label was observed"),
    "calibration_error": ("Calibration error", "mean difference of predicted and observed shares"),
    "rmse": ("Root mean squared error", "in the target's own unit"),
    "coverage": ("Coverage", "share of records inside their interval"),
}
THIRDS = ("low risk", "middle risk", "high risk")
"""Names of three groups of records by their predicted risk."""


def section(
    value: Any, provenance: Mapping[str, str], path: Path, level: float, reading: Reading = PLAIN
) -> list[Markup]:
    """Return scores of a posterior or student on records, with the plot for its model."""
    recipe = recipe_in(provenance)
    found = predicted(
        value, provenance, path, recipe=recipe, reading=reading, level=level, scored=True
    )
    result, _ = found.scores(level)
    told = [f"On {result['records']:,} records of {path.name}", *found.notes]
    rows = [
        [name, result[key], meaning]
        for key, (name, meaning) in MEANINGS.items()
        if result.get(key) is not None
    ]
    parts = [paragraph(f"{line}.") for line in told]
    parts.append(table("Scores", ["Score", "Value", "Meaning"], rows))
    if found.times is not None:
        parts.append(_survival(value, recipe, found, level))
    elif {"p", "mean"} & found.columns.keys():
        parts.append(_calibration(found, _axis_of(provenance, recipe)))
    return parts


def _axis_of(provenance: Mapping[str, str], recipe: Recipe | None) -> str:
    """Return the target's name, and its unit if a recipe has one."""
    if recipe is None:
        return provenance.get(TARGET, "value")
    return " ".join(filter(None, [recipe.target, recipe.unit.get(recipe.target or "")]))


def _calibration(found: Predicted, target: str) -> Markup:
    """Return a plot of observed against predicted frequency, one point per group of records."""
    label = "p" in found.columns
    y = np.asarray(found.target)
    made = found.columns["p" if label else "mean"]
    each = calibration(y, made)
    expected, seen, counts = (
        np.array([own[key] for own in each]) for key in ("predicted", "observed", "records")
    )
    if label:
        wide = 2 * (expected * (1 - expected) / counts) ** 0.5
        ends = np.clip([seen - wide, seen + wide], 0.0, 1.0)
        across = Axis("predicted probability", 0.0, 1.0)
        up = Axis("observed share", 0.0, 1.0)
        caption = (
            "Calibration: records in groups by their predicted probability, with two standard "
            "errors. On the dashed line the observed share is the predicted one."
        )
    else:
        wide = np.array(
            [2 * y[own].std(ddof=len(own) > 1) / len(own) ** 0.5 for own in groups(made)]
        )
        ends = np.stack([seen - wide, seen + wide])
        across = Axis.around(f"predicted {target}", [*expected, *seen])
        up = Axis.around(f"observed {target}", ends.ravel().tolist())
        caption = (
            "Calibration: records in groups by their predicted mean, with two standard errors of "
            "the observed mean. On the dashed line both are equal."
        )
    rows = [
        [shown(p), shown(o), f"{n:,.0f}"] for p, o, n in zip(expected, seen, counts, strict=True)
    ]
    tips = [f"predicted {p}, observed {o}, {n} records" for p, o, n in rows]
    low, high = ends.tolist()
    points = Series("", expected.tolist(), seen.tolist(), low, high, tips=tips)
    both = max(across.low, up.low), min(across.high, up.high)
    ideal = through(across, up, zip(both, both, strict=True))
    numbers = table("Groups of records", ["Predicted", "Observed", "Records"], rows)
    return figure(chart("Calibration", across, up, [points], ideal), caption, numbers)


def _survival(
    value: Any, recipe: Any, found: Predicted, level: float, *, points: int = 30, most: int = 600
) -> Markup:
    """Return predicted and observed (Kaplan-Meier) survival curves of three groups by risk.

    A curve has this many ``points``, and is the average of ``most`` records at most.
    """
    from scipy.stats import CensoredData, ecdf

    whole: Any = found.data
    every = max(1, -(-len(whole.times) // most))
    rows = np.arange(0, len(whole.times), every)
    data = whole.part(rows)
    time, event, entry = data.times.T
    grid = np.linspace(0.0, np.quantile(time, 0.95), points + 1)[1:]
    labels = None if found.labels is None else found.labels[rows]
    parts, *_ = predictions(value, recipe, data, labels, level=level, times=grid.tolist())
    curves = np.stack([parts[f"survival_{at:.12g}"] for at in grid])
    thirds = groups(parts["log_hazard_ratio"], most=3, least=1)
    series = []
    listing = []
    names = {1: ("all",), 2: ("low risk", "high risk")}.get(len(thirds), THIRDS)
    observable = not (entry > 0).any()
    for n, (own, name) in enumerate(zip(thirds, names, strict=True)):
        mean = curves[:, own].mean(1)
        seen = np.full(len(grid), np.nan)
        line = Series(f"predicted, {name}", [0.0, *grid], [1.0, *mean], kind="line", colour=n)
        series.append(line)
        if observable:
            times = time[own]
            known = event[own] > 0
            right = CensoredData(uncensored=times[known], right=times[event[own] == 0])
            seen = np.asarray(ecdf(right).sf.evaluate(grid))
            series.append(Series(f"observed, {name}", grid.tolist(), seen.tolist(), colour=n))
        columns = zip(grid.tolist(), mean.tolist(), seen.tolist(), strict=True)
        listing += [[name, shown(at, 3), shown(p, 3), shown(s, 3)] for at, p, s in columns]
    unit = recipe.unit.get(recipe.target)
    across = Axis(f"time, {unit}" if unit else recipe.target, 0.0, grid[-1])
    drawing = chart("Survival", across, Axis("share without the event", 0.0, 1.0), series)
    numbers = table("Survival", ["Group", "Time", "Predicted", "Observed"], listing)
    caption = (
        "Survival of three groups by predicted risk: lines are predicted, dots observed "
        "(Kaplan-Meier)."
        if observable
        else "Survival of three groups by predicted risk. Some records came under observation "
        "after time zero, so no observed curve is drawn."
    )
    if every > 1:
        caption += f" One in {every} records was used."
    return figure(drawing, caption, numbers)
