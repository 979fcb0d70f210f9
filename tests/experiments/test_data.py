"""The loader: which folder it reads, what it refuses, and what the heart-disease table holds."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from experiments import data
from posterity.errors import ArtifactError, UsageError

FEATURES = data.FEATURES
# Of the table as the publisher has it: 920 rows of 13 features and y, NaN as -9, float64.
PUBLISHED = "2ec06a3270251ea921f5d93e0d73dc59bccbb822495d88e33b37342a3b728f60"
LARGER = (
    *("20news_bow", "boston", "fashion_mnist", "fonts_digits", "mnist", "mocap6"),
    "uci_regression",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with one file and its right sum."""
    content = b"anything"
    path = tmp_path / "data"
    path.mkdir()
    (path / "some.npz").write_bytes(content)
    (path / data.SUMS).write_text(f"{hashlib.sha256(content).hexdigest()}  some.npz\n")
    monkeypatch.setenv(data.FOLDER_VARIABLE, str(path))
    return path


# --- the heart-disease table -----------------------------------------------------------------


def test_heart_disease_is_what_the_source_describes() -> None:
    heart = data.heart_disease()
    assert heart.X.shape == (920, 13) and heart.X.dtype == np.float64
    assert heart.feature_names == FEATURES and len(heart.center_names) == 4
    assert np.bincount(heart.center).tolist() == [303, 294, 123, 200]
    assert np.bincount(heart.center, weights=heart.y).tolist() == [139, 106, 115, 149]
    # the first published patient
    first = [63, 1, 1, 145, 233, 1, 2, 150, 0, 2.3, 3, 0, 6]
    assert heart.X[0].tolist() == first


def test_table_is_the_published_one() -> None:
    raw = data.published_heart_disease()
    X = np.column_stack([raw[name] for name in FEATURES])
    table = np.column_stack([np.where(np.isnan(X), -9.0, X), raw["num"] > 0])
    assert hashlib.sha256((table + 0.0).astype("<f8").tobytes()).hexdigest() == PUBLISHED


def test_zeros_that_mean_missing_are_nan() -> None:
    heart, raw = data.heart_disease(), data.published_heart_disease()
    chol, pressure = FEATURES.index("chol"), FEATURES.index("trestbps")
    zeros = raw["chol"] == 0
    assert [int(zeros[heart.center == c].sum()) for c in range(4)] == [0, 0, 123, 49]
    assert np.isnan(heart.X[zeros, chol]).all()
    assert (raw["trestbps"] == 0).sum() == 1
    assert np.nanmin(heart.X[:, pressure]) == 80 and np.nanmin(heart.X[:, chol]) == 85
    for i, name in enumerate(FEATURES):
        if i not in (chol, pressure):
            np.testing.assert_array_equal(heart.X[:, i], raw[name])


def test_flamby_rule_gives_the_stored_split() -> None:
    """Without slope, ca and thal, complete cases, 66 % train; stratified but for Switzerland.

    Its one healthy complete case cannot be in both parts (ogierduterrail2022).
    """
    heart, raw = data.heart_disease(), data.published_heart_disease()
    complete = ~np.isnan([raw[name] for name in FEATURES[:10]]).any(axis=0)
    sets = np.full(920, -1)
    for c in range(4):
        rows = np.flatnonzero(complete & (heart.center == c))
        labels = heart.y[rows] if np.bincount(heart.y[rows]).min() > 2 else None
        train, test = train_test_split(rows, test_size=0.34, random_state=43, stratify=labels)
        sets[train], sets[test] = 0, 1
    assert np.array_equal(sets, heart.flamby_set)
    # what FLamby says of its own split, by hospital
    sizes = [[int((sets[heart.center == c] == part).sum()) for part in (0, 1)] for c in range(4)]
    assert sizes == [[199, 104], [172, 89], [30, 16], [85, 45]]


# --- which folder ----------------------------------------------------------------------------


def test_variable_then_beside_then_the_repository(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    monkeypatch.setattr(data, "BESIDE", beside)
    assert data.folder_of(data.HEART) == folder
    monkeypatch.delenv(data.FOLDER_VARIABLE)
    assert data.folder_of(data.HEART) == beside
    beside.rmdir()
    assert data.folder_of(data.HEART) == data.KEPT


def test_empty_variable_means_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "BESIDE", tmp_path)
    monkeypatch.setenv(data.FOLDER_VARIABLE, "")
    assert data.folder_of(data.HEART) == data.KEPT
    with pytest.raises(UsageError, match=f"no folder with mnist.npz.*{data.FOLDER_VARIABLE}"):
        data.read("mnist.npz")


def test_folder_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.FOLDER_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="nowhere"):
        data.heart_disease()


# --- what is refused -------------------------------------------------------------------------


def test_file_is_checked_against_its_sum(folder: Path) -> None:
    assert data.read("some.npz") == b"anything"
    (folder / "some.npz").write_bytes(b"anythinG")
    with pytest.raises(ArtifactError, match="SHA-256"):
        data.read("some.npz")


@pytest.mark.parametrize("gone", ["some.npz", data.SUMS])
def test_missing_file_is_named(gone: str, folder: Path) -> None:
    (folder / gone).unlink()
    with pytest.raises(ArtifactError, match=gone):
        data.read("some.npz")


def test_file_without_a_sum_is_refused(folder: Path) -> None:
    (folder / "other.npz").write_bytes(b"anything")
    with pytest.raises(ArtifactError, match="a line for it"):
        data.read("other.npz")


# --- images of digits ------------------------------------------------------------------------


def test_recentring_moves_by_whole_pixels_and_loses_no_ink() -> None:
    rng = np.random.default_rng(0)
    images = np.zeros((40, 28, 28), np.float32)
    for image in images:
        top, left = rng.integers(4, 10, 2)
        image[top : top + 14, left : left + 14] = rng.uniform(0.1, 1, (14, 14))
    found = data.recentred(images)
    assert np.abs(data.centres_of_mass(found) - 14).max() <= 0.5
    # ink is there as it was, only elsewhere
    np.testing.assert_array_equal(np.sort(found.reshape(40, -1)), np.sort(images.reshape(40, -1)))
    np.testing.assert_array_equal(data.recentred(found), found)


# --- the folder itself: `make test-data` -----------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize("name", LARGER)
def test_larger_data_are_whole(name: str) -> None:
    with np.load(io.BytesIO(data.read(f"{name}.npz")), allow_pickle=False) as arrays:
        assert all(arrays[key].size for key in arrays)


@pytest.mark.data
def test_folder_and_repository_hold_the_same_heart_disease_table() -> None:
    folder = data.folder_of(f"{LARGER[0]}.npz")
    assert (folder / data.HEART).read_bytes() == (data.KEPT / data.HEART).read_bytes()


@pytest.mark.data
def test_mnist_is_the_official_one_in_its_order() -> None:
    digits = data.mnist()
    assert digits.x_train.shape == (60_000, 28, 28) and digits.x_test.shape == (10_000, 28, 28)
    assert digits.x_train.dtype == np.float32 and digits.x_test.max() == 1
    assert digits.y_train[:5].tolist() == [5, 0, 4, 1, 9]
    assert np.bincount(digits.y_test).tolist() == [
        *(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
    ]


@pytest.mark.data
def test_font_digits_lie_where_mnist_does() -> None:
    fonts, digits = data.font_digits(), data.mnist()
    assert fonts.x.shape == (7270, 28, 28)
    assert np.bincount(fonts.y).tolist() == [727] * 10
    assert len(np.unique(fonts.font)) == 727
    mean = data.centres_of_mass(fonts.x).mean(0)
    # rounded to whole pixels: a deviation of .29 pixels for each image, of .0045 for the difference
    np.testing.assert_allclose(mean, data.centres_of_mass(digits.x_test).mean(0), atol=4 * 0.0045)
    # as stored they are half a pixel off, along the diagonal
    stored = data.font_digits(one_per_family=False, centred=False)
    assert stored.x.shape == (16_060, 28, 28)
    np.testing.assert_allclose(data.centres_of_mass(stored.x).mean(0), 13.5, atol=0.05)
