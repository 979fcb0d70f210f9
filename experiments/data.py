"""The one loader of the data sets.

A file comes from the first of: the folder that the environment variable ``POSTERITY_DATA`` names
(empty: no folder at all); ``shared/data`` beside the repository; the repository, which keeps the
heart-disease table. It must have the sum that ``SHA256SUMS`` beside it says. Each function raises a
UsageError if ``POSTERITY_DATA`` names no folder, or if there is none and the repository does not
keep the file; an ArtifactError if a file is missing or altered.
"""

import gzip
import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posterity.errors import ArtifactError, UsageError

Array = np.ndarray
Integers = np.ndarray
Images = np.ndarray

FOLDER_VARIABLE = "POSTERITY_DATA"
REPOSITORY = Path(__file__).resolve().parents[1]
BESIDE = REPOSITORY.parent / "shared" / "data"
KEPT = REPOSITORY / "examples" / "story"
SUMS = "SHA256SUMS"


def read(name: str) -> bytes:
    """The content of the file ``name``, whose sum must stand in ``SHA256SUMS`` beside it."""
    folder = folder_of(name)
    content = _read(folder / name)
    lines = (line.split(maxsplit=1) for line in _read(folder / SUMS).decode().splitlines())
    expected = {words[1].lstrip("*"): words[0] for words in lines if words}.get(name)
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ArtifactError(
            found=f"SHA-256 {found} of {folder / name}",
            expected=f"{expected or 'a line for it'} in {SUMS} beside it",
            fix="The file was changed or cut off: copy it there again.",
        )
    return content


def folder_of(name: str) -> Path:
    named = os.environ.get(FOLDER_VARIABLE)
    folder = BESIDE if named is None and BESIDE.is_dir() else None
    if named:
        folder = Path(named).expanduser()
        if not folder.is_dir():
            raise UsageError(
                found=f"{FOLDER_VARIABLE}={named}",
                expected="the path of a folder",
                fix="Correct it, or leave it empty to use what the repository keeps.",
            )
    if folder is None and (KEPT / name).is_file():
        return KEPT
    if folder is None:
        raise UsageError(
            found=f"no folder with {name}",
            expected=f"{FOLDER_VARIABLE}, or {BESIDE}",
            fix=f"Set {FOLDER_VARIABLE} to a folder that holds {name} and {SUMS}.",
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


def _arrays(name: str, *keys: str) -> list[Any]:
    with np.load(io.BytesIO(read(name)), allow_pickle=False) as arrays:
        return [arrays[key] for key in keys]


# --- heart disease by hospital -------------------------------------------------------------------

HEART = "heart_disease.csv.gz"
# In the order of ``HeartDisease.center``.
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va_long_beach")
FEATURES = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)


@dataclass(frozen=True)
class HeartDisease:
    """Patients of four hospitals, and whether an angiogram showed heart disease."""

    # (920, 13) features in the units of the source (years, mm Hg, mg/dl, beats a minute, mm of ST
    # depression, codes); NaN where missing
    X: Array
    y: Integers  # (920,) 1 where any vessel is narrowed by half or more (``num`` > 0), else 0
    center: Integers  # (920,) hospital of each patient, an index into ``center_names``
    center_names: tuple[str, ...]  # 4 names
    feature_names: tuple[str, ...]  # 13 names
    flamby_set: Integers  # (920,) 0 train, 1 test, -1 left out by FLamby (ogierduterrail2022)


def heart_disease() -> HeartDisease:
    """The UCI heart-disease data (Janosi, Steinbrunn, Pfisterer, Detrano; CC BY 4.0).

    A cholesterol of 0 (all 123 Swiss rows, 49 of Long Beach) and the one blood pressure of 0
    stand for "not measured": they become NaN here. Two patients (one Hungarian, one of Long
    Beach) occur twice, as published.
    """
    table = published_heart_disease()
    X = np.column_stack([table[name] for name in FEATURES])
    for name in ("chol", "trestbps"):
        column = X[:, FEATURES.index(name)]
        column[column == 0] = np.nan
    center, flamby = (table[name].astype(np.int64) for name in ("center", "flamby_set"))
    y = (table["num"] > 0).astype(np.int64)
    return HeartDisease(X, y, center, HOSPITALS, FEATURES, flamby)


def published_heart_disease() -> Any:
    """(920,) patients with named columns, zeros as published; NaN where a cell is empty."""
    lines = gzip.decompress(read(HEART)).decode().splitlines()
    return np.genfromtxt(lines, delimiter=",", names=True)


# --- newsgroups ----------------------------------------------------------------------------------

MOST_COUNTED = 30
"""Times that a word counts in one document: a dozen encoded binaries repeat one up to 11,151 times,
and would have a topic of their own."""


@dataclass(frozen=True)
class Newsgroups:
    """Messages of twenty newsgroups as bags of words."""

    # (18846, 12497) how often each stemmed word occurs in each message, at most ``MOST_COUNTED``
    # times; sparse, float64
    counts: Any
    y: Integers  # (18846,) group of each message, an index into ``group_names``
    is_train: Array  # (18846,) whether a message came before the date that parts the published sets
    words: tuple[str, ...]  # 12,497 stems
    group_names: tuple[str, ...]  # 20 names


def newsgroups() -> Newsgroups:
    """20 Newsgroups by date, stemmed, without stop words, words in at least 12 messages.

    The vocabulary has the size of KL-fusion's (claici2020), but how that was made is not known.
    Headers are in the text.
    """
    from scipy.sparse import csr_array

    keys = ("data", "indices", "indptr", "shape", "y", "is_train", "vocab", "group_names")
    counts, indices, rows, shape, y, is_train, words, groups = _arrays("20news_bow.npz", *keys)
    counts = np.minimum(counts, MOST_COUNTED).astype(np.float64)
    table = csr_array((counts, indices.astype(np.int32), rows), shape=tuple(shape.tolist()))
    names = tuple(words.tolist()), tuple(groups.tolist())
    return Newsgroups(table, y.astype(np.int64), is_train.astype(bool), *names)


# --- images of digits ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits:
    """Grey images (n, 28, 28), white on black, intensities from 0 to 1, and their classes (n,)."""

    x_train: Images
    y_train: Integers
    x_test: Images
    y_test: Integers


def mnist() -> Digits:
    """MNIST (Y. LeCun, C. Cortes, C. Burges): 60,000 and 10,000 images, in the official order."""
    return _digits("mnist.npz")


def fashion_mnist() -> Digits:
    """Fashion-MNIST (H. Xiao, K. Rasul, R. Vollgraf), as :func:`mnist`; labels are of clothes."""
    return _digits("fashion_mnist.npz")


def _digits(name: str) -> Digits:
    x, y, x_test, y_test = _arrays(name, "x_train", "y_train", "x_test", "y_test")
    return Digits(intensities(x), y.astype(np.int64), intensities(x_test), y_test.astype(np.int64))


@dataclass(frozen=True)
class FontDigits:
    """The ten digits of computer fonts, drawn and placed as MNIST's handwritten ones are.

    Images (n, 28, 28), intensities from 0 to 1; the digit (n,), and which font (n,).
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
    """
    keys = ("X", "y", "font_id", "font_one_per_family")
    x, y, font, first = _arrays("fonts_digits.npz", *keys)
    keep = first[font] if one_per_family else np.ones(len(y), bool)
    x, y, font = intensities(x[keep]), y[keep].astype(np.int64), font[keep].astype(np.int64)
    return FontDigits(recentred(x) if centred else x, y, font)


def intensities(images: Array) -> Images:
    return images.astype(np.float32) / np.float32(255)


def centres_of_mass(images: Array) -> Array:
    """(n, 2) row and column of the centre of mass of each image, in pixels from the first."""
    images = images.astype(np.float64)
    total, sizes = images.sum((1, 2)), images.shape
    return np.stack([images.sum(3 - axis) @ np.arange(sizes[axis]) / total for axis in (1, 2)], 1)


def recentred(images: Images) -> Images:
    """Each image moved by whole pixels, to where its centre of mass is nearest to (14, 14)."""
    moves = np.rint(14 - centres_of_mass(images)).astype(int)
    return np.stack([_moved(image, *move) for image, move in zip(images, moves, strict=True)])


def _moved(image: Images, down: int, right: int) -> Images:
    padded = np.pad(image, [(max(down, 0), max(-down, 0)), (max(right, 0), max(-right, 0))])
    rows, columns = image.shape
    return padded[max(-down, 0) :, max(-right, 0) :][:rows, :columns]


# --- motion capture ------------------------------------------------------------------------------


@dataclass(frozen=True)
class MotionCapture:
    """Six sequences of two people who exercise, and which action a human saw in each frame."""

    # (2058, 12) joint angles in degrees, and the height of the root; ten frames a second, means
    # removed by sequence, not scaled (standard deviations from 1.7 to 30)
    X: Array
    labels: Integers  # (2058,) actions 0 to 11
    # (7,) the first frame of each sequence, and the end. Sequences 0 to 2 are of one person (CMU
    # subject 13), 3 to 5 of another (14)
    bounds: Integers
    names: tuple[str, ...]  # of the 6 sequences
    action_names: tuple[str, ...]  # of the 12 actions

    @property
    def sequences(self) -> list[Array]:
        return np.split(self.X, self.bounds[1:-1])


def mocap6() -> MotionCapture:
    """Six sequences of the CMU motion capture database, as labelled by fox2014."""
    keys = ("X", "z", "doc_range", "seq_names", "action_names")
    X, z, bounds, names, actions = _arrays("mocap6.npz", *keys)
    labels, bounds = z.astype(np.int64), bounds.astype(np.int64)
    words = tuple(map(str, names)), tuple(map(str, actions))
    return MotionCapture(X.astype(np.float64), labels, bounds, *words)


# --- regression ----------------------------------------------------------------------------------

UCI_NAMES = (
    *("boston", "concrete", "energy", "kin8nm", "naval"),
    *("power", "protein", "wine", "yacht"),
)


@dataclass(frozen=True)
class Regression:
    """A table of numbers, one of them to be predicted, and which rows are kept for tests."""

    name: str  # of the table
    X: Array  # (n, d) features in the units of the source; columns may be constant (naval: two are)
    y: Array  # (n,) what is to be predicted, in the units of the source
    is_test: Array  # (splits, n) the rows of each split that are kept for tests, a tenth of them


def uci_regression(name: str) -> Regression:
    """One of nine UCI tables under the protocol of hernandezlobato2015: 20 splits, protein 5.

    Rows occur twice (protein 1,711, wine 240, power 41, concrete 25), so training and test rows
    overlap a little, as in the papers. Of wine the red ones only; of energy the heating load. In
    Boston the column that is made of the share of black residents is contested, for good reasons:
    the table serves for comparison with what was published, and nothing else.
    """
    if name not in UCI_NAMES:
        raise UsageError(
            found=f"name={name!r}",
            expected=f"one of {', '.join(UCI_NAMES)}",
            fix="Correct the name.",
        )
    keys = (f"{name}_X", f"{name}_y", f"{name}_test_mask")
    X, y, packed = _arrays("uci_regression.npz", *keys)
    is_test = np.unpackbits(packed, axis=1, count=len(y)).astype(bool)
    return Regression(name, X.astype(np.float64), y.astype(np.float64), is_test)


def random_splits(count: int, splits: int) -> Array:
    """(splits, count) test rows as hernandezlobato2015 drew them: the stored ones, from seed 1."""
    rng = np.random.RandomState(1)
    found = np.ones((splits, count), bool)
    for row in found:
        order = rng.choice(range(count), count, replace=False)
        row[order[: round(count * 0.9)]] = False
    return found
