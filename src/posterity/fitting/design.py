"""From the cells of a table to the numbers that a model sees."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posterity.adapters.tables.reader import Cells, is_missing, table_error
from posterity.artifact.recipe import COUNTS, HAZARDS, INTERCEPT, LABELS, SPLINE, Factor, Recipe
from posterity.errors import ArtifactError, ParameterError, StructureError, UsageError
from posterity.families.names import some

LARGEST = 1e100
"""The largest number that a model sees: squares, and their sums, are to be finite."""
MOST = 5000
"""Columns of a fit: a step takes minutes with as many, and their covariance 200 MB."""


class Design(NamedTuple):
    """``x`` (n, d) with its names, and beside it what the recipe names, each (n,) or None.

    ``lines`` are those of the records in the file, ``kept`` their numbers among its ``total``
    records, of which ``dropped`` had a missing value.

    Of survival a record stands once for each interval between cuts in which it was at risk: ``y``
    is whether its event was there, ``exposure`` for how long. Where it is to be predicted it
    stands once, and ``times`` (n, 3) are its time, event and entry, if they are there.
    """

    x: np.ndarray
    y: np.ndarray | None
    exposure: np.ndarray | None
    offset: np.ndarray | None
    weights: np.ndarray | None
    names: tuple[str, ...]
    lines: np.ndarray
    kept: np.ndarray
    total: int
    dropped: int
    notes: tuple[str, ...]
    times: np.ndarray | None = None

    @property
    def records(self) -> int:
        """The number of records that are used."""
        return self.total - self.dropped


ALONE = ("target", "event", "entry", "exposure", "offset", "weights")
FLAGS = {"weights": "--record-weights"}
"""Columns of a recipe that are no inputs, and that flag which is not called as they are."""
NODES = 11
"""Gauss-Radau nodes of a hazard's integral over time, the last of them at the end, where an event
is."""
POWER = {"weibull": 6, "gompertz": 1, SPLINE: 6}
"""Nodes are those of this root of time, where an interval is no short part of it: a hazard
that is linear in log time may start infinite."""
LOGICAL = {"TRUE": "1", "FALSE": "0"}
SAVED_INDEX = re.compile(r"Unnamed: \d+")
"""What pandas calls a column without a name when it reads one."""


def columns_of(recipe: Recipe, header: Sequence[str], path: Path) -> tuple[str, ...]:
    """The columns that are used, in the order of the flags, or else of the file.

    Raises:
        StructureError: if a column that the recipe names is not there, or one that it does not
            name holds row numbers.
    """
    alone = {key: getattr(recipe, key) for key in ALONE}
    apart = [name for name in alone.values() if name]
    named: dict[str, Iterable[str]] = {
        **{FLAGS.get(key, f"--{key}"): [name] for key, name in alone.items() if name},
        "--columns": recipe.columns or (),
        "--without": recipe.without,
    }
    for flag, names in named.items():
        if unknown := [name for name in names if name not in header]:
            raise _no_column(unknown[0], flag, header, path)
    if recipe.columns is not None:
        if both := set(apart) & set(recipe.columns):
            raise UsageError(
                found=f"{both.pop()!r} among --columns, and by itself as "
                + ", ".join(FLAGS.get(key, f"--{key}") for key in ALONE),
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


def _no_column(name: str, flag: str, header: Sequence[str], path: Path) -> StructureError:
    return StructureError(
        found=f"no column {name!r} in {str(path)!r}, which has {some(header)}",
        expected=f"the column that {flag} names",
        fix="Name it as the table does: --rename RECIPE=TABLE where the recipe has another name.",
    )


def _check_names(recipe: Recipe, used: Sequence[str], path: Path) -> None:
    """Refuse names of columns that are not used, of which a flag would go unheard."""
    target = [recipe.target] if recipe.target else []
    scaled = [*used, *(target if recipe.model == "linear" else [])]
    plain = [name for name in scaled if name not in recipe.categories]
    # A count and a class have no unit.
    measured = [recipe.exposure, recipe.entry]
    measured += target if recipe.model in ("gamma", "survival") else []
    flags: dict[str, tuple[Iterable[str], Sequence[str]]] = {
        "--center": (recipe.center, plain),
        "--scale": (recipe.scale, plain),
        "--unit": (recipe.unit, [*plain, *(name for name in measured if name)]),
        "--category": (recipe.categories, [*used, *(target if recipe.model in LABELS else [])]),
    }
    for flag, (names, known) in flags.items():
        if unknown := [name for name in names if name not in known]:
            raise UsageError(
                found=f"{flag} for {unknown[0]!r}",
                expected=f"a column that it is for: {some(known)}",
                fix="Leave it out, or name the column as the table does.",
            )
    if len(used) > MOST:
        raise StructureError(
            found=f"{len(used):,} columns in {str(path)!r}",
            expected=f"{MOST:,} at most, whose covariance is to be computed",
            fix="Name those to use by --columns, or leave some out by --without.",
        )
    if not used and not (recipe.regression and recipe.intercept):
        raise StructureError(
            found=f"no columns but the target in {str(path)!r}",
            expected="one column at least",
            fix="Name columns, or leave --no-intercept out.",
        )


@dataclasses.dataclass(frozen=True)
class Reading:
    """How one site's table says what the recipe is about; nothing of it is kept in the file.

    Attributes:
        rename: by the recipe's column the name that it has in this table.
        convert: by column what its numbers are multiplied by to be in the recipe's unit.
        levels: by column the texts of this table, in the order of the recipe's levels.
        drop_missing: leave out records of which a value is missing.
        decimal: ``"."`` or ``","``, where the numbers do not say it.
    """

    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    convert: Mapping[str, float] = dataclasses.field(default_factory=dict)
    levels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    drop_missing: bool = False
    decimal: str | None = None

    def renamed(self, cells: Cells) -> Cells:
        """The table with its columns under the recipe's names."""
        own = {table: name for name, table in self.rename.items()}
        if unknown := [table for table in own if table not in cells.header]:
            raise _no_column(unknown[0], "--rename", cells.header, cells.path)
        header = tuple(own.get(name, name) for name in cells.header)
        if twice := [name for name in self.rename if header.count(name) > 1]:
            raise UsageError(
                found=f"a column {twice[0]!r} in {str(cells.path)!r} beside the one renamed to it",
                expected="one column of a name",
                fix="Leave --rename out, or take the other column out of the table.",
            )
        return cells._replace(header=header)


PLAIN = Reading()
"""A table that says all as the recipe does."""


def columns_to_predict(recipe: Recipe, cells: Cells) -> None:
    """Raise a StructureError unless a table has the columns that a recipe predicts from."""
    wanted = [*(recipe.columns or ()), *([recipe.offset] if recipe.offset else [])]
    if missing := [name for name in wanted if name not in cells.header]:
        raise StructureError(
            found=f"no column {missing[0]!r} in {str(cells.path)!r}, which has "
            f"{some(cells.header)}",
            expected=f"the columns that the model takes: {some(wanted)}",
            fix="Add it, or name the table's own by --rename "
            f"{missing[0]}=NAME; leave its cells empty where it is not known.",
        )


def design(
    cells: Cells,
    recipe: Recipe,
    reading: Reading = PLAIN,
    *,
    predicting: bool = False,
    scored: bool = True,
    empty: bool = False,
) -> Design:
    """The numbers of the columns that ``recipe.columns`` names, in its units.

    Where it is for a prediction, records with a missing value are left out whatever ``reading``
    says, weights are not read, and the exposure need not be there, nor, if it is not ``scored``,
    the target.

    Raises:
        ArtifactError: for a cell that cannot be read, or is missing; it names line and column.
        ParameterError: for a target that the model cannot have.
        StructureError: if no records are left, unless it may be ``empty``.
    """
    path, used = cells.path, recipe.columns or ()
    target = [recipe.target, recipe.event, recipe.entry] if scored else []
    apart = [*target, recipe.exposure, None if predicting else recipe.weights]
    apart = [name for name in apart if name and not (predicting and name not in cells.header)]
    wanted = [name for name in (*used, recipe.offset, *apart) if name]
    places = {name: cells.header.index(name) for name in wanted}
    cells, strange = _known(cells, recipe, reading, places) if predicting else (cells, [])
    whole, kept = _whole(cells, places, reading.drop_missing or predicting)
    lines, dropped = whole.lines, len(cells.rows) - len(whole.rows)
    if not whole.rows and not empty:
        raise StructureError(
            found=f"no records in {str(path)!r}" + (f", {dropped} dropped" if dropped else ""),
            expected="one at least",
            fix="Add records.",
        )
    reading, notes = _labelled(whole, recipe, reading, wanted)
    notes += strange
    values = _values(whole, recipe, reading, wanted)
    names, columns = recipe.inputs(), _columns(recipe, values, whole)
    plain = recipe.shared.inputs()
    known = {*plain, *(name.partition("[")[0] for name in plain)}
    if odd := [name for name in recipe.own if name not in known]:
        raise UsageError(
            found=f"--own {odd[0]}",
            expected=f"coefficients or columns among {some(plain)}",
            fix="Name those that each site has for itself.",
        )
    if len(set(own := recipe.coefficients())) < len(own):
        twice = next(name for name in own if own.count(name) > 1)
        raise StructureError(
            found=f"two coefficients {twice!r}",
            expected="a name for each",
            fix="Rename a column or a level; a column of ones wants --no-intercept.",
        )
    target = values.get(recipe.target or "")
    if target is not None and recipe.model == "linear":
        target = _in_units(recipe, recipe.target or "", target)
    exposure, offset, weights = (
        values.get(name or "") for name in (recipe.exposure, recipe.offset, recipe.weights)
    )
    for name, own in ((recipe.exposure, exposure), (recipe.weights, weights)):
        if own is not None and (own <= 0).any():
            line = lines[int(np.argmax(own <= 0))]
            raise table_error(
                path, f"{name!r} in line {line} that is not positive", "positive numbers"
            )
    if dropped:
        notes += [f"{dropped} of {len(cells.rows)} records dropped, of which a value is missing"]
    pairs, ones = zip(plain, columns, strict=True), {INTERCEPT, *recipe.baseline}
    level = [name for name, c in pairs if name not in ones and len(c) and np.ptp(c) == 0]
    if level and not (predicting or empty):
        notes += [
            f"the same in every record: {some(level)}; the prior alone tells them from others"
        ]
    x = np.column_stack(columns) if columns else np.zeros((len(lines), 0))
    sizes = abs(x).max(0, initial=0)
    if not sizes.max(initial=0) <= LARGEST:
        raise ParameterError(
            found=f"{sizes.max():.3g} in column {names[int(np.argmax(sizes))]!r} of {str(path)!r}",
            expected=f"numbers up to {LARGEST:g}",
            fix="Change units: --scale NAME=VALUE.",
        )
    rows, total = np.asarray(lines), len(cells.rows)
    result = Design(
        x, target, exposure, offset, weights, names, rows, kept, total, dropped, tuple(notes)
    )
    _check_target(result, recipe, path)
    if recipe.model == "survival":
        return _at_risk(result, recipe, values, path, predicting)
    if recipe.model == "multinomial":
        names, count = recipe.coefficients(), len(recipe.levels) - 1
        return result._replace(x=np.tile(x, count), names=names)
    return _climbed(result, recipe) if recipe.model == "ordinal" and not predicting else result


def _climbed(data: Design, recipe: Recipe) -> Design:
    """Records once for each level that they came to, and whether they went beyond it.

    Going on is logistic at every level (the continuation-ratio model, fienberg2007).
    """
    reached = np.asarray(data.y, dtype=int)
    steps = np.arange(len(recipe.baseline))
    row, level = np.nonzero(steps <= reached[:, None])
    return _again(data, row, np.eye(len(steps))[level])._replace(y=1.0 * (reached[row] > level))


def _again(data: Design, row: np.ndarray, baseline: np.ndarray) -> Design:
    """Records several times, each time with its own columns (m, b) of the baseline."""
    x = data.x[row]
    x[:, : baseline.shape[1]] = baseline
    again = {
        name: None if own is None else own[row]
        for name, own in (("offset", data.offset), ("weights", data.weights))
    }
    return data._replace(x=x, lines=data.lines[row], **again)


def _at_risk(
    data: Design, recipe: Recipe, values: Mapping[str, np.ndarray], path: Path, predicting: bool
) -> Design:
    """Records once for each interval in which they were at risk; to be predicted once in all.

    Under a hazard that is constant in an interval the events there are Poisson counts, of which the
    time at risk is the exposure (holford1980). A hazard that changes all along is so at the nodes
    by which it is integrated.
    """
    if predicting and not {recipe.target, recipe.event} <= values.keys():
        return data._replace(y=None)
    time, event = values[recipe.target or ""], values[recipe.event or ""]
    entry = values.get(recipe.entry or "", np.zeros(len(time)))
    rounded = (time == entry) & (event == 1)
    wrong = (time < entry) | (entry < 0) | ((event != 0) & (event != 1)) | rounded
    if wrong.any():
        at = int(np.argmax(wrong))
        raise table_error(
            path,
            f"time {time[at]:g}, entry {entry[at]:g}, event {event[at]:g} in line {data.lines[at]}",
            "a time after the entry, which is not negative, and an event that is 0 or 1",
            "Where times of events are rounded down to their entry add half the unit that they are "
            "rounded to, as 0.5 of a day."
            if rounded[at]
            else "Mend the file there.",
        )
    if predicting:
        return data._replace(y=event, times=np.column_stack([time, event, entry]))
    if idle := int((time == entry).sum()):
        notes = (*data.notes, f"{idle} records censored at their entry, which say nothing")
        data = data._replace(notes=notes)
    at, spent = hazard_nodes(recipe, entry, time)
    row, interval, node = np.nonzero(spent > 0)
    last = (node == at.shape[2] - 1) & (at[row, interval, node] == time[row])
    made = _again(data, row, baseline_at(recipe, at[row, interval, node]))
    return made._replace(y=last * event[row], exposure=spent[row, interval, node])


def hazard_nodes(
    recipe: Recipe, entry: np.ndarray, time: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Times (n, intervals, nodes) and lengths by which hazards are integrated from entry to time.

    The last node of an interval is its end. Lengths are 0 in intervals without time at risk.
    """
    ends = np.array([0.0, *recipe.cuts, np.inf])
    nodes, weights = _radau() if recipe.hazard else (np.ones(1), np.ones(1))
    low, high = (np.clip(own[:, None], ends[:-1], ends[1:]) for own in (entry, time))
    power = np.where(high > 2 * low, POWER.get(recipe.hazard or "", 1), 1)[..., None]
    start, end = (own[..., None] ** (1 / power) for own in (low, high))
    root = start + (end - start) * nodes
    at, spent = root**power, power * root ** (power - 1) * (end - start) * weights
    at[..., -1] = high
    return np.maximum(at, np.finfo(float).tiny), spent


@functools.cache
def _radau() -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Radau nodes of [0, 1], ascending up to 1, and their weights."""
    from scipy.special import roots_jacobi

    inner, weights = roots_jacobi(NODES - 1, 1, 0)
    nodes = np.append(inner, 1.0)
    return (nodes + 1) / 2, np.append(weights / (1 - inner), 2 / NODES**2) / 2


def baseline_at(recipe: Recipe, time: np.ndarray) -> np.ndarray:
    """The columns (n, b) of the log hazard at these times (n,); none where it is constant."""
    if recipe.hazard == SPLINE:
        from scipy.interpolate import CubicSpline

        knots, at = np.log(recipe.cuts), np.log(time)
        spline = CubicSpline(knots, np.eye(len(knots)), bc_type="natural")
        inside = np.clip(at, knots[0], knots[-1])
        return spline(inside) + (at - inside)[:, None] * spline(inside, 1)
    if recipe.hazard in HAZARDS:
        own = np.log(time) if recipe.hazard == "weibull" else time
        return np.column_stack([np.ones(len(time)), own])
    interval = np.searchsorted(np.array(recipe.cuts), time)
    return np.eye(len(recipe.cuts) + 1)[interval][:, : len(recipe.baseline)]


def _columns(recipe: Recipe, values: Mapping[str, np.ndarray], cells: Cells) -> list[np.ndarray]:
    """The columns of the design, (n,) each: products of what is made of a term's columns."""
    ones = np.ones(len(cells.rows))
    columns = [ones] if recipe.intercept and recipe.regression else []
    if recipe.baseline:
        columns = [0.0 * ones for _ in recipe.baseline]
    for term in recipe.coded():
        block = [ones]
        for factor, full in term:
            own = _made(recipe, factor, full, values[factor[1]], cells)
            block = [one * other for one in block for other in own]
        columns += block
    return columns


def _made(
    recipe: Recipe, factor: Factor, full: bool, values: np.ndarray, cells: Cells
) -> list[np.ndarray]:
    """The columns that a factor makes of a column of the table.

    Raises:
        ArtifactError: for a value that the function is not defined at; it names the line.
    """
    kind, name, *numbers = factor
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
        at = int(np.argmin(inside))
        raise table_error(
            cells.path,
            f"{own[at]:g} in line {cells.lines[at]}, column {name!r}",
            f"numbers from {numbers[1]:g} to {numbers[2]:g}, the bounds of its spline"
            if kind == "spline"
            else f"numbers that have a {kind}",
        )
    if kind != "spline":
        with np.errstate(over="ignore"):
            return [getattr(np, kind)(own)]
    degree, lower, upper, *inner = numbers
    from scipy.interpolate import BSpline

    knots = [lower] * (int(degree) + 1) + inner + [upper] * (int(degree) + 1)
    basis = BSpline.design_matrix(own, np.array(knots), int(degree)).toarray()
    return list(basis[:, 1:].T)


def _labelled(
    cells: Cells, recipe: Recipe, reading: Reading, wanted: Sequence[str]
) -> tuple[Reading, list[str]]:
    """A reading that takes 0 and 1 for the names of a target's two levels, and a note of that."""
    target, levels = recipe.target or "", recipe.levels
    if target not in wanted or len(levels) != 2 or target in reading.levels:
        return reading, []
    if {"0", "1"} & {*levels} or not {text.strip() for text in cells.column(target)} <= {"0", "1"}:
        return reading, []
    note = f"0 and 1 of {target!r} are taken for {levels[0]} and {levels[1]}"
    return dataclasses.replace(reading, levels={**reading.levels, target: ("0", "1")}), [note]


def _values(
    cells: Cells, recipe: Recipe, reading: Reading, wanted: Sequence[str]
) -> dict[str, np.ndarray]:
    """By column the numbers in the recipe's unit, or the places of a category's levels."""
    numeric = [name for name in wanted if name not in recipe.categories]
    expected = (
        "numbers; a column of texts by its levels (--category {column}=a,b), or left out "
        "(--without {column})"
    )
    numbers = _logical(cells, numeric).numbers(numeric, reading.decimal, expected=expected).T
    values = dict(zip(numeric, numbers, strict=True))
    for name, factor in reading.convert.items():
        if name not in values:
            raise UsageError(
                found=f"--convert for {name!r}",
                expected=f"a column of numbers that is used: {some(numeric)}",
                fix="Leave it out, or name the column as the recipe does.",
            )
        values[name] = values[name] * factor
    for name in wanted:
        if (levels := recipe.categories.get(name)) is not None:
            values[name] = _levels(cells, name, levels, reading.levels.get(name, levels))
    return values


def _logical(cells: Cells, names: Sequence[str]) -> Cells:
    """TRUE and FALSE, as R and spreadsheets write logical values, as 1 and 0."""
    places = [cells.header.index(name) for name in names]
    logical = {place for place in places if cells.rows and cells.rows[0][place].upper() in LOGICAL}
    logical -= {n for n in logical if any(row[n].upper() not in LOGICAL for row in cells.rows)}
    rows = [
        [LOGICAL[cell.upper()] if place in logical else cell for place, cell in enumerate(row)]
        for row in (cells.rows if logical else [])
    ]
    return cells._replace(rows=rows) if logical else cells


def _in_units(recipe: Recipe, name: str, values: np.ndarray) -> np.ndarray:
    return (values - recipe.center.get(name, 0.0)) / recipe.scale.get(name, 1.0)


def _whole(cells: Cells, places: Mapping[str, int], drop: bool) -> tuple[Cells, np.ndarray]:
    """The records of which nothing is missing, and their numbers among all."""
    positions = list(places.values())
    gap = [any(is_missing(row[place]) for place in positions) for row in cells.rows]
    kept = np.flatnonzero(~np.array(gap, dtype=bool))
    if any(gap) and not drop:
        first = gap.index(True)
        name = next(name for name, place in places.items() if is_missing(cells.rows[first][place]))
        lines = [str(line) for line, one in zip(cells.lines, gap, strict=True) if one]
        raise ArtifactError(
            found=f"{sum(gap)} records with a missing value in {str(cells.path)!r}, the first in "
            f"line {cells.lines[first]} (column {name!r}), in lines {some(lines)}",
            expected="a value in every column that is used",
            fix="Impute them, leave columns out (--without NAME), or drop records: --drop-missing.",
        )
    rows, lines = [cells.rows[n] for n in kept], [cells.lines[n] for n in kept]
    return cells._replace(rows=rows, lines=lines), kept


def _known(
    cells: Cells, recipe: Recipe, reading: Reading, places: Mapping[str, int]
) -> tuple[Cells, list[str]]:
    """A table to be predicted, in which levels that the model does not know are missing; notes."""
    notes, rows = [], [list(row) for row in cells.rows]
    for name in set(recipe.columns or ()) & recipe.categories.keys():
        own, place = reading.levels.get(name, recipe.categories[name]), places[name]
        texts = [row[place].strip() for row in rows]
        odd = [n for n, text in enumerate(texts) if text not in own and not is_missing(text)]
        if odd:
            lines = some([str(cells.lines[n]) for n in odd])
            levels = some(sorted({texts[n] for n in odd}))
            notes.append(f"column {name!r}: {levels} in lines {lines}, unknown to the model")
        for n in odd:
            rows[n][place] = ""
    return cells._replace(rows=rows), notes


def _levels(cells: Cells, name: str, levels: Sequence[str], own: Sequence[str]) -> np.ndarray:
    """The places of a column's texts among its levels, which this table may call otherwise."""
    if len(own) != len(levels):
        raise UsageError(
            found=f"--category {name} with {len(own)} levels",
            expected=f"the table's own text for each of {some(list(levels))}, in this order",
            fix="Name all of them, also those that are not in this table.",
        )
    place = {text: index for index, text in enumerate(own)}
    texts = [cell.strip() for cell in cells.column(name)]
    for cell, line in zip(texts, cells.lines, strict=True):
        if cell not in place:
            raise table_error(
                cells.path,
                f"{cell[:50]!r} in line {line}, column {name!r}",
                f"one of its levels {some(list(own))}, the same at every site",
            )
    return np.array([place[cell] for cell in texts], dtype=float)


TARGETS: Mapping[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "logistic": (lambda y: (y == 0) | (y == 1), "0 or 1, or two levels named by --category"),
    "gamma": (lambda y: y > 0, "positive numbers"),
    **dict.fromkeys(
        COUNTS, (lambda y: (y >= 0) & (y == np.round(y)), "counts: whole numbers from 0")
    ),
}
"""The kinds of targets that models have, and their description."""


def _check_target(design: Design, recipe: Recipe, path: Path) -> None:
    y, (holds, expected) = design.y, TARGETS.get(recipe.model, (None, ""))
    if y is None or holds is None or (right := holds(y)).all():
        return
    at = int(np.argmin(right))
    raise ParameterError(
        found=f"{y[at]:g} in line {design.lines[at]} of target {recipe.target!r} in {str(path)!r}",
        expected=expected,
        fix="Mend the column, or choose another --model.",
    )
