"""The design of a regression: the matrices that a model needs from a table's records."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posterity.errors import ParameterError, StructureError
from posterity.families.names import some
from posterity.tabular.options import (
    COUNTS,
    INTERCEPT,
    MISSING,
    SAMPLING,
    Factor,
    no_coefficient,
)
from posterity.tabular.reading import PLAIN, Reading
from posterity.tabular.recipe import Recipe
from posterity.tabular.records import CONSTANT
from posterity.tabular.rows import Design, in_rows, of_trials
from posterity.tabular.tables.numbers import value_of
from posterity.tabular.tables.reader import Cells, table_error
from posterity.tabular.values import (
    LOGICAL,
    MISSING_VALUE,
    check_positive,
    filled,
    known,
    labelled,
    notes_of_codes,
    notes_of_outliers,
    texts_of_levels,
    values_of,
    whole,
)
from posterity.tabular.weighing import dependent, weighted

LARGEST = 1e100
"""Largest number in a design, such that squares and their sums are finite."""
DROPPED = "dropped, since a value is missing"
"""What happens to a record with a gap in a fit."""


def design(
    cells: Cells,
    recipe: Recipe,
    reading: Reading = PLAIN,
    *,
    predicting: bool = False,
    scored: bool = True,
    empty: bool = False,
) -> Design:
    """Return the design of a table for ``recipe.columns``, in the recipe's units.

    For prediction, records with missing values are always dropped. The exposure, the target and the
    weights are optional, and target and weights are read only if predictions are ``scored``.
    With ``empty``, the design may be that of no records; of a table to predict, if all are dropped.
    """
    path = cells.path
    total = len(cells.rows)
    wanted = _wanted(recipe, cells.header, predicting, scored)
    places = {name: cells.header.index(name) for name in wanted}
    levels = texts_of_levels(recipe, reading)
    cells, strange = known(cells, recipe, levels, places) if predicting else (cells, [])
    used = _with_weight(cells, places.get(recipe.weights or ""))
    if len(used) < total:
        cells = cells.at(used)
        strange.append(f"{total - len(used)} records of weight 0 are left out")
    indicated = {name: places[name] for name in recipe.indicated}
    needed = {name: place for name, place in places.items() if name not in indicated}
    cells, kept = whole(cells, needed, levels, reading.drop_missing or predicting)
    cells, gaps = filled(cells, indicated, levels)
    dropped = len(used) - len(kept)
    reading, notes = labelled(cells, recipe, reading, wanted)
    notes += [note for name, note in cells.notes if name in wanted]
    values = values_of(cells, recipe, reading, [n for n in wanted if n != recipe.cluster])
    notes += strange
    if not cells.rows and not (empty and (dropped or not predicting)):
        why = f", {dropped} {DROPPED}" if dropped else ""
        raise StructureError(
            found="; ".join([f"no records in '{path}'{why}", *strange]),
            expected="at least one",
        )
    lines = np.asarray(cells.lines)
    for name in (name for name in values if name not in recipe.categories):
        check_positive(recipe, name, values[name], cells)
        notes += notes_of_codes(name, values[name])
        notes += [] if predicting else notes_of_outliers(name, values[name], cells.lines)
    names = recipe.inputs()
    plain = recipe.shared.inputs()
    columns = _columns(recipe, values, cells, gaps)
    _check_coefficients(recipe, plain)
    target = values.get(recipe.target or "")
    if target is not None and recipe.model == "linear":
        target = _in_units(recipe, recipe.target or "", target)
    beside = {n: values.get(getattr(recipe, n) or "") for n in ("exposure", "offset", "weights")}
    if dropped:
        be = "is" if dropped == 1 else "are"
        why = "left out, since a value is missing or unknown" if predicting else DROPPED
        notes.append(f"{dropped} of {total} records {be} {why}")
    if not (predicting or empty):
        notes += _notes_of_constants(recipe, plain, columns)
    x = np.column_stack(columns) if columns else np.zeros((len(lines), 0))
    sizes = abs(x).max(0, initial=0)
    if not sizes.max(initial=0) <= LARGEST:
        raise ParameterError(
            found=f"{sizes.max():.3g} in column {names[np.argmax(sizes)]!r} of '{path}'",
            expected=f"numbers up to {LARGEST:g}",
            fix="Change units: --scale NAME=VALUE.",
        )
    about: dict[str, Any] = {"names": names, "lines": lines, "kept": used[kept], "total": total}
    about |= {"dropped": dropped, "weightless": total - len(used), "notes": tuple(notes)}
    beside["weights"], cautions = weighted(recipe, beside["weights"], cells)
    if not predicting:
        about |= {"cautions": cautions, **dependent(recipe, cells)}
    elif recipe.weighting == SAMPLING:  # of which none is a number of records to score
        beside["weights"] = None
    result = Design(x, target, **beside, **about)
    if target is not None and (trials := values.get(recipe.trials or "")) is not None:
        return of_trials(result, trials, path, empty)
    _check_target(result, recipe, path)
    return in_rows(result, recipe, values, path, predicting)


def _wanted(recipe: Recipe, header: Sequence[str], predicting: bool, scored: bool) -> list[str]:
    """Return the columns to read: covariates, the offset, and those of roles that are needed, or
    that a table to predict has.
    """
    roles = [recipe.target, recipe.event, recipe.entry] if scored else []
    roles += [recipe.exposure, *([] if predicting else [recipe.cluster])]
    roles += [recipe.weights, recipe.trials] if scored or not predicting else []
    roles = [name for name in roles if name in header or not predicting]
    return [name for name in (*(recipe.columns or ()), recipe.offset, *roles) if name]


def _with_weight(cells: Cells, place: int | None) -> np.ndarray:
    """Return the places of records whose weight is neither the number 0 nor a false logical."""
    if place is None:
        return np.arange(len(cells.rows))

    texts = [row[place] for row in cells.rows]
    weights = [value_of(LOGICAL.get(text.strip().upper(), text)) for text in texts]
    return np.flatnonzero([weight != 0 for weight in weights])


def _notes_of_constants(
    recipe: Recipe, names: Sequence[str], columns: Sequence[np.ndarray]
) -> list[str]:
    """Return a note on columns that are constant beside a column of ones."""
    ones = recipe.baseline or (INTERCEPT,) * recipe.intercept
    level = [n for n, c in zip(names, columns, strict=True) if n not in ones and np.ptp(c) == 0]
    if not level or not ones:
        return []
    return [CONSTANT.format(some(level))]


def covariates(recipe: Recipe, data: Design) -> np.ndarray:
    """Return the columns (n, d) of records: without the baseline, and each only once."""
    return data.x[:, len(recipe.baseline) : len(recipe.inputs())]


def _check_coefficients(recipe: Recipe, plain: tuple[str, ...]) -> None:
    there = {*plain, *(name.partition("[")[0] for name in plain)}
    odd = [name for name in recipe.own if name not in there]
    if odd:
        raise no_coefficient(f"--own {odd[0]}", plain)
    own = recipe.coefficients()
    twice = [name for name in own if own.count(name) > 1]
    if twice:
        raise StructureError(
            found=f"two coefficients {twice[0]!r}",
            expected="different names",
            fix="Rename a column or a level; with a column of ones pass --no-intercept.",
        )


def _columns(
    recipe: Recipe,
    values: Mapping[str, np.ndarray],
    cells: Cells,
    gaps: Mapping[str, np.ndarray],
) -> list[np.ndarray]:
    """Return the columns of the design, (n,) each: products of columns of each term's factors."""
    ones = np.ones(len(cells.rows))
    columns = [ones] if recipe.intercept else []
    if recipe.baseline:
        columns = [0.0 * ones for _ in recipe.baseline]
    for term in recipe.coded():
        block = [ones]
        for factor, full in term:
            own = _made(recipe, factor, full, values[factor[1]], cells, gaps.get(factor[1]))
            block = [one * other for one in block for other in own]
        columns += block
    return columns


def _made(
    recipe: Recipe,
    factor: Factor,
    full: bool,
    values: np.ndarray,
    cells: Cells,
    gap: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Return the columns of one factor, 0 for records with a ``gap``."""
    kind, name, *numbers = factor
    if gap is not None:
        if kind == MISSING:
            return [1.0 * gap]
        center = recipe.center.get(name, 0.0)
        scale = recipe.scale.get(name, 1.0)
        # A number valid for any function; for a spline one well within its bounds.
        inside = (numbers[1] + numbers[2]) / 2 if kind == "spline" else 1.0
        full_values = np.where(gap, center + scale * inside, values)
        return [np.where(gap, 0.0, one) for one in _made(recipe, factor, full, full_values, cells)]
    if kind == "levels":
        places = range(0 if full else 1, len(recipe.categories[name]))
        return [1.0 * (values == place) for place in places]
    own = _in_units(recipe, name, values)
    if kind == "column":
        return [own]
    if kind == "power":
        return [own ** numbers[0]]
    if kind == "spline":
        inside = (numbers[1] <= own) & (own <= numbers[2])
    else:
        least = {"log1p": -1.0, "sqrt": -np.finfo(float).tiny, "exp": -np.inf, "abs": -np.inf}
        inside = own > least.get(kind, 0.0)
    if not inside.all():
        at = np.argmin(inside)
        raise table_error(
            cells.path,
            f"{own[at]:g} in line {cells.lines[at]}, column {name!r}",
            f"numbers from {numbers[1]:g} to {numbers[2]:g}, the bounds of its spline"
            if kind == "spline"
            else f"numbers that have a {kind}",
            MISSING_VALUE.format(cell=f"{values[at]:g}"),
        )
    if kind != "spline":
        with np.errstate(over="ignore"):
            return [getattr(np, kind)(own)]
    degree, lower, upper, *inner = numbers
    from scipy.interpolate import BSpline

    knots = [lower] * (int(degree) + 1) + inner + [upper] * (int(degree) + 1)
    own = np.append(own, lower)  # which SciPy needs if there are no records
    basis = BSpline.design_matrix(own, np.array(knots), int(degree)).toarray()[:-1]
    return list(basis[:, 1:].T)


def _in_units(recipe: Recipe, name: str, values: np.ndarray) -> np.ndarray:
    return (values - recipe.center.get(name, 0.0)) / recipe.scale.get(name, 1.0)


TARGETS: Mapping[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "logistic": (lambda y: (y == 0) | (y == 1), "0 or 1, two levels by --category, or --trials"),
    "gamma": (lambda y: y > 0, "positive numbers"),
    **dict.fromkeys(
        COUNTS, (lambda y: (y >= 0) & (y == np.round(y)), "whole counts; of rates, by --exposure")
    ),
}
"""Checks of the targets that models accept, with their descriptions."""


def _check_target(design: Design, recipe: Recipe, path: Path) -> None:
    y, (holds, expected) = design.y, TARGETS.get(recipe.model, (None, ""))
    if y is None or holds is None or (right := holds(y)).all():
        return
    at = np.argmin(right)
    raise ParameterError(
        found=f"{y[at]:g} in line {design.lines[at]} of target {recipe.target!r} in '{path}'",
        expected=expected,
    )
