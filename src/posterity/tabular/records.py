"""Records and inputs of models in files: ``.csv`` with a header, ``.npz``, ``.npy``.

A table of records is in the order of its own file; :func:`in_one_order` gives all sites' columns
one order.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.artifact.provenance import inputs_of, unnamed
from posterity.errors import ArtifactError, StructureError, UsageError, within
from posterity.families.layers import Layers
from posterity.families.names import order, some, unfit
from posterity.models.tables import check_numbers
from posterity.runtime.files import check_regular
from posterity.tabular.recipe import INTERCEPT
from posterity.tabular.tables.reader import (
    Cells,
    clean,
    is_missing,
    is_number,
    read_cells,
    table_error,
)

TARGET = "y"
"""Default name of the label's column."""
COLUMNS = "columns"
"""Array of an ``.npz`` that names the columns of the others."""
NUMBER = "a finite number (of a text's levels make columns of 0 and 1, of a date a number)"
CONSTANT = "constant in all records: {}; only the prior determines these coefficients"
"""Note on columns that are constant beside a column of ones."""
ARRAYS = (".npz", ".npy")
"""Endings of files of arrays; others are tables."""


class Table(NamedTuple):
    """Records: ``x`` (n, ...), the label ``y`` (n,) if there is one, and the names of the columns
    of ``x``, empty if the file has none. ``unweighted`` is ``x`` before multiplication by weights.
    ``classes`` are the texts that labels 0, 1, ... stand for, empty if the file has numbers.
    """

    x: np.ndarray
    y: np.ndarray | None
    names: tuple[str, ...]
    unweighted: np.ndarray | None = None
    classes: tuple[str, ...] = ()

    @property
    def inputs(self) -> np.ndarray:
        """The inputs (n, ...) without weights."""
        return self.x if self.unweighted is None else self.unweighted

    @property
    def data(self) -> Any:
        """The data in the form that models take: a pair, or ``x`` alone."""
        return self.x if self.y is None else (self.x, self.y)


class Columns(NamedTuple):
    """Data by site, the names of the columns of ``x`` if any, and notes for the user."""

    data: dict[str, Any]
    names: tuple[str, ...]
    notes: tuple[str, ...]


def read_records(path: Path, target: str | None = None, *, texts: bool = False) -> Table:
    """Read records from an ``.npz`` with ``x`` or ``x`` and ``y``, or a ``.csv`` with a header.

    In a table, the column ``target`` is the label (by default ``y``, if present) and all others are
    ``x``; a single column is a vector. An ``.npz`` may name the columns of ``x`` by an array
    ``columns`` of texts. With ``texts`` labels may be texts: their classes are in sorted order.
    """
    if path.suffix == ".npz":
        arrays = _read_arrays(path, "an .npz file with x (and y), or a .csv file of numbers")
        with _refused(path):
            if not {"x"} <= arrays.keys() <= {"x", "y", COLUMNS}:
                raise ValueError(f"arrays {some(sorted(arrays))}, not x (and y)")
            return Table(arrays["x"], arrays.get("y"), _names_of(arrays, "x"))
    label = TARGET if target is None else target
    cells = read_cells(path)
    found = f"no column {target!r} among {some(cells.header)} in '{path}'"
    expected = "the target's name in every table (model.target, --target)"
    StructureError.check((target not in (None, *cells.header), found, expected))
    classes = _classes(cells, label) if texts and label in cells.header else ()
    table = _of_cells(cells, label, classes)
    return table._replace(x=table.x[:, 0]) if len(cells.header) == 1 and table.y is None else table


def _classes(cells: Cells, label: str) -> tuple[str, ...]:
    """Return the texts of a column in sorted order, or none if one of its cells is a number."""
    texts = {clean(text) for text in cells.column(label) if not is_missing(text)}
    return () if any(map(is_number, texts)) else tuple(sorted(texts))


def _of_cells(
    cells: Cells, label: str | None, classes: Sequence[str], scored: bool = True
) -> Table:
    """Return the inputs of a table, and the labels if it has them and they are to be ``scored``:
    numbers, or the places of their texts among ``classes``.
    """
    names = tuple(name for name in cells.header if name != label)
    if label not in cells.header or not scored:
        return Table(cells.numbers(names, expected=NUMBER), None, names)
    if not classes:
        return _split(cells.header, cells.numbers(cells.header, expected=NUMBER), label)
    places = {text: place for place, text in enumerate(classes)}
    texts = cells.column(label)
    for line, text in zip(cells.lines, texts, strict=True):
        if clean(text) not in places:
            found = "no value" if is_missing(text) else repr(text)
            found = f"{found} in line {line}, column {label!r}"
            raise table_error(cells.path, found, f"one of the labels {some(classes)}")
    y = np.array([places[clean(text)] for text in texts], float)
    return Table(cells.numbers(names, expected=NUMBER), y, names, classes=tuple(classes))


def read_inputs(
    path: Path,
    array: str | None = None,
    target: str | None = None,
    *,
    known: str | None = None,
    classes: Sequence[str] = (),
    scored: bool = True,
) -> Table:
    """Read inputs: finite numbers, with at least one record.

    Args:
        path: path of a ``.csv`` with a header, an ``.npy``, or an ``.npz`` of one array, or with
            one ``x`` among others; an array ``columns`` of texts there may name the columns.
        array: name of the array in an ``.npz``.
        target: name of a column of the table that is not an input.
        known: name of such a column that the table need not have.
        classes: texts of that column for the labels 0, 1, ..., if it is not of numbers.
        scored: whether to read that column, whose cells may else be anything.
    """
    if array is not None and path.suffix != ".npz":
        raise UsageError(
            found=f"--array {array} beside '{path}'",
            expected="the name of an array in an .npz file",
        )
    label = known if target is None else clean(target)
    if path.suffix in ARRAYS:
        table = _inputs(path, array)
        names = table.names
    else:
        cells = read_cells(path)
        names = cells.header
        table = _of_cells(cells, label, classes, scored)
    x = table.x
    lacks = target is not None and (label not in names or len(names) == 1)
    others = f"the target {target!r} among them, and others to predict it from"
    unfit = x.dtype.kind not in "biuf" or x.ndim < 2 or not x.size
    found = f"inputs of shape {x.shape} and type {x.dtype} in '{path}'"
    records = "numbers: at least one record, on the first axis, before those of one input"
    fix = "Save x with shape (n, d); for a single column x[:, None]."
    StructureError.check(
        (lacks, f"columns {some(names)} in '{path}'", others), (unfit, found, records, fix)
    )
    check_numbers(x, f"the records of '{path}'")
    return _split(table.names, x, label) if label in table.names else table


def reordered(table: Table, wanted: Sequence[str], place: str, of: str) -> np.ndarray:
    """Return inputs in the ``wanted`` order, if both have names; ones for an intercept."""
    x = table.x
    names = table.names
    if not wanted or not names:
        return x
    if INTERCEPT in wanted and INTERCEPT not in names:
        x = np.column_stack([np.ones(len(x)), x])
        names = (INTERCEPT, *names)
    return x[:, order(names, wanted, place, of)]


def is_student(value: Any) -> bool:
    """Return whether a value is a student: it has a head (its type is known only with JAX)."""
    return hasattr(value, "head")


def columns_of_student(
    value: Any, provenance: Mapping[str, str], file: str = "the file"
) -> tuple[str, ...]:
    """Return the names of a student's input columns; empty if its file has none, and for others."""
    if not (is_student(value) and isinstance(value.network, Layers)):
        return ()
    with within(file):
        return inputs_of(provenance, value.network.inputs)


@contextlib.contextmanager
def _refused(path: Path, expected: str = "arrays as their names say") -> Iterator[None]:
    """Convert errors of reading, such as those of zipfile, zlib and NumPy, to ArtifactErrors."""
    check_regular(path)
    try:
        yield
    except Exception as error:
        raise ArtifactError(
            found=f"data '{path}' that cannot be read ({error})", expected=expected
        ) from error


def _read_arrays(path: Path, expected: str) -> dict[str, np.ndarray]:
    with _refused(path, expected), path.open("rb") as raw:  # which NumPy may leave open
        return dict(np.load(raw, allow_pickle=False))


def _inputs(path: Path, array: str | None) -> Table:
    """Return the inputs in a file of arrays."""
    expected = "a .csv of numbers with a header, an .npy, or an .npz with one array or x"
    if path.suffix == ".npy":
        with _refused(path, expected):
            return Table(np.load(path, allow_pickle=False), None, ())
    arrays = _read_arrays(path, expected)
    with _refused(path, f"{expected}; or name the array by --array"):
        others = [name for name in arrays if name != COLUMNS]
        name = array or (others[0] if len(others) == 1 else "x")
        if name not in arrays:
            raise ValueError(f"arrays {some(sorted(arrays))}, not {name!r}")
        return Table(arrays[name], None, () if name == COLUMNS else _names_of(arrays, name))


def _names_of(arrays: Mapping[str, np.ndarray], name: str) -> tuple[str, ...]:
    """Return the names of an array's columns; a ValueError if they do not fit it."""
    shape = np.shape(arrays[name])
    names = tuple(clean(str(one)) for one in arrays.get(COLUMNS, np.array([])).ravel())
    if names and (shape[1:] != (len(names),) or unfit(names)):
        why = unfit(names) or f"{name} has shape {shape}"
        raise ValueError(f"columns {some(names)}, which do not name those of {name}: {why}")
    return names


def _split(names: tuple[str, ...], values: np.ndarray, label: str) -> Table:
    place = names.index(label)
    others = (*names[:place], *names[place + 1 :])
    return Table(np.delete(values, place, axis=1), values[:, place], others)


def read_sites(
    paths: Mapping[str, Path], target: str | None, intercept: bool, *, texts: bool = False
) -> dict[str, Table]:
    """Return every site's records, with the columns and the order of its own file; labels of texts
    as numbers if there may be ``texts``.
    """
    target = target and clean(target)
    tables = {}
    for site, path in paths.items():
        with within(f"data '{path}' of site {site!r}"):
            table = _with_intercept(read_records(path, target, texts=texts), intercept)
            tables[site] = table
            if table.y is not None:
                label = target or TARGET
                _check_target(label, table.names, "x")
                found = f"only the column {label!r}, which is the target"
                expected = "columns to predict it from, or model.intercept = true"
                StructureError.check((np.shape(table.x)[1:] == (0,), found, expected))
    return tables


def _with_intercept(table: Table, intercept: bool) -> Table:
    """Add a column of ones before the others, if requested and there are labels."""
    x = table.x
    names = table.names
    if intercept and INTERCEPT in names:
        raise StructureError(
            found=f"a column {INTERCEPT!r}, and model.intercept = true", expected="one of them"
        )
    if not intercept or table.y is None or np.ndim(x) != 2:  # the model refuses it
        return table
    names = (INTERCEPT, *names) if names or not x.shape[1] else ()
    return Table(np.column_stack([np.ones(len(x)), x]), table.y, names)


def in_one_order(
    tables: Mapping[str, Table], wanted: Sequence[str], target: str | None, regression: bool
) -> Columns:
    """Return all data in the ``wanted`` order, or else that of the first site with names; with the
    notes of :func:`oddities` if they are those of a ``regression``.
    """
    named = {site: table for site, table in tables.items() if table.names}
    first = next(iter(named), "")
    of = "the prior or ledger" if wanted else f"site {first!r}"
    names = tuple(wanted) or (tables[first].names if named else ())
    label = ()
    if any(table.y is not None for table in named.values()):
        label = (clean(target) if target else TARGET,)
        _check_target(label[0], names, of)
    ordered = dict(tables)
    for site, table in named.items():
        mine = (*table.names, *(label if table.y is not None else ()))
        places = order(mine, (*names, *label), f"site {site!r}", of)[: len(names)]
        if table.x.ndim > 1:
            inputs = None if table.unweighted is None else table.unweighted[..., places]
            ordered[site] = table._replace(x=table.x[..., places], unweighted=inputs)
    notes = unnamed({site: table.names for site, table in tables.items()}, names)
    if regression:
        notes += oddities([table.inputs for table in ordered.values()], names)
    return Columns({site: table.data for site, table in ordered.items()}, names, tuple(notes))


def oddities(inputs: Sequence[np.ndarray], names: Sequence[str]) -> Iterator[str]:
    """Yield notes on constant columns of a regression's inputs, one array (n, d) per site, of which
    the first that is not 0 is an intercept.
    """
    filled = [x for x in inputs if len(x) and x.ndim == 2 and x.dtype.kind in "biuf"]
    if sum(map(len, filled)) < 2 or len({x.shape[1] for x in filled}) > 1:
        return
    first = filled[0][0]
    called = names if len(names) == len(first) else range(len(first))
    same = np.all([(x == first).all(0) for x in filled], 0)
    level = np.flatnonzero(same & (first != 0))
    if not len(level):
        yield "no intercept: pass --intercept (model.intercept = true) unless that is what you want"
    others = np.setdiff1d(np.flatnonzero(same), level[:1])
    if len(others):
        yield CONSTANT.format(some([str(called[k]) for k in others]))


def _check_target(label: str, names: Sequence[str], of: str) -> None:
    found = f"the target {label!r} among the columns of {of}"
    StructureError.check((label in names, found, "a target that is not also an input"))
