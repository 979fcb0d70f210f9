"""Reading of a recipe's columns from a table, as numbers or as positions of levels."""

import dataclasses
import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from posterity.errors import StructureError, UsageError
from posterity.families.names import some
from posterity.runtime.text import count, listed, typed
from posterity.tabular.options import INTERCEPT, LABELS, indicator
from posterity.tabular.recipe import Recipe
from posterity.tabular.tables.numbers import value_of
from posterity.tabular.tables.reader import Cells

ALONE = ("target", "event", "entry", "exposure", "trials", "offset", "weights", "cluster")
FLAGS = {key: f"--{key}" for key in ALONE} | {"weights": "--record-weights"}
"""Columns of a recipe that are not inputs, with their options."""


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
        missing: texts and numbers of cells that stand for a missing value, beside the usual ones.
    """

    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    convert: Mapping[str, float] = dataclasses.field(default_factory=dict)
    levels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    drop_missing: bool = False
    decimal: str | None = None
    missing: tuple[str, ...] = ()

    def renamed(self, cells: Cells) -> Cells:
        """Return the table with its columns under the recipe's names, and with empty cells for
        those of ``missing``, noted by column.
        """
        own = {table: name for name, table in self.rename.items()}
        unknown = [table for table in own if table not in cells.header]
        if unknown:
            raise _no_column(unknown, "the column of --rename", cells.header, cells.path)
        header = tuple(own.get(name, name) for name in cells.header)
        twice = [name for name in self.rename if header.count(name) > 1]
        found = f"columns {twice} in '{cells.path}' and others renamed to them"
        UsageError.check((twice, found, "one column of each name"))
        cells = cells._replace(header=header)
        gaps = {*map(value_of, self.missing)}
        rows = [[*row] for row in cells.rows] if gaps else cells.rows
        notes = [*cells.notes]
        for place, name in enumerate(header if gaps else ()):
            texts = Counter(row[place] for row in rows)
            odd = {text: n for text, n in texts.items() if value_of(text, self.decimal) in gaps}
            if odd:
                found = listed(f"{text.strip()} in {count(n, 'record')}" for text, n in odd.items())
                notes.append((name, f"no value in {name!r}, by --missing: {found}"))
            for row in rows if odd else ():
                row[place] = "" if row[place] in odd else row[place]
        return cells._replace(rows=rows, notes=(*notes,))


PLAIN = Reading()
"""Reading of a table that agrees with the recipe."""


def names_in_r(recipe: Recipe) -> dict[str, str]:
    """Return the names of coefficients by those of R, ``sexmale``, ``I((age - 60)/10)``, of a
    logical column ``smokerTRUE``; of statsmodels' formulas, ``C(sex)[T.male]``; of Stata,
    ``_cons``; and of SPSS.
    """
    ones = ("(Intercept)", "Intercept", "const", "_cons", "(Constant)")
    known: dict[str, str] = {name: INTERCEPT for name in ones}
    for name, levels in recipe.categories.items():
        for level in levels:
            others = (f"{name}{level}", f"C({name})[T.{level}]", f"{name}[T.{level}]")
            others += (f"C({name})[{level}]", f"factor({name}){level}")
            known |= dict.fromkeys(others, f"{name}[{level}]")
    for name in {*(recipe.columns or ())} - recipe.categories.keys():
        known |= {f"{name}TRUE": name, f"{name}[T.True]": name}
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
        raise _no_column(missing, expected, cells.header, cells.path, {*wanted, recipe.target})


def columns_of(recipe: Recipe, header: Sequence[str], path: Path) -> tuple[str, ...]:
    """Return the columns that are used, in the order of the options, or else of the file."""
    alone = {FLAGS[key]: name for key in ALONE if (name := getattr(recipe, key))}
    apart = {*alone.values()}
    columns = tuple(dict.fromkeys(recipe.columns or ()))
    for flag, names in {
        **{flag: [name] for flag, name in alone.items()},
        "--columns": columns,
    }.items():
        unknown = [name for name in names if name not in header]
        if unknown:
            taken = {*apart, *columns}
            raise _no_column(unknown, f"the column of {flag}", header, path, taken)
    # Numbers may also be an offset, as of a smooth departure from a linear predictor.
    numbers = {recipe.offset} - {*recipe.categories, *recipe.indicated, recipe.target}
    roles = [*alone.values(), *(name for name in columns if name not in numbers)]
    twice = [name for name in roles if roles.count(name) > 1]
    found = f"{next(iter(twice), None)!r} in two of --columns, {', '.join(FLAGS.values())}"
    UsageError.check((twice, found, "a column in one role"))
    if recipe.columns is not None:
        used = columns
    else:
        used = tuple(name for name in header if name not in {*apart, *recipe.without})
    _check_names(recipe, used, path)
    return used


def with_absent(cells: Cells, recipe: Recipe) -> tuple[Cells, list[str]]:
    """Return the table with an empty column for each that it lacks and that has an indicator of
    missing values, and notes.
    """
    absent = sorted(recipe.indicated - {*cells.header})
    if not absent:
        return cells, []
    gaps = [""] * len(absent)
    rows = [[*row, *gaps] for row in cells.rows]
    note = f"no column {some(absent)}: missing in every record, as missing(...) in the formula says"
    return cells._replace(header=(*cells.header, *absent), rows=rows), [note]


def _no_column(
    names: Sequence[str],
    expected: str,
    header: Sequence[str],
    path: Path,
    taken: Collection[str | None] = (),
) -> StructureError:
    """Return the error for columns that a table lacks, with a way on for the first of them; it
    never suggests columns that are ``taken``, which have a part in the model.
    """
    name = names[0]
    lacking = f"column {name!r}" if len(names) == 1 else f"columns {some(names)}"
    ones = "; or add it, with 1 in each record, if these have none"
    ways = {
        "columns": f"; if this site never recorded it, fit all with {indicator(name)} in the "
        "--formula",
        "--cluster": "; if no two of its records are of one cluster, add a column that numbers "
        "them",
        "weights": ones,
        "trials": ones,
    }
    way = next((words for role, words in ways.items() if role in expected), "")
    renamed = typed("--rename", f"{name}=NAME")
    own = f"Use the table's name, or, if the model has another, pass {renamed}"
    free = [own for own in header if own not in taken]
    near = [own for own in free if own.casefold() == name.casefold()]
    # Slips keep the first letter: Tage, which is days, is no age.
    alike = [own for own in free if own[:1].casefold() == name[:1].casefold()]
    near = near or difflib.get_close_matches(name, alike, 1)
    if near:
        renamed = typed("--rename", f"{name}={near[0]}")
        own = f"Write {near[0]}, or, if the model calls it so, pass {renamed}"
    return StructureError(
        found=f"no {lacking} in '{path}', which has {some(header)}",
        expected=expected,
        fix=f"{own}{way}.",
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
    labelled = [recipe.event] if recipe.event else []
    has_labels = recipe.model in LABELS
    measured += target if recipe.model in ("gamma", "survival") else []
    flags: dict[str, tuple[Iterable[str], Sequence[str]]] = {
        "--center": (recipe.center, plain),
        "--scale": (recipe.scale, plain),
        "--unit": (recipe.unit, [*plain, *(name for name in measured if name)]),
        "--category": (recipe.categories, [*used, *labelled, *(target * has_labels)]),
    }
    for flag, (names, known) in flags.items():
        for name in names:
            expected = f"one of the columns {some(known)}"
            UsageError.check((name not in known, f"{flag} for {name!r}", expected))
    none = not (used or recipe.intercept)
    few = f"at most {most:,}, since their covariance is computed"
    fix = "Name those to use by --columns, or leave some out by --without."
    StructureError.check(
        (len(used) > most, f"{len(used):,} columns in '{path}'", few, fix),
        (none, f"no columns but the target in '{path}'", "at least one more column"),
    )
