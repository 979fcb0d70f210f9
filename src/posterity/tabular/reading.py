"""Reading of a recipe's columns from a table, as numbers or as positions of levels."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from posterity.errors import ArtifactError, StructureError, UsageError
from posterity.families.names import some
from posterity.runtime.text import listed
from posterity.tabular.options import INTERCEPT, LABELS
from posterity.tabular.recipe import Recipe
from posterity.tabular.tables.reader import Cells, clean, is_missing, table_error

ALONE = ("target", "event", "entry", "exposure", "offset", "weights", "cluster")
FLAGS = {key: f"--{key}" for key in ALONE} | {"weights": "--record-weights"}
"""Columns of a recipe that are not inputs, with their options."""
DISTINCT = 10
"""Number of values of a column from which repeated records are unlikely by chance."""
LOGICAL = {"TRUE": "1", "FALSE": "0"}


@dataclasses.dataclass(frozen=True)
class Reading:
    """Names, units and levels of one site's table, where they differ from the recipe's. They are
    not stored in the file.

    Attributes:
        rename: for columns of the recipe, their names in this table.
        convert: for columns, the factor that converts their numbers to the recipe's unit.
        levels: for columns, the texts of this table, in the order of the recipe's levels.
        drop_missing: whether to drop records with a missing value.
        decimal: ``"."`` or ``","``, if the numbers do not determine it.
    """

    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    convert: Mapping[str, float] = dataclasses.field(default_factory=dict)
    levels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    drop_missing: bool = False
    decimal: str | None = None

    def renamed(self, cells: Cells) -> Cells:
        """Return the table with its columns under the recipe's names."""
        own = {table: name for name, table in self.rename.items()}
        unknown = [table for table in own if table not in cells.header]
        if unknown:
            raise _no_column(unknown[0], "the column of --rename", cells.header, cells.path)
        header = tuple(own.get(name, name) for name in cells.header)
        twice = [name for name in self.rename if header.count(name) > 1]
        if twice:
            raise UsageError(
                found=f"a column {twice[0]!r} in {str(cells.path)!r} and another renamed to it",
                expected="one column of each name",
                fix="Leave --rename out, or remove the other column from the table.",
            )
        return cells._replace(header=header)


PLAIN = Reading()
"""Reading of a table that agrees with the recipe."""


def names_in_r(recipe: Recipe) -> dict[str, str]:
    """Return the names of coefficients by R's names: ``sexmale``, ``I((age - 60)/10)``."""
    known = {"(Intercept)": INTERCEPT}
    for name, levels in recipe.categories.items():
        known |= {f"{name}{level}": f"{name}[{level}]" for level in levels}
    for name in recipe.columns or ():
        center = recipe.center.get(name, 0.0)
        off = f" {'+' if center < 0 else '-'} {_number_in_r(abs(center))}"
        off = off if name in recipe.center else ""
        by = f"/{_number_in_r(recipe.scale[name])}" if name in recipe.scale else ""
        known[f"I(({name}{off}){by})" if off and by else f"I({name}{off}{by})"] = name
    return known


def _number_in_r(number: float | int) -> str:
    """Format a number as R does: to 15 digits, with an exponent if that is shorter.

    >>> [_number_in_r(number) for number in (60, 0.1, 1234567, 100000, 0.0001)]
    ['60', '0.1', '1234567', '1e+05', '1e-04']
    """
    digits, _, power = f"{number:.14e}".partition("e")
    short = f"{digits.rstrip('0').rstrip('.')}e{int(power):+03d}"
    plain = np.format_float_positional(float(f"{number:.15g}"), trim="-")
    return plain if len(plain) <= len(short) else short


def columns_to_predict(recipe: Recipe, cells: Cells) -> None:
    """Raise a StructureError unless a table has the columns that a recipe predicts from."""
    wanted = [*(recipe.columns or ()), *([recipe.offset] if recipe.offset else [])]
    missing = [name for name in wanted if name not in cells.header]
    if missing:
        expected = f"the model's columns {some(wanted)}"
        raise _no_column(missing[0], expected, cells.header, cells.path)


def columns_of(recipe: Recipe, header: Sequence[str], path: Path) -> tuple[str, ...]:
    """Return the columns that are used, in the order of the options, or else of the file."""
    alone = {FLAGS[key]: name for key in ALONE if (name := getattr(recipe, key))}
    apart = {*alone.values()}
    for flag, names in {
        **{flag: [name] for flag, name in alone.items()},
        "--columns": recipe.columns or (),
        "--without": recipe.without,
    }.items():
        unknown = [name for name in names if name not in header]
        if unknown:
            raise _no_column(unknown[0], f"the column of {flag}", header, path)
    columns = tuple(dict.fromkeys(recipe.columns or ()))
    # Numbers may also be an offset, as of a smooth departure from a linear predictor.
    numbers = {recipe.offset} - {*recipe.categories, *recipe.indicated, recipe.target}
    roles = [*alone.values(), *(name for name in columns if name not in numbers)]
    twice = [name for name in roles if roles.count(name) > 1]
    if twice:
        raise UsageError(
            found=f"{twice[0]!r} in two of --columns, {', '.join(FLAGS.values())}",
            expected="a column in one role",
            fix="Leave it out of one of them.",
        )
    if recipe.columns is not None:
        used = columns
    else:
        used = tuple(name for name in header if name not in {*apart, *recipe.without})
    _check_names(recipe, used, path)
    return used


def _no_column(name: str, expected: str, header: Sequence[str], path: Path) -> StructureError:
    return StructureError(
        found=f"no column {name!r} in {str(path)!r}, which has {some(header)}",
        expected=expected,
        fix=f"Use the table's name, or, if the model has another, pass --rename {name}=NAME.",
    )


def _check_names(recipe: Recipe, used: Sequence[str], path: Path, *, most: int = 5000) -> None:
    """Raise unless options name columns in use, and ``most`` bounds these: with so many a step
    takes minutes and the covariance 200 MB.
    """
    target = [recipe.target] if recipe.target else []
    scaled = [*used, *(target if recipe.model == "linear" else [])]
    plain = [name for name in scaled if name not in recipe.categories]
    # Counts and classes have no unit.
    measured = [recipe.exposure, recipe.entry]
    measured += target if recipe.model in ("gamma", "survival") else []
    flags: dict[str, tuple[Iterable[str], Sequence[str]]] = {
        "--center": (recipe.center, plain),
        "--scale": (recipe.scale, plain),
        "--unit": (recipe.unit, [*plain, *(name for name in measured if name)]),
        "--category": (recipe.categories, [*used, *(target if recipe.model in LABELS else [])]),
    }
    for flag, (names, known) in flags.items():
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UsageError(
                found=f"{flag} for {unknown[0]!r}",
                expected=f"one of the columns {some(known)}",
                fix="Leave it out, or use the column's name in the table.",
            )
    if len(used) > most:
        raise StructureError(
            found=f"{len(used):,} columns in {str(path)!r}",
            expected=f"at most {most:,}, since their covariance is computed",
            fix="Name those to use by --columns, or leave some out by --without.",
        )
    if not used and not recipe.intercept:
        raise StructureError(
            found=f"no columns but the target in {str(path)!r}",
            expected="at least one more column",
            fix="Add columns, or leave --no-intercept out.",
        )


def labelled(
    cells: Cells, recipe: Recipe, reading: Reading, wanted: Sequence[str]
) -> tuple[Reading, list[str]]:
    """Return a reading that accepts 0 and 1 as names of a target's two levels, and notes.

    There is also a note if the table's names of a column's levels are the recipe's in another
    order.
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
    if target not in wanted or len(levels) != 2 or target in reading.levels:
        return reading, notes
    if {"0", "1"} & {*levels} or not {text.strip() for text in cells.column(target)} <= {"0", "1"}:
        return reading, notes
    note = f"0 and 1 in {target!r} are read as {levels[0]} and {levels[1]}"
    return dataclasses.replace(reading, levels={**reading.levels, target: ("0", "1")}), [
        *notes,
        note,
    ]


def values_of(
    cells: Cells, recipe: Recipe, reading: Reading, wanted: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return, by column, numbers in the recipe's unit, or positions of a category's levels."""
    numeric = [name for name in wanted if name not in recipe.categories]
    expected = (
        "numbers; for a column of texts pass its levels (--category {column}=a,b), or leave it "
        "out (--without {column})"
    )
    numbers = _logical(cells, numeric).numbers(numeric, reading.decimal, expected=expected).T
    values = dict(zip(numeric, numbers, strict=True))
    for name, factor in reading.convert.items():
        if name not in values:
            raise UsageError(
                found=f"--convert for {name!r}",
                expected=f"one of the numeric columns {some(numeric)}",
                fix="Leave it out, or use the column's name in the model.",
            )
        values[name] = values[name] * factor
    for name in wanted:
        levels = recipe.categories.get(name)
        if levels is not None:
            values[name] = _levels(cells, name, levels, reading.levels.get(name, levels))
    return values


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
                "that stands for a missing value, leave these cells empty"
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
    middle = np.median(numbers) if len(numbers) >= few else np.nan
    far = np.abs(numbers - middle)
    usual = float(np.quantile(far, 0.95, method="lower")) if len(far) else np.nan
    most = int(np.argmax(far)) if len(far) else 0
    if not (usual > np.finfo(np.float32).eps * abs(middle) and far[most] > factor * usual):
        return []
    return [
        f"{name!r} is {numbers[most]:g} in line {lines[most]}, {far[most] / usual:.2g} times as "
        "far from the median as 95 % of its values: look there for a slip or another unit, as such "
        "a record can determine the coefficients alone"
    ]


def _logical(cells: Cells, names: Sequence[str]) -> Cells:
    """Convert TRUE and FALSE, the logical values of R and spreadsheets, to 1 and 0."""
    places = (cells.header.index(name) for name in names)
    logical = {n for n in places if all(row[n].upper() in LOGICAL for row in cells.rows)}
    if not logical or not cells.rows:
        return cells

    def as_number(place, cell):
        return LOGICAL[cell.upper()] if place in logical else cell

    rows = [[as_number(*one) for one in enumerate(row)] for row in cells.rows]
    return cells._replace(rows=rows)


def texts_of_levels(recipe: Recipe, reading: Reading) -> dict[str, list[str]]:
    """Return by category the texts of its levels in this table, which are not missing values."""
    own = {**recipe.categories, **reading.levels}
    return {name: [*map(clean, own[name])] for name in recipe.categories}


def _is_gap(cell: str, levels: Sequence[str]) -> bool:
    """Return whether a cell denotes a missing value, and is not among the levels of its column."""
    return is_missing(cell) and (clean(cell) or None) not in levels


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
        raise ArtifactError(
            found=f"{sum(gap)} records with a missing value in {str(cells.path)!r}, the first in "
            f"line {lines[0]} (column {name!r}), in lines {listed(lines)}",
            expected="a value in every column that is used",
            fix="Impute them, leave columns out (--without NAME) or records (--drop-missing), or "
            "add an indicator (--formula 'TARGET ~ NAME + missing(NAME)').",
        )
    rows = [cells.rows[n] for n in kept]
    lines = [cells.lines[n] for n in kept]
    return cells._replace(rows=rows, lines=lines), kept


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
        texts = [clean(row[place]) for row in rows]
        odd = [n for n, text in enumerate(texts) if text not in own and not is_missing(text)]
        if odd:
            lines = listed(str(cells.lines[n]) for n in odd)
            found = some(sorted({texts[n] for n in odd}))
            notes.append(f"column {name!r} has unknown levels {found} in lines {lines}")
        for n in odd:
            rows[n][place] = ""
    return cells._replace(rows=rows), notes


def _levels(cells: Cells, name: str, levels: Sequence[str], own: Sequence[str]) -> np.ndarray:
    """Return positions of a column's texts among its levels, by this table's names of them."""
    if len(own) != len(levels):
        raise UsageError(
            found=f"{len(own)} levels in --category {name}",
            expected=f"the table's own text for each of {some(list(levels))}, in this order",
            fix="List all, also those that do not occur in this table.",
        )
    place = {clean(text): index for index, text in enumerate(own)}
    texts = [clean(cell) for cell in cells.column(name)]
    for cell, line in zip(texts, cells.lines, strict=True):
        if cell not in place:
            raise table_error(
                cells.path,
                f"{cell[:50]!r} in line {line}, column {name!r}",
                f"one of its levels {some(list(own))}",
            )
    return np.array([place[cell] for cell in texts], dtype=float)
