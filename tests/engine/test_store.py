"""The store: one transaction a message, kill -9 between any two writes, and bytes that are gone."""

import contextlib
import inspect
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from posterity.engine.log import Tree
from posterity.engine.store import Change, Outgoing, Store
from posterity.errors import ArtifactError


def change(number: int, **more) -> Change:
    """What a site might be after so many messages: each part tells which one it is of."""
    name = str(number).encode()
    outbox = {f"to {number % 3}": Outgoing(str(number), name * 2000)}
    return Change(name * 3000, outbox, (b"entry " + name,), **more)


def is_after(store: Store, number: int) -> bool:
    """Whether the store holds what it held after so many messages, and nothing else."""
    expected = change(number)
    entries = [b"entry %d" % n for n in range(number + 1)]
    return (
        (store.state, store.outbox) == (expected.state, dict(expected.outbox))
        and store.entries() == entries
        and store.log.root() == Tree(entries).root()
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "site.db"


def test_a_store_comes_back_as_it_was(path):
    with Store.create(path, change(0)) as store:
        for number in range(1, 6):
            store.commit(change(number))
            assert is_after(store, number)
    with Store(path) as store:
        assert is_after(store, 5)
        assert store.entries(3, 5) == [b"entry 3", b"entry 4"]
        store.commit(Change(b"", {}, (b"one", b"two")))
    with Store(path) as store:
        assert (store.state, store.outbox, len(store.log)) == (b"", {}, 8)
    with contextlib.closing(sqlite3.connect(path)) as file:
        assert file.execute("pragma user_version").fetchone() == (2,)


def test_one_process_has_a_store_and_none_is_made_by_opening(path):
    with pytest.raises(ArtifactError, match="posterity site init"):
        Store(path)
    assert not path.exists()
    with Store.create(path, change(0)) as store:
        with pytest.raises(ArtifactError, match="locked"):
            Store(path)
        code = f"from posterity.engine.store import Store; Store({str(path)!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "ArtifactError" in other.stderr and "locked" in other.stderr
        store.commit(change(1))
    with pytest.raises(ArtifactError, match="exists"):
        Store.create(path, change(0))
    with Store(path) as store:
        assert is_after(store, 1)


def test_commits_are_forced_to_disk(path):
    with Store.create(path, change(0)) as store:
        found = {name: store._one(f"pragma {name}")[0] for name in ("synchronous", "secure_delete")}
        assert found == {"synchronous": 2, "secure_delete": 1}
        assert store._one("pragma journal_mode") == ("wal",)


def test_threads_take_turns(path):
    def work(name: str) -> None:
        for number in range(20):
            store.commit(Change(name.encode(), {}, (f"{name} {number}".encode(),)))

    with Store.create(path, Change(b"", {})) as store:
        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        entries = store.entries()
        assert len(entries) == 80 and store.log.root() == Tree(entries).root()
        for name in "abcd":
            own = [entry for entry in entries if entry.startswith(name.encode())]
            assert own == [f"{name} {number}".encode() for number in range(20)]


# --- killed --------------------------------------------------------------------------------------

KILLED = """
    import os, signal, sys
    from pathlib import Path
    from posterity.engine.store import Change, Outgoing, Store

    CHANGE

    def work(path, fatal):
        store = Store(path)
        count = 0
        def trace(statement):
            nonlocal count
            count += 1
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
        store._connection.set_trace_callback(trace)
        for number in range(1, 4):
            store.commit(change(number, erase=number == 2))
            os.write(told[1], bytes([number]))
        os._exit(0)

    for fatal in range(1, 1000):
        path = Path(sys.argv[1]) / f"{fatal}.db"
        Store.create(path, change(0)).close()
        told = os.pipe()
        child = os.fork()
        if not child:
            work(path, fatal)
        os.close(told[1])
        status = os.waitpid(child, 0)[1]
        print(fatal, len(os.read(told[0], 10)))
        os.close(told[0])
        if status == 0:
            break
"""


@pytest.mark.slow
def test_a_site_killed_between_any_two_writes_goes_on_from_before_or_after(tmp_path):
    """A child that is killed at its first statement, at its second, and so on."""
    code = textwrap.dedent(KILLED).replace("CHANGE", inspect.getsource(change))
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    outcomes = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert len(outcomes) > 20 and outcomes[-1][1] == 3  # the last of them lived
    held = set()
    for fatal, told in outcomes:
        with Store(tmp_path / f"{fatal}.db") as store:
            number = len(store.log) - 1
            assert is_after(store, number)
            assert told <= number <= told + 1  # never less than was told, for that was sent
            held.add((told, number))
            store.commit(change(number + 1))
    assert held >= {(0, 0), (1, 1), (1, 2), (2, 2), (3, 3)}


def test_a_site_killed_at_any_time_goes_on(tmp_path):
    """By another process, which does not wait for the end of a statement."""
    path, number = tmp_path / "site.db", 0
    Store.create(path, Change(b"0", {}, (b"0",))).close()
    code = textwrap.dedent("""
        import sys
        from posterity.engine.store import Change, Outgoing, Store
        store = Store(sys.argv[1])
        number = int(store.state)
        while True:
            number += 1
            text = str(number).encode()
            store.commit(Change(text, {"a": Outgoing("b", text * 5000)}, (text,)))
            sys.stdout.write(f"{number}\\n")
            sys.stdout.flush()
    """)
    for lines in (3, 17, 40):
        child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(lines):
            number = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        told = [int(line) for line in child.communicate()[0].split(b"\n")[:-1]]
        number = max([number, *told])
        with Store(path) as store:
            assert int(store.state) == len(store.log) - 1 in (number, number + 1)
            assert store.outbox["a"].content == store.state * 5000


# --- erased --------------------------------------------------------------------------------------


def found_in_files(folder: Path, content: bytes) -> float:
    """The share of the eight-byte pieces of a content that lie anywhere in a folder's files.

    Files that are open without a name any more count too.
    """
    contents = [file.read_bytes() for file in folder.iterdir()]
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(handle)
            if str(folder) in target and target.endswith("(deleted)"):
                contents.append(handle.read_bytes())
    pieces = np.frombuffer(content, np.uint64)
    found = np.zeros(len(pieces), bool)
    for each in contents:
        for start in range(min(8, len(each))):
            windows = np.frombuffer(each, np.uint64, (len(each) - start) // 8, start)
            found |= np.isin(pieces, windows)
    return found.mean()


@pytest.mark.parametrize("size", [3, 500, 20_000])
def test_no_byte_of_what_was_erased_is_in_any_file_of_the_open_store(path, size):
    rng = np.random.default_rng(size)
    factor, sums = rng.normal(size=size), [rng.normal(size=size) for _ in range(3)]
    secret = b"".join(array.tobytes() for array in (factor, *sums))
    with Store.create(path, Change(b"empty", {})) as store:
        for number, exact_sum in enumerate(sums):
            token = {str(number): Outgoing("b", exact_sum.tobytes()), "to c": Outgoing("c", b"?")}
            store.commit(Change(b"factor" + factor.tobytes(), token, (b"digest",)))
        assert found_in_files(path.parent, secret) > 0.9  # all but what two pages share
        store.commit(
            Change(b"tombstone", {"to c": Outgoing("c", b"?")}, (b"forgotten",), erase=True)
        )
        assert found_in_files(path.parent, secret) == 0
        assert (store.state, list(store.outbox)) == (b"tombstone", ["to c"])
        assert store.entries() == [b"digest"] * 3 + [b"forgotten"]
    assert found_in_files(path.parent, secret) == 0
    with Store(path) as store:
        assert store.state == b"tombstone"


def test_erasing_that_was_cut_short_is_done_when_the_store_is_opened(path, monkeypatch):
    secret = np.random.default_rng(0).bytes(5000)
    killed = path.parent / "killed"

    def interrupted(self: Store) -> None:
        shutil.copytree(path.parent, killed)
        raise KeyboardInterrupt

    with Store.create(path, Change(secret, {"a": Outgoing("b", secret)})) as store:
        monkeypatch.setattr(Store, "_erase", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.commit(Change(b"", {}, erase=True))
    assert found_in_files(killed, secret) > 0.9
    monkeypatch.undo()
    path = killed / path.name
    with Store(path) as store:
        assert found_in_files(path.parent, secret) == 0
        assert (store.state, store.outbox) == (b"", {})


# --- refused -------------------------------------------------------------------------------------


def test_a_disk_that_fails_changes_nothing(path):
    with Store.create(path, change(0)) as store:
        store._run("pragma max_page_count = 20")
        with pytest.raises(ArtifactError, match="full"):
            store.commit(Change(bytes(100_000), {}, (b"lost",)))
        with pytest.raises(ArtifactError):  # it has to be opened anew
            store.commit(change(1))
    with Store(path) as store:
        assert is_after(store, 0)
        store.commit(change(1))


@pytest.mark.parametrize(
    "statement",
    [
        "update site set state = x'00'",
        "update log set entry = x'00' where number = 1",
        "delete from log where number = 2",
        "insert into log values (7, x'00')",
        "update outbox set content = x'00'",
        "update site set root = x'00'",
        "pragma user_version = 3",
        "pragma user_version = 0",
        "pragma application_id = 2",
        "drop table outbox",
        "delete from site",
    ],
)
def test_a_store_that_was_altered_is_refused(path, statement):
    with Store.create(path, change(0)) as store:
        store.commit(change(1))
        store.commit(change(2))
    other = sqlite3.connect(path)
    other.execute(statement)
    other.commit()
    other.close()
    with pytest.raises(ArtifactError):
        Store(path)


def test_foreign_and_damaged_files_are_refused(path):
    Store.create(path, change(0)).close()
    content, rng = path.read_bytes(), np.random.default_rng(0)
    foreign = [b"", b"text", rng.bytes(5000), content[:100], content[:5000]]
    for bad in foreign:
        path.write_bytes(bad)
        with pytest.raises(ArtifactError, match=r"is damaged.*counts as lost"):
            Store(path)
    for _ in range(60):  # a store is refused, or every bit that counts is as it was
        altered = bytearray(content)
        altered[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(altered)
        try:
            with Store(path) as store:
                assert is_after(store, 0)
        except ArtifactError:
            pass
    with pytest.raises(ArtifactError):
        Store.create(path.parent / "missing" / "site.db", change(0))
    with pytest.raises(ArtifactError):
        Store(path.parent)
