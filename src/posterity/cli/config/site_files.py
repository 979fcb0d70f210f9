"""Files of a site's records: ``.npz``, and ``.csv`` with a header."""

import csv
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from posterity.cli.files import check_regular
from posterity.errors import ArtifactError


def read_site(path: Path) -> Any:
    """A site's records: an ``.npz`` with ``x`` or ``x`` and ``y``, or a ``.csv`` with a header.

    Of a table, the column ``y`` is the label and all others, in their order, are ``x``; one
    column alone is a vector.

    Raises:
        ArtifactError: if the file cannot be read or holds something else.
    """
    check_regular(path)
    try:
        columns = _npz(path) if path.suffix == ".npz" else _csv(path)
    except Exception as error:  # zipfile, zlib, csv and NumPy each raise their own
        raise ArtifactError(
            found=f"data {str(path)!r} that cannot be read ({error})",
            expected="an .npz file with x (and y), or a .csv file of numbers with a header",
            fix="Mend the path or the file.",
        ) from error
    if not {"x"} <= set(columns) <= {"x", "y"}:
        raise ArtifactError(
            found=f"arrays {sorted(columns)} in {str(path)!r}",
            expected="x, or x and y",
            fix="Save them by these names.",
        )
    return (columns["x"], columns["y"]) if "y" in columns else columns["x"]


def _npz(path: Path) -> dict[str, np.ndarray]:
    with path.open("rb") as raw:
        if not zipfile.is_zipfile(raw):
            raise ValueError("not a whole archive of numpy.savez")
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _csv(path: Path) -> dict[str, np.ndarray]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = [name.strip() for name in next(csv.reader([file.readline()], strict=True), [])]
        rows = [row for row in file if row.strip()]
    _check_header(names)
    values = np.loadtxt(rows, delimiter=",", ndmin=2, comments=None) if rows else np.zeros((0, 0))
    if rows and values.shape[1] != len(names):
        raise ValueError(f"{len(names)} names above {values.shape[1]} columns")
    values = values.reshape(-1, len(names))
    x = values[:, [index for index, name in enumerate(names) if name != "y"]]
    columns = {"x": x[:, 0] if x.shape[1] == 1 and "y" not in names else x}
    return columns | ({"y": values[:, names.index("y")]} if "y" in names else {})


def _check_header(names: list[str]) -> None:
    """A first record taken for a header would be lost without a word."""
    if not names or not all(names) or len(set(names)) < len(names) or any(map(_is_number, names)):
        raise ValueError(f"the first line {names}, which is no header of distinct names")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
