"""From the cells of a table to the numbers that a model sees."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posterity.adapters.tables.reader import Cells, is_missing, table_error
from posterity.errors import ArtifactError, ParameterError, StructureError, UsageError
from posterity.families.names import some
from posterity.fitting.recipe import INTERCEPT, Recipe

LARGEST = 1e100
"""The largest number that a model sees: squares, and their sums, are to be finite."""
MOST = 5000
"""Columns of a fit: a step takes minutes with as many, and their covariance 200 MB."""


class Design(NamedTuple):
    """``x`` (n, d) with its names, the target (n,), the exposure (n,), and what was dropped."""

    x: np.ndarray
    y: np.ndarray | None
    exposure: np.ndarray | None
    names: tuple[str, ...]
    lines: np.ndarray
    dropped: int
    notes: tuple[str, ...]


SAVED_INDEX = re.compile(r"Unnamed: \d+")
"""What pandas calls a column without a name when it reads one."""


def columns_of(recipe: Recipe, header: Sequence[str], path: Path) -> tuple[str, ...]:
    """The columns that are used, in the order of the flags, or else of the file.

    Raises:
        StructureError: if a column that the recipe names is not there, or one that it does not
            name holds row numbers.
    """
    apart = [name for name in (recipe.target, recipe.exposure) if name]
    named: dict[str, Iterable[str]] = {
        "--target": [recipe.target] if recipe.target else [],
        "--exposure": [recipe.exposure] if recipe.exposure else [],
        "--columns": recipe.columns or (),
        "--without": recipe.without,
    }
    for flag, names in named.items():
        if unknown := [name for name in names if name not in header]:
            raise StructureError(
                found=f"no column {unknown[0]!r} in {str(path)!r}, which has {some(header)}",
                expected=f"the column that {flag} names",
                fix="Name it as the table does.",
            )
    if recipe.columns is not None:
        if both := set(apart) & set(recipe.columns):
            raise UsageError(
                found=f"{both.pop()!r} among --columns, and as target or exposure",
                expected="what is not predicted from itself",
                fix="Leave it out of one.",
            )
        used = tuple(dict.fromkeys(recipe.columns))
    else:
        used = tuple(name for name in header if name not in {*apart, *recipe.without})
        if rows := [name for name in used if SAVED_INDEX.fullmatch(name)]:
            raise StructureError(
                found=f"a column {rows[0]!r} in {str(path)!r}, as a table's row numbers are called "
                "that were saved with it",
                expected="columns that say something of a record",
                fix=f"Say --without {rows[0]!r}, or name the columns to use by --columns.",
            )
    _check_names(recipe, used, path)
    return used


def _check_names(recipe: Recipe, used: Sequence[str], path: Path) -> None:
    """Refuse names of columns that are not used, of which a flag would go unheard."""
    regression = recipe.model != "mixture"
    target = [recipe.target] if recipe.target else []
    # A linear model's target has a unit; a count and a class have none.
    scaled = [*used, *(target if recipe.model == "linear" else [])]
    plain = [name for name in scaled if name not in recipe.categories]
    flags: dict[str, tuple[Iterable[str], Sequence[str]]] = {
        "--center": (recipe.center, plain),
        "--scale": (recipe.scale, plain),
        "--category": (recipe.categories, [*used, *(target if recipe.model == "logistic" else [])]),
    }
    for flag, (names, known) in flags.items():
        if unknown := [name for name in names if name not in known]:
            raise UsageError(
                found=f"{flag} for {unknown[0]!r}",
                expected=f"a column that it is for: {some(known)}",
                fix="Leave it out, or name the column as the table does.",
            )
    if regression and recipe.intercept and INTERCEPT in used:
        raise StructureError(
            found=f"a column {INTERCEPT!r} in {str(path)!r}, and one of ones beside it",
            expected="one of them",
            fix="Say --no-intercept, or --without intercept.",
        )
    if len(used) > MOST:
        raise StructureError(
            found=f"{len(used):,} columns in {str(path)!r}",
            expected=f"{MOST:,} at most, whose covariance is to be computed",
            fix="Name those to use by --columns, or leave some out by --without.",
        )
    if not used and not (regression and recipe.intercept):
        raise StructureError(
            found=f"no columns but the target in {str(path)!r}",
            expected="one column at least",
            fix="Name columns, or leave --no-intercept out.",
        )


def design(
    cells: Cells, recipe: Recipe, path: Path, *, drop_missing: bool, decimal: str | None
) -> Design:
    """The numbers of the columns that ``recipe.columns`` names, in its units.

    Raises:
        ArtifactError: for a cell that cannot be read, or is missing; it names line and column.
        ParameterError: for a target that the model cannot have.
        StructureError: if no records are left.
    """
    used = recipe.columns or ()
    wanted = [name for name in (*used, recipe.target, recipe.exposure) if name]
    places = {name: cells.header.index(name) for name in wanted}
    whole = _whole(cells, places, path, drop_missing)
    rows, lines, dropped = whole.rows, whole.lines, len(cells.rows) - len(whole.rows)
    if not rows:
        raise StructureError(
            found=f"no records in {str(path)!r}" + (f", {dropped} dropped" if dropped else ""),
            expected="one at least",
            fix="Add records.",
        )
    numeric = [name for name in wanted if name not in recipe.categories]
    expected = (
        "numbers; a column of texts by its levels (--category {column}=a,b), or left out "
        "(--without {column})"
    )
    values = whole.numbers(numeric, decimal, expected=expected).T
    values = dict(zip(numeric, values, strict=True))
    for name in wanted:
        if name in recipe.categories:  # the places of its levels
            values[name] = _levels(whole, name, recipe.categories[name])
    names: list[str] = []
    columns: list[np.ndarray] = []
    if recipe.model != "mixture" and recipe.intercept:
        names.append(INTERCEPT)
        columns.append(np.ones(len(rows)))
    for name in used:
        if name in recipe.categories:
            levels = recipe.categories[name]
            names += [f"{name}[{level}]" for level in levels[1:]]
            columns += [1.0 * (values[name] == place) for place in range(1, len(levels))]
        else:
            names.append(name)
            columns.append(_in_units(recipe, name, values[name]))
    if len(set(names)) < len(names):
        raise StructureError(
            found=f"coefficients {some(names)}, of which two have one name",
            expected="a name for each",
            fix="Rename a column.",
        )
    target = None if recipe.target is None else values[recipe.target]
    if recipe.target is not None and recipe.model == "linear":
        target = _in_units(recipe, recipe.target, values[recipe.target])
    exposure = None if recipe.exposure is None else values[recipe.exposure]
    if exposure is not None and (exposure <= 0).any():
        line = lines[int(np.argmax(exposure <= 0))]
        raise table_error(
            path, f"an exposure in line {line} that is not positive", "positive numbers"
        )
    notes = []
    if dropped:
        notes += [f"{dropped} of {len(cells.rows)} records dropped, of which a value is missing"]
    pairs = zip(names, columns, strict=True)
    if level := [name for name, c in pairs if name != INTERCEPT and np.ptp(c) == 0]:
        notes += [
            f"the same in every record: {some(level)}; the prior alone tells them from others"
        ]
    x = np.column_stack(columns) if columns else np.zeros((len(rows), 0))
    sizes = abs(x).max(0, initial=0)
    if not sizes.max(initial=0) <= LARGEST:
        raise ParameterError(
            found=f"{sizes.max():.3g} in column {names[int(np.argmax(sizes))]!r} of {str(path)!r}",
            expected=f"numbers up to {LARGEST:g}",
            fix="Change units: --scale NAME=VALUE.",
        )
    result = Design(x, target, exposure, tuple(names), np.asarray(lines), dropped, tuple(notes))
    _check_target(result, recipe, path)
    return result


def _in_units(recipe: Recipe, name: str, values: np.ndarray) -> np.ndarray:
    return (values - recipe.center.get(name, 0.0)) / recipe.scale.get(name, 1.0)


def _whole(cells: Cells, places: Mapping[str, int], path: Path, drop: bool) -> Cells:
    """The records of which nothing is missing."""
    positions = list(places.values())
    rows, lines, gaps = [], [], []
    for row, line in zip(cells.rows, cells.lines, strict=True):
        if any(is_missing(row[place]) for place in positions):
            gaps.append((row, line))
        else:
            rows.append(row)
            lines.append(line)
    if gaps and not drop:
        row, line = gaps[0]
        name = next(name for name, place in places.items() if is_missing(row[place]))
        raise ArtifactError(
            found=f"{len(gaps)} records with a missing value in {str(path)!r}, the first in line "
            f"{line} (column {name!r}), in lines {some([str(line) for _, line in gaps])}",
            expected="a value in every column that is used",
            fix="Impute them, leave columns out (--without NAME), or drop records: --drop-missing.",
        )
    return cells._replace(rows=rows, lines=lines)


def _levels(cells: Cells, name: str, levels: Sequence[str]) -> np.ndarray:
    place = {level: index for index, level in enumerate(levels)}
    texts = [cell.strip() for cell in cells.column(name)]
    for cell, line in zip(texts, cells.lines, strict=True):
        if cell not in place:
            raise table_error(
                cells.path,
                f"{cell[:50]!r} in line {line}, column {name!r}",
                f"one of its levels {some(list(levels))}, the same at every site",
            )
    return np.array([place[cell] for cell in texts], dtype=float)


def _check_target(design: Design, recipe: Recipe, path: Path) -> None:
    y = design.y
    if y is None or recipe.model == "linear":
        return
    if recipe.model == "logistic":
        wrong, expected = (y != 0) & (y != 1), "0 or 1, or two levels named by --category"
        levels = recipe.categories.get(recipe.target or "", ("", ""))
        if len(levels) != 2:
            raise UsageError(
                found=f"{len(levels)} levels of the target {recipe.target!r}",
                expected="two: the one that is 0 and the one that is 1",
                fix="Name two.",
            )
    else:
        wrong, expected = (y < 0) | (y != np.round(y)), "counts: whole numbers from 0"
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ParameterError(
            found=f"{y[at]:g} in line {design.lines[at]} of target {recipe.target!r} in "
            f"{str(path)!r}",
            expected=expected,
            fix="Mend the column, or choose another --model.",
        )
