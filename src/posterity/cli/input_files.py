"""Files of inputs: ``.csv`` with a header, ``.npy``, and ``.npz`` with one array, or ``x``."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posterity.cli.config.columns import INTERCEPT
from posterity.cli.config.site_files import clean, has_header, read_csv
from posterity.cli.files import check_regular
from posterity.errors import ArtifactError, ParameterError, StructureError, UsageError
from posterity.families.names import order, some, unfit

X, COLUMNS = "x", "columns"
"""Arrays of an ``.npz`` that are known by their name."""


class Inputs(NamedTuple):
    """Inputs ``x`` (n, ...) and the names of their columns, none where the file has none."""

    x: np.ndarray
    names: tuple[str, ...]


def read_inputs(path: Path, array: str | None = None) -> Inputs:
    """Inputs of a network, without labels: finite numbers, a record at least.

    Args:
        path: a ``.csv`` with a header, an ``.npy``, or an ``.npz`` of one array, or with one ``x``
            among others; there an array ``columns`` of texts may name the columns.
        array: the name of the array in an ``.npz``.

    Raises:
        ArtifactError: if the file cannot be read or holds something else.
        StructureError: for what has no axis of records, or no records.
        ParameterError: for NaN or infinity.
        UsageError: for an ``array`` of what is no ``.npz``.
    """
    check_regular(path)
    if array is not None and path.suffix != ".npz":
        raise UsageError(
            found=f"--array {array} beside {str(path)!r}",
            expected="the name of an array in an .npz file",
            fix="Leave --array out.",
        )
    try:
        found = _read(path, array)
    except Exception as error:  # zipfile, zlib, csv and NumPy each raise their own
        raise ArtifactError(
            found=f"inputs {str(path)!r} that cannot be read ({error})",
            expected="a .csv of numbers with a header, an .npy, or an .npz with one array or x",
            fix="Mend the path or the file, or name the array by --array.",
        ) from error
    _check(path, found.x)
    return found


def apart(found: Inputs, target: str | None, path: Path) -> Inputs:
    """The inputs without the column that is the ``target``, if one is named.

    Raises:
        StructureError: if there is no such column, or nothing beside it.
    """
    if target is None:
        return found
    name = clean(target)
    if name not in found.names or len(found.names) == 1:
        raise StructureError(
            found=f"columns {some(found.names)} in {str(path)!r}",
            expected=f"the target {target!r} among them, and others to predict it from",
            fix="Name it by --target as the table does, or leave --target out.",
        )
    place = found.names.index(name)
    others = (*found.names[:place], *found.names[place + 1 :])
    return Inputs(np.delete(found.x, place, axis=1), others)


def in_order(found: Inputs, wanted: Sequence[str], place: str, of: str) -> np.ndarray:
    """The inputs with their columns in the order that is ``wanted``, if both have names.

    A column of ones is added where the ``intercept`` alone is missing.

    Raises:
        StructureError: if they are other columns; it says which are missing and which unknown.
    """
    if not wanted or not found.names:
        return found.x
    x, names = found
    if INTERCEPT in wanted and INTERCEPT not in names:
        x, names = np.column_stack([np.ones(len(x)), x]), (INTERCEPT, *names)
    return x[:, order(names, wanted, place, of)]


def _read(path: Path, array: str | None) -> Inputs:
    if path.suffix == ".npz":
        return _npz(path, array)
    if path.suffix == ".npy":
        return Inputs(np.load(path, allow_pickle=False), ())
    if not has_header(path):
        raise ValueError("numbers in the first line, which is to name the columns")
    names, values = read_csv(path)
    return Inputs(values, names)


def _npz(path: Path, array: str | None) -> Inputs:
    with path.open("rb") as raw:
        if not zipfile.is_zipfile(raw):
            raise ValueError("not a whole archive of numpy.savez")
    with np.load(path, allow_pickle=False) as file:
        held = [name for name in file.files if name != COLUMNS]
        only = held[0] if len(held) == 1 else X
        name = only if array is None else array
        if name not in file.files:
            raise ValueError(f"arrays {some(sorted(file.files))}, of which none is {name!r}")
        x = file[name]
        names = file[COLUMNS] if COLUMNS in file.files and name != COLUMNS else np.array([])
    names = tuple(clean(str(one)) for one in names.ravel())
    if names and (x.shape[1:] != (len(names),) or unfit(names)):
        why = unfit(names) or f"{name} has shape {x.shape}"
        raise ValueError(f"columns {some(names)}, which do not name those of {name}: {why}")
    return Inputs(x, names)


def _check(path: Path, x: np.ndarray) -> None:
    if x.dtype.kind not in "biuf" or x.ndim < 2 or not x.size:
        raise StructureError(
            found=f"inputs of shape {x.shape} and type {x.dtype} in {str(path)!r}",
            expected="numbers: an axis of records, one at least, before those of one input",
            fix="Save x of shape (n, d), x[:, None] for a single column.",
        )
    if not np.isfinite(x).all():
        row = int(np.argmin(np.isfinite(x).reshape(len(x), -1).all(1)))
        raise ParameterError(
            found=f"NaN or infinity in record {row} (from 0) of {str(path)!r}",
            expected="finite numbers",
            fix="Impute or drop missing values.",
        )
