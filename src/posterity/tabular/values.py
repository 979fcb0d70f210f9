"""Values of a recipe's columns in a table: numbers, positions of levels, and what is missing."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from posterity.errors import ArtifactError, UsageError
from posterity.families.names import some
from posterity.runtime.text import as_row, count, listed, typed
from posterity.tabular.identifiers import clusters
from posterity.tabular.reading import Reading
from posterity.tabular.recipe import Recipe
from posterity.tabular.tables.numbers import is_numeric
from posterity.tabular.tables.reader import (
    Cells,
    as_level,
    clean,
    is_missing,
    table_error,
)

DISTINCT = 10
"""Number of values of a column from which repeated records are unlikely by chance."""
MISSING_VALUE = (
    "If it stands for a missing value, pass --missing {cell}. Otherwise correct the file there."
)
"""Next step after a text among numbers, or a number that has no logarithm."""
NO = ("n", "no", "nein", "non", "nej", "nee", "não", "nie", "false", "falsch", "faux", "falso")
"""Texts that stand for 0 where others stand for 1."""
LOGICAL = {"TRUE": "1", "FALSE": "0"}


def labelled(
    cells: Cells, recipe: Recipe, reading: Reading, wanted: Sequence[str]
) -> tuple[Reading, list[str]]:
    """Return a reading that accepts 0 and 1 as names of a target's two levels, and notes.

    There is also a note if the table's names of a column's levels are the recipe's in another
    order, and on texts that stand for 0 and 1.
    """
    target = recipe.target or ""
    levels = recipe.levels
    notes = [
        f"{', '.join(own)} in {name!r} are read as {', '.join(others)}"
        for name, others in recipe.categories.items()
        if name in wanted
        and (own := tuple(reading.levels.get(name, others))) != tuple(others)
        and {*own} == {*others}
    ]
    notes += [
        f"{own[0]} and {own[1]} in {name!r} are read as 0 and 1"
        for name, own in reading.levels.items()
        if name in wanted and name not in recipe.categories
    ]
    if target not in wanted or len(levels) != 2 or target in reading.levels:
        return reading, notes
    if {"0", "1"} & {*levels} or not {*map(as_level, cells.column(target))} <= {"0", "1"}:
        return reading, notes
    notes.append(f"0 and 1 in {target!r} are read as {levels[0]} and {levels[1]}")
    return dataclasses.replace(reading, levels={**reading.levels, target: ("0", "1")}), notes


def values_of(
    cells: Cells, recipe: Recipe, reading: Reading, wanted: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return, by column, numbers in the recipe's unit, or positions of a category's levels, which
    of this table's texts for a column of 0 and 1 are its numbers.
    """
    levels = {**reading.levels, **recipe.categories}
    numeric = [name for name in wanted if name not in levels]
    try:
        words = {"expected": "numbers", "of_text": MISSING_VALUE}
        numbers = _logical(cells, numeric).numbers(numeric, reading.decimal, **words).T
    except ArtifactError:
        _check_texts(cells, recipe, numeric)
        raise
    values = dict(zip(numeric, numbers, strict=True))
    others = sorted(reading.convert.keys() - values.keys())
    numbers = f"one of the numeric columns {some(numeric)}"
    UsageError.check((others, f"--convert for {others}", numbers))
    for name, factor in reading.convert.items():
        values[name] = values[name] * factor
    for name in (name for name in wanted if name in levels):
        values[name] = _levels(cells, name, levels[name], reading.levels.get(name, levels[name]))
    return values


def _check_texts(cells: Cells, recipe: Recipe, names: Sequence[str], *, most: int = 20) -> None:
    """Raise an ArtifactError that names all columns of texts, each with its levels and the option
    that says them, unless there are more than ``most``.
    """
    texts = {}
    for name in names:
        column = [clean(cell) for cell in cells.column(name)]
        odd = {cell for cell in column if not is_numeric(cell) and cell.upper() not in LOGICAL}
        if 2 * sum(cell in odd for cell in column) > len(column):
            texts[name] = sorted(odd, key=lambda text: (text.casefold() not in NO, text))
    if not texts:
        return
    target = (recipe.target, recipe.event)
    sayable = {name: as_row(levels) for name, levels in texts.items() if len(levels) <= most}
    flags = [typed("--category", f"{name}={own}") for name, own in sayable.items()]
    others = ",".join(name for name in texts if name not in target)
    out = [f"leave columns out: {typed('--without', others)}"] if others else []
    ways = [*([f"pass {' '.join(flags)}"] if flags else []), *out]
    several = [name for name, _ in clusters(cells, [*texts]) if name not in {*target, *sayable}]
    clustered = " or ".join(typed("--cluster", name) for name in several)
    if several:
        ways.append(f"if a value is of one patient or unit with several records: {clustered}")
    found = "; ".join(f"{name!r} {some(levels)}" for name, levels in texts.items())
    raise table_error(
        cells.path,
        f"columns of texts: {found}",
        "numbers, or the levels of a column: all that any site has, the reference, or what counts "
        "as 0, first",
        f"Either {' or '.join(ways)}." if len(ways) > 1 else f"To read them, {''.join(ways)}.",
    )


def notes_of_codes(
    name: str,
    numbers: np.ndarray,
    *,
    codes: Sequence[float] = (-9, -99, -999, -9999, 99, 999, 9999, 99999),
) -> list[str]:
    """Return notes on numbers of a column that may stand for missing values: repeated, and far from
    all others, or negative where no other is.
    """
    rest = numbers[~np.isin(numbers, codes)]
    if not len(rest):
        return []
    low = rest.min()
    high = rest.max()
    notes = []
    for code in codes:
        count = int((numbers == code).sum())
        odd = low >= 0 if code < 0 else code > high + max(high - low, abs(high))
        if count > 1 and odd:
            notes.append(
                f"{name!r} is {code:g} in {count} records, and otherwise {low:g} to {high:g}: if "
                f"that is a missing value, leave these cells empty or pass --missing {code:g}"
            )
    return notes


def notes_of_outliers(
    name: str,
    numbers: np.ndarray,
    lines: Sequence[int],
    *,
    factor: float = 1000.0,
    few: int = 20,
) -> list[str]:
    """Return a note on a number more than ``factor`` times as far from the median of its column as
    95 % of its numbers are, which is a slip rather than a tail, unless they are ``few``.
    """
    if len(numbers) < few:
        return []
    middle = np.median(numbers)
    far = np.abs(numbers - middle)
    usual = np.quantile(far, 0.95, method="lower")
    most = int(np.argmax(far))
    if not (usual > np.finfo(np.float32).eps * abs(middle) and far[most] > factor * usual):
        return []
    return [
        f"{name!r} is {numbers[most]:g} in line {lines[most]}, {far[most] / usual:.2g} times as "
        "far from the median as 95 % of its values: look there for a slip or another unit, as such "
        "a record can determine the coefficients alone"
    ]


def _logical(cells: Cells, names: Sequence[str]) -> Cells:
    """Convert TRUE and FALSE, the logical values of R and spreadsheets, to 1 and 0 in columns
    without other numbers.
    """
    known = {*LOGICAL, *LOGICAL.values()}
    logical = set[int]()
    for name in names:
        texts = {text.strip().upper() for text in {*cells.column(name)}}
        if texts & LOGICAL.keys() and not any(map(is_numeric, texts - known)):
            logical.add(cells.header.index(name))
    if not logical:
        return cells

    def as_number(place, cell):
        return LOGICAL.get(cell.strip().upper(), cell) if place in logical else cell

    rows = [[as_number(*one) for one in enumerate(row)] for row in cells.rows]
    return cells._replace(rows=rows)


def texts_of_levels(recipe: Recipe, reading: Reading) -> dict[str, list[str]]:
    """Return by column the texts of its levels in this table, which are not missing values."""
    own = {**recipe.categories, **reading.levels}
    return {name: [*map(as_level, levels)] for name, levels in own.items()}


def _is_gap(cell: str, levels: Sequence[str]) -> bool:
    """Return whether a cell denotes a missing value, and is not among the levels of its column."""
    return is_missing(cell) and (as_level(cell) or None) not in levels


def whole(
    cells: Cells, places: Mapping[str, int], levels: Mapping[str, Sequence[str]], drop: bool
) -> tuple[Cells, np.ndarray]:
    """Return the records without missing values, and their positions among all."""
    own = [(place, levels.get(name, ())) for name, place in places.items()]
    gap = [any(_is_gap(row[place], texts) for place, texts in own) for row in cells.rows]
    kept = np.flatnonzero(~np.array(gap, dtype=bool))
    if any(gap) and not drop:
        first = gap.index(True)
        row = cells.rows[first]
        name = next(n for n, place in places.items() if _is_gap(row[place], levels.get(n, ())))
        lines = [str(line) for line, one in zip(cells.lines, gap, strict=True) if one]
        every = f", in lines {listed(lines)}" if len(lines) > 1 else ""
        raise ArtifactError(
            found=f"{count(sum(gap), 'record')} with a missing value in '{cells.path}', the "
            f"first in line {lines[0]} (column {name!r}){every}",
            expected="a value in every column that is used",
            fix="Impute them, leave columns out (--without NAME) or records (--drop-missing), or "
            "add an indicator (--formula 'TARGET ~ NAME + missing(NAME)').",
        )
    return cells.at(kept), kept


def filled(
    cells: Cells, places: Mapping[str, int], levels: Mapping[str, Sequence[str]]
) -> tuple[Cells, dict[str, np.ndarray]]:
    """Return a table with placeholders for missing values, and by column a mask (n,) of these."""
    rows = [list(row) for row in cells.rows]
    gaps = {}
    for name, place in places.items():
        own = levels.get(name, ())
        gap = gaps[name] = np.array([_is_gap(row[place], own) for row in rows], dtype=bool)
        other = next((row[place] for row, one in zip(rows, gap, strict=True) if not one), "0")
        for n in np.flatnonzero(gap):
            rows[n][place] = other
    return cells._replace(rows=rows), gaps


def known(
    cells: Cells, recipe: Recipe, levels: Mapping[str, Sequence[str]], places: Mapping[str, int]
) -> tuple[Cells, list[str]]:
    """Return a table for prediction with unknown levels marked as missing, and notes."""
    notes = []
    rows = [list(row) for row in cells.rows]
    for name in set(recipe.columns or ()) & levels.keys():
        own = levels[name]
        place = places[name]
        texts = [as_level(row[place]) for row in rows]
        odd = [n for n, text in enumerate(texts) if text not in own and not is_missing(text)]
        if odd:
            lines = listed(str(cells.lines[n]) for n in odd)
            where = f"line{'s' if len(odd) > 1 else ''} {lines}"
            found = some(sorted({texts[n] for n in odd}))
            notes.append(f"column {name!r} has unknown levels {found} in {where}")
        for n in odd:
            rows[n][place] = ""
    return cells._replace(rows=rows), notes


def _levels(cells: Cells, name: str, levels: Sequence[str], own: Sequence[str]) -> np.ndarray:
    """Return positions of a column's texts among its levels, by this table's names of them."""
    if not len({*own}) == len(own) == len(levels):
        raise UsageError(
            found=f"the levels {some(own)} in --category {name}",
            expected=f"the table's own text for each of {some(levels)}, in this order",
        )
    place = {as_level(text): index for index, text in enumerate(own)}
    texts = [as_level(cell) for cell in cells.column(name)]
    fix = "Correct the file there, or name the level in --category at every site."
    if place.keys().isdisjoint(texts):  # such as labels in place of codes
        named = typed("--category", f"{name}={','.join(['TEXT'] * len(own))}")
        here = some(sorted({*texts}))
        fix = f"Pass {named}: the table's text, of {here}, for each of these in turn."
    for cell, line in zip(texts, cells.lines, strict=True):
        if cell not in place:
            raise table_error(
                cells.path,
                f"{cell[:50]!r} in line {line}, column {name!r}",
                f"one of its levels {some(own)}",
                fix,
            )
    return np.array([place[cell] for cell in texts], dtype=float)


def check_positive(recipe: Recipe, name: str, numbers: np.ndarray, cells: Cells) -> None:
    """Raise an ArtifactError for an exposure or weight that is not positive."""
    wrong = np.flatnonzero(numbers <= 0)
    if name in (recipe.exposure, recipe.weights) and len(wrong):
        found = f"{name!r} in line {cells.lines[wrong[0]]} that is not positive"
        raise table_error(cells.path, found, "positive numbers")
