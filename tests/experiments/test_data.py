"""The loader: from a folder, from the publisher, and what it says when neither works."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest

from experiments import data
from posterity.errors import ArtifactError, PosterityError, UsageError

FEATURES = data.FEATURES


def made_folder(path: Path, content: bytes, name: str = "heart_disease.npz") -> Path:
    """A data folder with one file and its right sum."""
    path.mkdir()
    (path / name).write_bytes(content)
    (path / "SHA256SUMS").write_text(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder; where there is none, one made from what the publisher serves."""
    found = data.data_folder()
    if found is not None:
        return found
    table, center = data.fetched_heart_disease()
    X, num = table[:, :-1], table[:, -1]
    sets = data.flamby_set(X, (num > 0).astype(np.int64), center)
    content = io.BytesIO()
    np.savez(content, X=X, num=num, y=num > 0, center=center, flamby_set=sets)
    return made_folder(tmp_path_factory.mktemp("shared") / "data", content.getvalue())


@pytest.fixture(scope="module")
def archive(folder: Path) -> dict[str, np.ndarray]:
    return data.read_archive(folder, "heart_disease.npz")


def published(archive: dict[str, np.ndarray]) -> dict[str, bytes]:
    """The publisher's four files, written again from the archive."""
    table = np.column_stack([archive["X"].astype(np.float64).round(4), archive["num"]])
    files = {}
    for i, (_, name, _) in enumerate(data.HOSPITALS):
        lines = [",".join("?" if np.isnan(v) else f"{v:g}" for v in row) for row in table]
        chosen = [lines[j] for j in np.flatnonzero(archive["center"] == i)]
        files[f"{data.UCI}/processed.{name}.data"] = ("\n".join(chosen) + "\n").encode()
    return files


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No data folder anywhere; an empty cache."""
    monkeypatch.delenv(data.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(data, "BESIDE", tmp_path / "absent")
    monkeypatch.setattr(data, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def same(left: data.HeartDisease, right: data.HeartDisease) -> bool:
    arrays = ("X", "y", "center", "flamby_set")
    return all(
        np.array_equal(getattr(left, a), getattr(right, a), equal_nan=True)
        and getattr(left, a).dtype == getattr(right, a).dtype
        for a in arrays
    )


def test_heart_disease_is_what_the_source_describes(folder: Path) -> None:
    heart = data.heart_disease()
    assert heart.X.shape == (920, 13) and heart.X.dtype == np.float64
    assert heart.feature_names == FEATURES and len(heart.center_names) == 4
    assert np.bincount(heart.center).tolist() == [303, 294, 123, 200]
    assert np.bincount(heart.center, weights=heart.y).tolist() == [139, 106, 115, 149]
    # the first published patient, to the last digit: 2.3, not the nearest float32
    first = [63, 1, 1, 145, 233, 1, 2, 150, 0, 2.3, 3, 0, 6]
    assert heart.X[0].tolist() == first


def test_zeros_that_mean_missing_are_nan(folder: Path, archive: dict[str, np.ndarray]) -> None:
    heart = data.heart_disease()
    chol, pressure = FEATURES.index("chol"), FEATURES.index("trestbps")
    zeros = archive["X"][:, chol] == 0
    assert [int(zeros[heart.center == c].sum()) for c in range(4)] == [0, 0, 123, 49]
    assert np.isnan(heart.X[zeros, chol]).all()
    assert (archive["X"][:, pressure] == 0).sum() == 1
    assert np.nanmin(heart.X[:, pressure]) == 80 and np.nanmin(heart.X[:, chol]) == 85
    others = [i for i in range(13) if i not in (chol, pressure)]
    np.testing.assert_allclose(heart.X[:, others], archive["X"][:, others], rtol=1e-6)


def test_flamby_rule_gives_the_stored_split(archive: dict[str, np.ndarray]) -> None:
    X = archive["X"].astype(np.float64)
    y, center = archive["y"].astype(np.int64), archive["center"].astype(np.int64)
    sets = data.flamby_set(X, y, center)
    assert np.array_equal(sets, archive["flamby_set"])
    # what FLamby says of its own split, by hospital
    sizes = [[int((sets[center == c] == part).sum()) for part in (0, 1)] for c in range(4)]
    assert sizes == [[199, 104], [172, 89], [30, 16], [85, 45]]


def test_fetched_data_are_the_same_and_fetched_once(
    archive: dict[str, np.ndarray], folder: Path, monkeypatch: pytest.MonkeyPatch, offline: Path
) -> None:
    files, asked = published(archive), []
    monkeypatch.setattr(data, "download", lambda url: asked.append(url) or files[url])
    fetched, again = data.heart_disease(), data.heart_disease()
    assert asked == list(files)
    kept = sorted(p.name for p in offline.rglob("*") if p.is_file())
    assert kept == sorted(url.rsplit("/", 1)[1] for url in files)
    monkeypatch.setenv(data.FOLDER_VARIABLE, str(folder))
    read = data.heart_disease()
    assert same(fetched, read) and same(again, read)


@pytest.mark.parametrize("fails", [OSError("no route"), TimeoutError("timed out")])
def test_failed_download_says_what_to_do_and_keeps_nothing(
    fails: Exception, monkeypatch: pytest.MonkeyPatch, offline: Path
) -> None:
    def download(url: str) -> bytes:
        raise fails

    monkeypatch.setattr(data, "download", download)
    with pytest.raises(PosterityError, match=data.FOLDER_VARIABLE):
        data.heart_disease()
    assert not offline.exists()


def test_failed_write_leaves_no_half_file(
    archive: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch, offline: Path
) -> None:
    def replace(source: str, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(data, "download", published(archive).__getitem__)
    monkeypatch.setattr(data.os, "replace", replace)
    with pytest.raises(ArtifactError, match="disk full"):
        data.heart_disease()
    assert [p for p in offline.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("content", [b"<html>sign in</html>", b"63,1,1\n", b"", b"\xff\xfe"])
def test_what_is_no_table_is_refused_and_not_kept(
    content: bytes, monkeypatch: pytest.MonkeyPatch, offline: Path
) -> None:
    monkeypatch.setattr(data, "download", lambda url: content)
    with pytest.raises(ArtifactError, match=r"processed\.cleveland\.data"):
        data.heart_disease()
    assert not offline.exists()


def test_one_altered_cell_is_noticed(
    archive: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch, offline: Path
) -> None:
    files = published(archive)
    url = next(iter(files))
    files[url] = files[url].replace(b"63,1,1,145", b"64,1,1,145", 1)
    monkeypatch.setattr(data, "download", files.__getitem__)
    with pytest.raises(ArtifactError, match="other heart-disease data"):
        data.heart_disease()


def test_folder_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(data.FOLDER_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="nowhere"):
        data.heart_disease()


def test_data_folder_prefers_the_variable(
    monkeypatch: pytest.MonkeyPatch, offline: Path, tmp_path: Path
) -> None:
    assert data.data_folder() is None
    beside, named = tmp_path / "beside", tmp_path / "named"
    beside.mkdir()
    named.mkdir()
    monkeypatch.setattr(data, "BESIDE", beside)
    assert data.data_folder() == beside
    monkeypatch.setenv(data.FOLDER_VARIABLE, str(named))
    assert data.data_folder() == named


def test_archive_is_checked_against_its_sum(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(3))
    folder = made_folder(tmp_path / "data", buffer.getvalue())
    assert data.read_archive(folder, "heart_disease.npz")["a"].tolist() == [0, 1, 2]
    content = bytearray(buffer.getvalue())
    content[40] ^= 1
    (folder / "heart_disease.npz").write_bytes(content)
    with pytest.raises(ArtifactError, match="SHA-256"):
        data.read_archive(folder, "heart_disease.npz")


@pytest.mark.parametrize("gone", ["heart_disease.npz", "SHA256SUMS"])
def test_missing_file_is_named(gone: str, tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "data", b"anything")
    (folder / gone).unlink()
    with pytest.raises(ArtifactError, match=gone):
        data.read_archive(folder, "heart_disease.npz")


def test_file_without_a_sum_is_refused(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "data", b"anything", name="other.npz")
    (folder / "heart_disease.npz").write_bytes(b"anything")
    with pytest.raises(ArtifactError, match="a line for it"):
        data.read_archive(folder, "heart_disease.npz")
