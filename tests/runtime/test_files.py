"""A file is whole, the old or the new; what killed writers leave goes with the next write."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from posterity.errors import ArtifactError
from posterity.runtime import files
from posterity.runtime.files import alongside, clean_stale, write_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def names(folder: Path) -> list[str]:
    return sorted(name.name for name in folder.iterdir())


def test_parts_follow_each_other(path: Path) -> None:
    write_file(path, b"one ", memoryview(b"two "), bytearray(b"three"))
    assert path.read_bytes() == b"one two three"


def test_unwritable_outputs_change_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "file"
    write_file(kept, b"old")
    (tmp_path / "folder").mkdir()
    for bad in (
        tmp_path / "no-such-folder" / "file",
        kept / "below-a-file",
        tmp_path / "folder",
        tmp_path / ("x" * 300),
        tmp_path / "nul\0",
        tmp_path / "nul\0" / "file",
        Path(),
    ):
        with pytest.raises(ArtifactError, match="cannot be written"):
            write_file(bad, b"new")
    assert names(tmp_path) == ["file", "folder"]
    assert kept.read_bytes() == b"old"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failing_disk_or_an_interrupt_leaves_the_old_file(
    path: Path, step: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(path, b"old")

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises((ArtifactError, KeyboardInterrupt)) as caught:
        write_file(path, b"new")
    monkeypatch.undo()
    assert "No space left" in str(caught.value) or caught.value is error
    assert path.read_bytes() == b"old"
    assert names(path.parent) == ["file"]


def test_who_reads_the_old_file_reads_it_to_the_end(path: Path) -> None:
    """Writing never goes into a file that others may have open: another takes its place."""
    write_file(path, b"the old one, to the end")
    with path.open("rb") as reader:
        start = reader.read(10)
        write_file(path, b"the new one")
        assert start + reader.read() == b"the old one, to the end"
    assert path.read_bytes() == b"the new one"


def test_a_file_has_the_permissions_that_the_umask_leaves(path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(path, b"")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


# --- what is left behind -------------------------------------------------------------------------

STALE = ".file.0123abcd.tmp"
STRANGERS = [
    ".file", ".file.0123abcd", ".file.backup_1.tmp", ".file.0123ABCD.tmp", ".file.0123abcde.tmp",
    ".other.0123abcd.tmp", "file.0123abcd.tmp", ".xfile.0123abcd.tmp", ".file.0123abcd.tmp.x",
]  # fmt: skip


def test_only_what_writers_of_this_file_left_is_removed(path: Path) -> None:
    for name in (STALE, *STRANGERS):
        (path.parent / name).write_bytes(b"all factors")
    folder, link = path.parent / ".file.00000000.tmp", path.parent / ".file.11111111.tmp"
    folder.mkdir()
    link.symlink_to("file")
    write_file(path, b"new")
    assert names(path.parent) == sorted(["file", *STRANGERS, folder.name, link.name])


def test_cleaning_up_needs_no_write_and_no_folder(path: Path) -> None:
    (path.parent / STALE).write_bytes(b"all factors")
    clean_stale(path)
    assert names(path.parent) == []
    clean_stale(path.parent / "missing" / "file")


def test_names_are_no_patterns(tmp_path: Path) -> None:
    (tmp_path / ".file.0123abcd.tmp").touch()
    write_file(tmp_path / "fil.", b"")
    write_file(tmp_path / "*", b"")
    assert names(tmp_path) == ["*", ".file.0123abcd.tmp", "fil."]


def test_a_living_writer_keeps_its_file(path: Path) -> None:
    """Whoever writes meanwhile, in this process or another, leaves it alone."""
    imports = "from posterity.runtime.files import write_file as w, Path"
    other = f"{imports}; w(Path({os.fspath(path)!r}), b'1')"

    with alongside(path, b"outer"):
        write_file(path, b"inner")
        subprocess.run([sys.executable, "-c", other], check=True)
        assert path.read_bytes() == b"1"
    assert path.read_bytes() == b"outer"
    assert names(path.parent) == ["file"]


def test_a_file_taken_away_before_it_was_locked_is_made_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean-up between a file and its lock takes it for a dead writer's."""
    lock, taken = files._lock, []

    def late(handle: int) -> None:
        if not taken:
            taken.append(names(path.parent))
            clean_stale(path)
        lock(handle)

    monkeypatch.setattr(files, "_lock", late)
    write_file(path, b"new")
    assert len(taken[0]) == 1
    assert path.read_bytes() == b"new"
    assert names(path.parent) == ["file"]


def test_many_writers_at_once(path: Path) -> None:
    contents = [bytes([65 + n]) * 100_000 for n in range(8)]
    failed: list[BaseException] = []

    def writer(content: bytes) -> None:
        try:
            for _ in range(20):
                write_file(path, content)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=writer, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not path.exists() or path.read_bytes() in contents
    assert not failed
    assert names(path.parent) == ["file"]


WRITER = """
import sys
from posterity.runtime.files import Path, write_file
print("ready", flush=True)
n = 0
while True:
    n += 1
    write_file(Path(sys.argv[1]), bytes([n % 256]) * 3_000_000)
"""


def test_kill_in_the_middle_of_writing(path: Path) -> None:
    """Killed writers leave one whole version; the next write removes what else they left."""
    write_file(path, b"\0" * 3_000_000)
    caught_in_the_act = 0
    for delay in (0.0, 0.001, 0.003, 0.011):
        command = [sys.executable, "-c", WRITER, os.fspath(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            # Wait until it is at work, then some more, so that the blow falls anywhere.
            until = time.monotonic() + 60
            while not (at_work := list(path.parent.glob(".file.*"))) and time.monotonic() < until:
                pass
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
            assert writer.wait() == -signal.SIGKILL
        assert at_work, "the writer never wrote"
        content = path.read_bytes()
        assert len(content) == 3_000_000 and len(set(content)) == 1
        caught_in_the_act += len(list(path.parent.glob(".file.*")))
        write_file(path, content)
        assert names(path.parent) == ["file"]
    assert caught_in_the_act, "no kill fell into a write"
