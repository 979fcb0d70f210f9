"""The one loader of the data sets.

A file comes from the first of: the folder that the environment variable ``POSTERITY_DATA`` names
(empty: no folder at all); ``shared/data`` beside the repository; the repository, which keeps the
heart-disease table. It must have the sum that ``SHA256SUMS`` beside it says. To add a data set,
write a function like `heart_disease` on top of `read`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posterity.errors import ArtifactError, UsageError

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Images = NDArray[np.float32]

FOLDER_VARIABLE = "POSTERITY_DATA"
REPOSITORY = Path(__file__).resolve().parents[1]
BESIDE = REPOSITORY.parent / "shared" / "data"
KEPT = REPOSITORY / "src" / "posterity" / "cli" / "data"
SUMS = "SHA256SUMS"


# --- files -----------------------------------------------------------------------------------


def read(name: str) -> bytes:
    """The content of the file ``name``, whose sum must stand in ``SHA256SUMS`` beside it.

    Raises:
        UsageError: see `folder_of`.
        ArtifactError: if either file is missing, or the sum is another one.
    """
    folder = folder_of(name)
    content = _read(folder / name)
    expected = _sums(folder).get(name)
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ArtifactError(
            found=f"SHA-256 {found} of {folder / name}",
            expected=f"{expected or 'a line for it'} in {SUMS} beside it",
            fix="The file was changed or cut off: copy it there again.",
        )
    return content


def folder_of(name: str) -> Path:
    """Where to read the file ``name`` from.

    Raises:
        UsageError: if ``POSTERITY_DATA`` names no folder, or if there is none and the
            repository does not keep the file.
    """
    folder = data_folder()
    if folder is None and (KEPT / name).is_file():
        return KEPT
    if folder is None:
        raise UsageError(
            found=f"no folder with {name}",
            expected=f"{FOLDER_VARIABLE}, or {BESIDE}",
            fix=f"Set {FOLDER_VARIABLE} to a folder that holds {name} and {SUMS}.",
        )
    return folder


def data_folder() -> Path | None:
    """The folder outside the repository, or None if there is none.

    Raises:
        UsageError: if ``POSTERITY_DATA`` names no folder.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named is None:
        return BESIDE if BESIDE.is_dir() else None
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise UsageError(
            found=f"{FOLDER_VARIABLE}={named}",
            expected="the path of a folder",
            fix="Correct it, or leave it empty to use what the repository keeps.",
        )
    return folder


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


# --- heart disease by hospital ---------------------------------------------------------------

HEART = "heart_disease.csv.gz"
# In the order of ``HeartDisease.center``.
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va_long_beach")
FEATURES = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)


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

    Raises:
        UsageError: if ``POSTERITY_DATA`` names no folder.
        ArtifactError: if a file is missing or altered.
    """
    table = published_heart_disease()
    return HeartDisease(
        X=_without_zeros(np.column_stack([table[name] for name in FEATURES])),
        y=(table["num"] > 0).astype(np.int64),
        center=table["center"].astype(np.int64),
        center_names=HOSPITALS,
        feature_names=FEATURES,
        flamby_set=table["flamby_set"].astype(np.int64),
    )


def published_heart_disease() -> NDArray[np.void]:
    """(920,) patients with named columns, zeros as published; NaN where a cell is empty."""
    lines = gzip.decompress(read(HEART)).decode().splitlines()
    return np.genfromtxt(lines, delimiter=",", names=True)


def _without_zeros(X: Array) -> Array:
    X = X.copy()
    for name in ("chol", "trestbps"):
        column = X[:, FEATURES.index(name)]
        column[column == 0] = np.nan
    return X


# --- newsgroups --------------------------------------------------------------------------------

NEWSGROUPS = "20news_bow.npz"
MOST_COUNTED = 30
"""Times that a word counts in one document: a dozen encoded binaries repeat one up to 11,151 times,
and would have a topic of their own."""


@dataclass(frozen=True)
class Newsgroups:
    """Messages of twenty newsgroups as bags of words.

    Attributes:
        counts: (18846, 12497) how often each stemmed word occurs in each message, at most
            ``MOST_COUNTED`` times; sparse, float64.
        y: (18846,) group of each message, an index into ``group_names``.
        is_train: (18846,) whether a message came before the date that parts the published sets.
        words: 12,497 stems.
        group_names: 20 names.
    """

    counts: Any
    y: Integers
    is_train: NDArray[np.bool_]
    words: tuple[str, ...]
    group_names: tuple[str, ...]


def newsgroups() -> Newsgroups:
    """20 Newsgroups by date, stemmed, without stop words, words in at least 12 messages.

    The vocabulary has the size of KL-fusion's (claici2020), but how that was made is not known.
    Headers are in the text.

    Raises:
        UsageError: if ``POSTERITY_DATA`` names no folder, or if there is none.
        ArtifactError: if a file is missing or altered.
    """
    from scipy.sparse import csr_array

    with np.load(io.BytesIO(read(NEWSGROUPS)), allow_pickle=False) as table:
        counts = np.minimum(table["data"], MOST_COUNTED).astype(np.float64)
        shape = tuple(table["shape"].tolist())
        rows = (counts, table["indices"].astype(np.int32), table["indptr"])
        return Newsgroups(
            counts=csr_array(rows, shape=shape),
            y=table["y"].astype(np.int64),
            is_train=table["is_train"].astype(bool),
            words=tuple(table["vocab"].tolist()),
            group_names=tuple(table["group_names"].tolist()),
        )


# --- images of digits ------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits:
    """Grey images of digits, white on black, intensities from 0 to 1.

    Attributes:
        x_train: (n, 28, 28).
        y_train: (n,) the digit.
        x_test: (m, 28, 28).
        y_test: (m,).
    """

    x_train: Images
    y_train: Integers
    x_test: Images
    y_test: Integers


def mnist() -> Digits:
    """MNIST (Y. LeCun, C. Cortes, C. Burges): 60,000 and 10,000 images, in the official order.

    Raises:
        UsageError: if ``POSTERITY_DATA`` names no folder, or if there is none.
        ArtifactError: if a file is missing or altered.
    """
    return _digits("mnist.npz")


def fashion_mnist() -> Digits:
    """Fashion-MNIST (H. Xiao, K. Rasul, R. Vollgraf), as :func:`mnist`; labels are of clothes.

    Raises:
        UsageError, ArtifactError: as :func:`mnist`.
    """
    return _digits("fashion_mnist.npz")


def _digits(name: str) -> Digits:
    x_train, y_train, x_test, y_test = _arrays(name, "x_train", "y_train", "x_test", "y_test")
    return Digits(
        intensities(x_train), y_train.astype(np.int64), intensities(x_test), y_test.astype(np.int64)
    )


@dataclass(frozen=True)
class FontDigits:
    """The ten digits of computer fonts, drawn and placed as MNIST's handwritten ones are.

    Attributes:
        x: (n, 28, 28), intensities from 0 to 1.
        y: (n,) the digit.
        font: (n,) which font.
    """

    x: Images
    y: Integers
    font: Integers


def font_digits(*, one_per_family: bool = True, centred: bool = True) -> FontDigits:
    """Digits of 1,606 fonts packaged by Debian.

    Args:
        one_per_family: one font of each of 727 families (7,270 images): others of a family are
            near copies. Else all 16,060 images.
        centred: moved as MNIST is. The stored centres of mass lie around (13.5, 13.5), the middle
            of pixels 0 to 27, MNIST's around (14, 14); each image moves by a whole pixel or not at
            all in each direction, to less than one half from there, which blurs nothing.

    Raises:
        UsageError: if ``POSTERITY_DATA`` names no folder, or if there is none.
        ArtifactError: if a file is missing or altered.
    """
    names = ("X", "y", "font_id", "font_one_per_family")
    x, y, font, first = _arrays("fonts_digits.npz", *names)
    keep = first[font] if one_per_family else np.ones(len(y), bool)
    x = intensities(x[keep])
    return FontDigits(
        recentred(x) if centred else x, y[keep].astype(np.int64), font[keep].astype(np.int64)
    )


def intensities(images: NDArray[np.uint8]) -> Images:
    """Bytes as numbers from 0 to 1."""
    return images.astype(np.float32) / np.float32(255)


def centres_of_mass(images: NDArray[Any]) -> Array:
    """(n, 2) row and column of the centre of mass of each image, in pixels from the first."""
    images = images.astype(np.float64)
    total = images.sum((1, 2))
    return np.stack(
        [images.sum(3 - axis) @ np.arange(images.shape[axis]) / total for axis in (1, 2)], 1
    )


def recentred(images: Images) -> Images:
    """Each image moved by whole pixels, to where its centre of mass is nearest to (14, 14)."""
    moves = np.rint(14 - centres_of_mass(images)).astype(int)
    return np.stack([_moved(image, *move) for image, move in zip(images, moves, strict=True)])


def _moved(image: Images, down: int, right: int) -> Images:
    padded = np.pad(image, [(max(down, 0), max(-down, 0)), (max(right, 0), max(-right, 0))])
    rows, columns = image.shape
    return padded[max(-down, 0) :, max(-right, 0) :][:rows, :columns]


def _arrays(name: str, *keys: str) -> list[NDArray[Any]]:
    with np.load(io.BytesIO(read(name)), allow_pickle=False) as arrays:
        return [arrays[key] for key in keys]


# --- motion capture --------------------------------------------------------------------------

MOCAP = "mocap6.npz"


@dataclass(frozen=True)
class MotionCapture:
    """Six sequences of two people who exercise, and which action a human saw in each frame.

    Attributes:
        X: (2058, 12) joint angles in degrees, and the height of the root; ten frames a second,
            means removed by sequence, not scaled (standard deviations from 1.7 to 30).
        labels: (2058,) actions 0 to 11.
        bounds: (7,) the first frame of each sequence, and the end. Sequences 0 to 2 are of one
            person (CMU subject 13), 3 to 5 of another (14).
        names: of the 6 sequences.
        action_names: of the 12 actions.
    """

    X: Array
    labels: Integers
    bounds: Integers
    names: tuple[str, ...]
    action_names: tuple[str, ...]

    @property
    def sequences(self) -> list[Array]:
        """Each by itself."""
        return np.split(self.X, self.bounds[1:-1])


def mocap6() -> MotionCapture:
    """Six sequences of the CMU motion capture database, as labelled by fox2014.

    Raises:
        UsageError: if there is no data folder.
        ArtifactError: if the file is missing or altered.
    """
    with np.load(io.BytesIO(read(MOCAP)), allow_pickle=False) as arrays:
        return MotionCapture(
            X=arrays["X"].astype(np.float64),
            labels=arrays["z"].astype(np.int64),
            bounds=arrays["doc_range"].astype(np.int64),
            names=tuple(map(str, arrays["seq_names"])),
            action_names=tuple(map(str, arrays["action_names"])),
        )


# --- regression ------------------------------------------------------------------------------

UCI = "uci_regression.npz"
UCI_NAMES = (
    *("boston", "concrete", "energy", "kin8nm", "naval"),
    *("power", "protein", "wine", "yacht"),
)


@dataclass(frozen=True)
class Regression:
    """A table of numbers, one of them to be predicted, and which rows are kept for tests.

    Attributes:
        name: of the table.
        X: (n, d) features in the units of the source; columns may be constant (naval: two are).
        y: (n,) what is to be predicted, in the units of the source.
        is_test: (splits, n) the rows of each split that are kept for tests, a tenth of them.
    """

    name: str
    X: Array
    y: Array
    is_test: NDArray[np.bool_]


def uci_regression(name: str) -> Regression:
    """One of nine UCI tables under the protocol of hernandezlobato2015: 20 splits, protein 5.

    Rows occur twice (protein 1,711, wine 240, power 41, concrete 25), so training and test rows
    overlap a little, as in the papers. Of wine the red ones only; of energy the heating load. In
    Boston the column that is made of the share of black residents is contested, for good reasons:
    the table serves for comparison with what was published, and nothing else.

    Raises:
        UsageError: for another name; if ``POSTERITY_DATA`` names no folder, or if there is none.
        ArtifactError: if a file is missing or altered.
    """
    if name not in UCI_NAMES:
        raise UsageError(
            found=f"name={name!r}",
            expected=f"one of {', '.join(UCI_NAMES)}",
            fix="Correct the name.",
        )
    X, y, packed = _arrays(UCI, f"{name}_X", f"{name}_y", f"{name}_test_mask")
    is_test = np.unpackbits(packed, axis=1, count=len(y)).astype(bool)
    return Regression(name, X.astype(np.float64), y.astype(np.float64), is_test)


def random_splits(count: int, splits: int) -> NDArray[np.bool_]:
    """(splits, count) test rows as hernandezlobato2015 drew them: the stored ones, from seed 1."""
    rng = np.random.RandomState(1)
    found = np.ones((splits, count), bool)
    for row in found:
        order = rng.choice(range(count), count, replace=False)
        row[order[: round(count * 0.9)]] = False
    return found
