"""Files of a site's records: ``.npz``, and ``.csv`` with a header."""

import csv
import unicodedata
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.cli.files import check_regular
from posterity.errors import ArtifactError, StructureError
from posterity.families.names import some, unfit

TARGET = "y"
"""The column that is the label, unless a configuration names another."""
ARRAYS = {"x", "y", "columns"}
"""Of an ``.npz``."""


class Table(NamedTuple):
    """A site's records: ``x``, the label ``y`` if there is one, and the names of the columns of
    ``x``, none where the file has none.
    """

    x: np.ndarray
    y: np.ndarray | None
    names: tuple[str, ...]

    @property
    def data(self) -> Any:
        """As models take it: a pair, or ``x`` alone."""
        return self.x if self.y is None else (self.x, self.y)


def read_site(path: Path, target: str | None = None) -> Table:
    """A site's records: an ``.npz`` with ``x`` or ``x`` and ``y``, or a ``.csv`` with a header.

    Of a table, the column ``target`` is the label (by default ``y``, if it is there) and all
    others are ``x``; one column alone is a vector. An ``.npz`` may name the columns of ``x`` by
    an array ``columns`` of texts.

    Raises:
        ArtifactError: if the file cannot be read or holds something else.
        StructureError: if there is no such ``target``.
    """
    check_regular(path)
    try:
        return _npz(path) if path.suffix == ".npz" else _labelled(*read_csv(path), target)
    except StructureError as error:
        raise error.at(f"data {str(path)!r}") from error
    except Exception as error:  # zipfile, zlib, csv and NumPy each raise their own
        raise ArtifactError(
            found=f"data {str(path)!r} that cannot be read ({error})",
            expected="an .npz file with x (and y), or a .csv file of numbers with a header",
            fix="Mend the path or the file.",
        ) from error


def has_header(path: Path) -> bool:
    """Whether the first line of a table is none of numbers, or there is no table to be read."""
    if path.suffix == ".npz" or not path.is_file():
        return True
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        return not any(map(_is_number, file.readline().split(",")))


def _npz(path: Path) -> Table:
    with path.open("rb") as raw:
        if not zipfile.is_zipfile(raw):
            raise ValueError("not a whole archive of numpy.savez")
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    if not {"x"} <= set(arrays) <= ARRAYS:
        raise ValueError(f"arrays {some(sorted(arrays))}, where there should be x, or x and y")
    names = tuple(clean(str(name)) for name in arrays.get("columns", np.array([])).ravel())
    if names and (np.shape(arrays["x"])[1:] != (len(names),) or unfit(names)):
        why = unfit(names) or f"x has shape {np.shape(arrays['x'])}"
        raise ValueError(f"columns {some(names)}, which do not name those of x: {why}")
    return Table(arrays["x"], arrays.get("y"), names)


def _labelled(names: tuple[str, ...], values: np.ndarray, target: str | None) -> Table:
    label = TARGET if target is None else target
    if label not in names:
        if target is None:
            return Table(values[:, 0] if len(names) == 1 else values, None, names)
        raise StructureError(
            found=f"no column {target!r} among {some(names)}",
            expected="the target, a column of every table",
            fix="Name it in model.target as the tables do.",
        )
    place = names.index(label)
    others = (*names[:place], *names[place + 1 :])
    return Table(np.delete(values, place, axis=1), values[:, place], others)


# --- tables ------------------------------------------------------------------------------------


def read_csv(path: Path) -> tuple[tuple[str, ...], np.ndarray]:
    """The names in the header, and the numbers below them; a ValueError if there are none."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = tuple(map(clean, next(csv.reader([file.readline()], strict=True), [])))
        lines = list(file)
    _check_header(names)
    rows = [line for line in lines if line.strip()]
    if not rows:
        return names, np.zeros((0, len(names)))
    try:
        values = np.loadtxt(rows, delimiter=",", ndmin=2, comments=None, quotechar='"')
    except ValueError as error:
        raise ValueError(_wrong_cell(names, lines) or error) from error
    if values.shape[1] != len(names):
        raise ValueError(_wrong_cell(names, lines))
    return names, values


def clean(name: str) -> str:
    """Without blanks about it; one accented letter is one character, however it was typed."""
    return unicodedata.normalize("NFC", name.strip())


def _check_header(names: Sequence[str]) -> None:
    """A first record taken for a header would be lost without a word."""
    why = unfit(names) or ("" if names else "it is empty")
    if any(map(_is_number, names)):
        why = "numbers are no names"
    elif len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        why = "separate columns by commas, and write decimals with a point"
    if why:
        raise ValueError(f"the first line {some(names)}, which is no header of names: {why}")


def _wrong_cell(names: Sequence[str], lines: Sequence[str]) -> str:
    """Where the first cell stands that is no number, or the first line of another length."""
    for number, line in enumerate(lines, start=2):
        cells = next(csv.reader([line]), []) if line.strip() else []
        if cells and len(cells) != len(names):
            return f"{len(names)} names above {len(cells)} columns in line {number}"
        for name, cell in zip(names, cells, strict=False):
            if not _is_number(cell):
                told = repr(cell[:50]) if cell.strip() else "nothing"
                return f"{told} in line {number} of column {name!r}"
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # which Python allows in numbers, and tables of numbers do not
