"""Predictions compared with observations: scores and calibration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posterity.errors import StructureError
from posterity.reporting.charts import Axis, Series, chart, through
from posterity.reporting.markup import Markup, figure, paragraph, shown, table
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


def section(
    value: Any, provenance: Mapping[str, str], path: Path, level: float, reading: Reading = PLAIN
) -> list[Markup]:
    """Return scores of a posterior or student on records, with the plot for its model."""
    recipe = recipe_in(provenance)
    if recipe is None:
        raise StructureError(
            found=f"records in {str(path)!r}, and a {type(value).__name__} that does not say what "
            "it predicts",
            expected="a regression with its recipe, as posterity fit writes it, or its student",
        )
    found = predicted(
        value, provenance, path, recipe=recipe, reading=reading, level=level, scored=True
    )
    result, _ = found.scores(level)
    told = [f"On {result['records']:,} records of {path.name}", *found.notes]
    rows = [
        [name, shown(result[key]), meaning]
        for key, (name, meaning) in MEANINGS.items()
        if result.get(key) is not None
    ]
    parts = [paragraph(f"{line}.") for line in told]
    parts.append(table("Scores", ["Score", "Value", "Meaning"], rows))
    if {"p", "mean"} & found.columns.keys():
        parts.append(_calibration(found, recipe))
    return parts


def _calibration(found: Predicted, recipe: Recipe) -> Markup:
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
        target = " ".join(filter(None, [recipe.target, recipe.unit.get(recipe.target or "")]))
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
