"""Predictions compared with observations: scores, calibration, and survival curves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.artifact.provenance import inputs_of
from posterity.errors import StructureError
from posterity.families.layers import Layers
from posterity.reporting.charts import Axis, Series, chart, through
from posterity.reporting.markup import Markup, figure, paragraph, shown, table
from posterity.tabular.design import Design, design
from posterity.tabular.fitting import records_of
from posterity.tabular.pooled import predictions
from posterity.tabular.reading import PLAIN, Reading, columns_to_predict
from posterity.tabular.recipe import recipe_in
from posterity.tabular.recipe_model import by_student, columns_of, in_own_unit
from posterity.tabular.scores import calibration, groups, log_of_moments, scores
from posterity.tabular.sites import sites_in, together

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


class Evaluated(NamedTuple):
    """Predictions of a table's records, by part, with the observations."""

    parts: dict[str, np.ndarray]
    observed: np.ndarray
    scores: dict[str, Any]
    data: Design
    target: str


def evaluated(
    value: Any, provenance: Mapping[str, str], path: Path, reading: Reading, level: float
) -> Evaluated:
    """Return the predictions of a regression, or a student of one, for a table with its target.

    Raises:
        StructureError: if the file does not state its target, or the table lacks a column.
        ArtifactError: for a table that cannot be read.
    """
    of_sites = recipe_in(provenance)
    if of_sites is None:
        raise StructureError(
            found=f"records in {str(path)!r}, and a {type(value).__name__} that does not say what "
            "it predicts",
            expected="a regression with its recipe, as posterity fit writes it, or its student",
            fix="Leave the data out, and see posterity evaluate for other models.",
        )
    recipe = of_sites.shared
    cells, _ = records_of(path, reading)
    columns_to_predict(recipe, cells)
    data = design(cells, recipe, reading, predicting=True)
    y = data.check_observed(recipe, path)
    if hasattr(value, "head"):
        network = value.network
        names = inputs_of(provenance, network.inputs) if isinstance(network, Layers) else ()
        try:
            parts = by_student(value.predict, recipe, data, names, provenance)
        except StructureError as error:
            fix = "Leave the data out, or name the posterior that it learned from."
            raise StructureError(found=error.found, expected=error.expected, fix=fix) from error
        log_score = log_of_moments(recipe, parts, y)
    else:
        spread = together(sites_in(provenance).values()).get(recipe.spread or "")
        options: Any = {"spread": spread, "scored": True, "level": level}
        parts, log_score, _ = predictions(value, of_sites, data, **options)
    parts = columns_of(parts)
    y = in_own_unit(recipe, {"mean": y})["mean"]
    found = scores(y, parts, log_score, level, data.times)
    target = " ".join(filter(None, [recipe.target, recipe.unit.get(recipe.target or "")]))
    return Evaluated(parts, y, found, data, target)


def section(
    value: Any, provenance: Mapping[str, str], path: Path, level: float, reading: Reading = PLAIN
) -> list[Markup]:
    """Return scores of a posterior or student on records, with the plot for its model."""
    found = evaluated(value, provenance, path, reading, level)
    result = found.scores
    text = f"On {result['records']:,} records of {path.name}"
    if found.data.dropped:
        text += f", {found.data.dropped:,} more with missing values were left out"
    rows = [
        [name, shown(result[key]), meaning]
        for key, (name, meaning) in MEANINGS.items()
        if result.get(key) is not None
    ]
    parts = [paragraph(f"{text}."), table("Scores", ["Score", "Value", "Meaning"], rows)]
    if found.data.times is not None:
        return [*parts, _survival(value, recipe_in(provenance), found, level)]
    return [*parts, _calibration(found)] if {"p", "mean"} & found.parts.keys() else parts


def _calibration(found: Evaluated) -> Markup:
    """Return a plot of observed against predicted frequency, one point per group of records."""
    label = "p" in found.parts
    y = found.observed
    made = found.parts["p" if label else "mean"]
    each = calibration(y, made)
    predicted, seen, counts = (
        np.array([own[key] for own in each]) for key in ("predicted", "observed", "records")
    )
    if label:
        wide = 2 * (predicted * (1 - predicted) / counts) ** 0.5
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
        across = Axis.around(f"predicted {found.target}", [*predicted, *seen])
        up = Axis.around(f"observed {found.target}", ends.ravel().tolist())
        caption = (
            "Calibration: records in groups by their predicted mean, with two standard errors of "
            "the observed mean. On the dashed line both are equal."
        )
    rows = [
        [shown(p), shown(o), f"{n:,.0f}"] for p, o, n in zip(predicted, seen, counts, strict=True)
    ]
    tips = [f"predicted {p}, observed {o}, {n} records" for p, o, n in rows]
    low, high = ends.tolist()
    points = Series("", predicted.tolist(), seen.tolist(), low, high, tips=tips)
    both = max(across.low, up.low), min(across.high, up.high)
    ideal = through(across, up, zip(both, both, strict=True))
    numbers = table("Groups of records", ["Predicted", "Observed", "Records"], rows)
    return figure(chart("Calibration", across, up, [points], ideal), caption, numbers)


def _survival(
    value: Any, recipe: Any, found: Evaluated, level: float, *, points: int = 30, most: int = 600
) -> Markup:
    """Return predicted and observed (Kaplan-Meier) survival curves of three groups by risk.

    A curve has this many ``points``, and is the average of ``most`` records at most.
    """
    from scipy.stats import CensoredData, ecdf

    assert found.data.times is not None, "of survival"
    every = max(1, -(-len(found.data.times) // most))
    rows = np.arange(0, len(found.data.times), every)
    data = found.data.part(rows)
    time, event, entry = data.times.T  # pyright: ignore[reportOptionalMemberAccess]
    grid = np.linspace(0.0, float(np.quantile(time, 0.95)), points + 1)[1:]
    if hasattr(value, "head"):  # a student predicts at the times that it learned
        parts = {name: own[rows] for name, own in found.parts.items()}
        start = "survival_"
        grid = np.array([float(name.removeprefix(start)) for name in parts if start in name])
    else:
        parts, *_ = predictions(value, recipe, data, level=level, times=grid.tolist())
    curves = np.stack([parts[f"survival_{at:.12g}"] for at in grid])
    thirds = groups(parts["risk"], most=3, least=1)
    series = []
    listing = []
    names = ("low risk", "middle risk", "high risk") if len(thirds) == 3 else ("all",) * 3
    observable = not (entry > 0).any()
    for n, (own, name) in enumerate(zip(thirds, names, strict=False)):
        mean = curves[:, own].mean(1)
        seen = np.full(len(grid), np.nan)
        predicted = Series(f"predicted, {name}", [0.0, *grid], [1.0, *mean], kind="line", colour=n)
        series.append(predicted)
        if observable:
            times = time[own]
            known = event[own] > 0
            right = CensoredData(uncensored=times[known], right=times[event[own] == 0])
            seen = np.asarray(ecdf(right).sf.evaluate(grid))
            series.append(Series(f"observed, {name}", grid.tolist(), seen.tolist(), colour=n))
        columns = zip(grid.tolist(), mean.tolist(), seen.tolist(), strict=True)
        listing += [[name, shown(at, 3), shown(p, 3), shown(s, 3)] for at, p, s in columns]
    unit = recipe.unit.get(recipe.target)
    across = Axis(f"time, {unit}" if unit else recipe.target, 0.0, float(grid[-1]))
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
