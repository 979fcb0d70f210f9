"""The one loader of the data sets.

A data set comes from the first of: the folder that the environment variable ``POSTERITY_DATA``
names; ``shared/data`` beside the repository; its publisher's site, whose files are then kept in
``.cache/data``. To add one, write a function like `heart_disease` on top of `data_folder`,
`read_archive` and `fetch`.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from posterity.artifact import write_atomically
from posterity.errors import ArtifactError, MissingExtraError, UsageError

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Parsed = TypeVar("Parsed")

FOLDER_VARIABLE = "POSTERITY_DATA"
REPOSITORY = Path(__file__).resolve().parents[1]
BESIDE = REPOSITORY.parent / "shared" / "data"
CACHE = REPOSITORY / ".cache" / "data"
SUMS = "SHA256SUMS"
OTHERWISE = f"Or set {FOLDER_VARIABLE} to a folder that holds the data."


# --- from a folder ---------------------------------------------------------------------------


def data_folder() -> Path | None:
    """The folder to read from, or None if the data must be fetched.

    Raises:
        UsageError: if ``POSTERITY_DATA`` names no folder.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        return BESIDE if BESIDE.is_dir() else None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise UsageError(
            found=f"{FOLDER_VARIABLE}={named}",
            expected="the path of a folder",
            fix=f"Correct it, or unset {FOLDER_VARIABLE} to have the data fetched.",
        )
    return folder


def read_archive(folder: Path, name: str) -> dict[str, NDArray]:
    """The arrays of ``folder/name`` (.npz), whose sum must stand in ``folder/SHA256SUMS``.

    Raises:
        ArtifactError: if either file is missing, or the sum is another one.
    """
    content = _read(folder / name)
    expected = _sums(folder).get(name)
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ArtifactError(
            found=f"SHA-256 {found} of {folder / name}",
            expected=f"{expected or 'a line for it'} in {SUMS} beside it",
            fix="The file was changed or cut off: copy it there again.",
        )
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(
            found=f"no readable file {path} ({error.strerror})",
            expected=f"{path.name} in the data folder",
            fix=f"Copy it there, or point {FOLDER_VARIABLE} at a folder that has it.",
        ) from error


def _sums(folder: Path) -> dict[str, str]:
    lines = _read(folder / SUMS).decode().splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line.strip())
    return {name.lstrip("*"): found for found, name in pairs}


# --- from the publisher ----------------------------------------------------------------------


def download(url: str) -> bytes:
    """What ``url`` serves."""
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read()


def fetch(url: str, name: str, parse: Callable[[bytes], Parsed]) -> Parsed:
    """``parse`` of what ``url`` serves; kept as ``name`` in the cache once it was parsed.

    Raises:
        ArtifactError: if the download fails, or the cache cannot be written; nothing is kept.
    """
    kept = CACHE / name
    if kept.is_file():
        return parse(_read(kept))
    try:
        content = download(url)
        parsed = parse(content)
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, lambda file: file.write(content))
    except (OSError, http.client.HTTPException) as error:
        raise ArtifactError(
            found=f"a failed download of {url} ({error})",
            expected=f"a file to keep as {kept}",
            fix=f"Try again when the site answers. {OTHERWISE}",
        ) from error
    return parsed


# --- heart disease by hospital ---------------------------------------------------------------

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
# (center, name in the addresses of UCI, patients), in the order of ``HeartDisease.center``
HOSPITALS = (
    ("cleveland", "cleveland", 303),
    ("hungarian", "hungarian", 294),
    ("switzerland", "switzerland", 123),
    ("va_long_beach", "va", 200),
)
FEATURES = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)
# Of the table as published (920 rows of 13 features and y, NaN as -9), little-endian float64.
HEART_SHA256 = "2ec06a3270251ea921f5d93e0d73dc59bccbb822495d88e33b37342a3b728f60"


@dataclass(frozen=True)
class HeartDisease:
    """Patients of four hospitals, and whether an angiogram showed heart disease.

    Attributes:
        X: (920, 13) features in the units of the source (years, mm Hg, mg/dl, beats a minute,
            mm of ST depression, codes); NaN where missing.
        y: (920,) 1 where any vessel is narrowed by half or more (``num`` > 0), else 0.
        center: (920,) hospital of each patient, an index into ``center_names``.
        center_names: 4 names.
        feature_names: 13 names.
        flamby_set: (920,) 0 train, 1 test, -1 left out by FLamby (ogierduterrail2022).
    """

    X: Array
    y: Integers
    center: Integers
    center_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    flamby_set: Integers


def heart_disease() -> HeartDisease:
    """The UCI heart-disease data (Janosi, Steinbrunn, Pfisterer, Detrano; CC BY 4.0).

    A cholesterol of 0 (all 123 Swiss rows, 49 of Long Beach) and the one blood pressure of 0
    stand for "not measured": they become NaN here. Two patients (one Hungarian, one of Long
    Beach) occur twice, as published.

    ``flamby_set`` is read from the archive; where the data are fetched it is computed by
    FLamby's rule (see `flamby_set`), which gives the same numbers.

    Raises:
        UsageError: if ``POSTERITY_DATA`` names no folder.
        ArtifactError: if a file is missing, altered, or cannot be downloaded.
        MissingExtraError: where data are fetched and scikit-learn is not installed.
    """
    folder = data_folder()
    if folder is None:
        table, center = fetched_heart_disease()
        X, y = table[:, :-1], (table[:, -1] > 0).astype(np.int64)
        sets = flamby_set(X, y, center)
    else:
        arrays = read_archive(folder, "heart_disease.npz")
        # stored in single precision; the source has at most two decimals
        X = np.round(arrays["X"].astype(np.float64), 4)
        y, center, sets = (arrays[k].astype(np.int64) for k in ("y", "center", "flamby_set"))
    return HeartDisease(
        X=_without_zeros(X),
        y=y,
        center=center,
        center_names=tuple(name for name, _, _ in HOSPITALS),
        feature_names=FEATURES,
        flamby_set=sets,
    )


def flamby_set(X: Array, y: Integers, center: Integers) -> Integers:
    """FLamby's split (ogierduterrail2022): (920,) 0 train, 1 test, -1 left out.

    ``X`` as published, zeros included. Without slope, ca and thal, complete cases only; by
    hospital 66 % train and 34 % test, stratified by label where each has more than two
    patients (Switzerland has one healthy complete case: not stratified), ``random_state`` 43.
    """
    try:
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise MissingExtraError.of("scikit-learn", "sklearn") from error
    complete = ~np.isnan(X[:, :10]).any(axis=1)
    sets = np.full(len(y), -1, np.int64)
    for c in range(len(HOSPITALS)):
        rows = np.flatnonzero(complete & (center == c))
        labels = y[rows] if np.bincount(y[rows], minlength=2).min() > 2 else None
        train, test = train_test_split(rows, test_size=0.34, random_state=43, stratify=labels)
        sets[train], sets[test] = 0, 1
    return sets


def _without_zeros(X: Array) -> Array:
    X = X.copy()
    for name in ("chol", "trestbps"):
        column = X[:, FEATURES.index(name)]
        column[column == 0] = np.nan
    return X


def fetched_heart_disease() -> tuple[Array, Integers]:
    """The publisher's table, (920, 14) with ``num`` last, and hospitals (920,)."""
    tables = []
    for _, name, patients in HOSPITALS:
        file = f"processed.{name}.data"
        parse = lambda content, n=patients, file=file: _parse_hospital(content, n, file)
        tables.append(fetch(f"{UCI}/{file}", f"heart-disease/{file}", parse))
    table = np.concatenate(tables)
    if heart_digest(table[:, :-1], table[:, -1] > 0) != HEART_SHA256:
        raise ArtifactError(
            found=f"other heart-disease data at {UCI} than the experiments were made with",
            expected=f"a table of SHA-256 {HEART_SHA256}",
            fix=f"Delete {CACHE / 'heart-disease'} and try again. {OTHERWISE}",
        )
    return table, np.repeat(np.arange(len(tables)), [len(t) for t in tables])


def _parse_hospital(content: bytes, patients: int, file: str) -> Array:
    """(patients, 14): 13 features and ``num``, "?" as NaN."""
    try:
        lines = content.decode("ascii").split()
        rows = [[np.nan if v == "?" else float(v) for v in line.split(",")] for line in lines]
        return np.array(rows, np.float64).reshape(patients, len(FEATURES) + 1)
    except ValueError as error:
        raise ArtifactError(
            found=f"something else than the heart-disease table {file} ({error})",
            expected=f"{patients} lines of {len(FEATURES) + 1} numbers",
            fix=f"Delete {CACHE / 'heart-disease'} if it is there, and try again. {OTHERWISE}",
        ) from error


def heart_digest(X: Array, y: NDArray) -> str:
    """SHA-256 of the table as published, whatever it was read from."""
    table = np.column_stack([np.where(np.isnan(X), -9.0, X), y]) + 0.0  # no negative zeros
    return hashlib.sha256(table.astype("<f8").tobytes()).hexdigest()
