"""A site on disk: its state, the messages that are not acknowledged yet, and its log, in one file.

The file is an SQLite database. One transaction writes a new state, the messages that follow from it
and its log entries. It is forced to disk before any of the messages is sent. A site that is killed
at any time therefore continues from before or after a whole transaction.
"""

import contextlib
import dataclasses
import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from posterity.engine.log import Tree, TreeHead
from posterity.engine.signing import PrivateKey
from posterity.errors import ArtifactError
from posterity.runtime.files import force_to_disk
from posterity.version import __version__

VERSION = 2
"""Version of the format of a store that is written and read."""
APPLICATION = 0x706F7374
"""Number in SQLite's header that identifies a store."""
SCHEMA = (
    "create table site (id integer primary key check (id = 0), state blob not null, "
    "digest blob not null, root blob not null, erasing integer not null)",
    "create table outbox (key text primary key, receiver text not null, content blob not null, "
    "digest blob not null)",
    "create table log (number integer primary key, entry blob not null)",
)
LOST = (
    "Keep the key, site.toml and federation.toml, move what is left of the store and its -wal file "
    "away, and run `posterity site init FOLDER --federation FILE`: the site counts as lost, and "
    "rejoins in a new epoch. Do not restore a copy."
)
"""Advice on a store that is gone or damaged."""
IN_USE = "Stop the process that has it open, which `fuser FILE` names."
REPAIR = "Check permissions and space on the disk, and start again: nothing that was sent is lost."
SYSTEM = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)
ADVICE = {sqlite3.SQLITE_BUSY: IN_USE, **dict.fromkeys(SYSTEM, REPAIR)}
"""Advice by SQLite's error code; any other code tells of a damaged file."""


class Outgoing(NamedTuple):
    """A message and the name of its receiver."""

    receiver: str
    content: bytes


@dataclasses.dataclass(frozen=True)
class Change:
    """The result of messages: a site's new state and outbox, and new entries of the log. With
    ``erase``, data that the change replaces or removes is erased from the file.
    """

    state: bytes
    outbox: Mapping[str, Outgoing]
    entries: tuple[bytes, ...] = ()
    erase: bool = False


class Store(contextlib.AbstractContextManager["Store"]):
    """The durable state of one site. One process at a time has it open; threads may share it."""

    SYNCHRONOUS: ClassVar[str] = "full"
    is_open = True
    """True while the store can be used; a failed commit closes it."""

    def __init__(self, path: Path | str, wait: float = 0.0, *, first: Change | None = None):
        """Open the store in a file, waiting up to ``wait`` seconds if another process has it open.
        With ``first`` a new store is made with this state. Raises an ArtifactError if there is
        none, another process has it open, or it has another format or was altered.
        """
        self.path, self._lock = Path(path), threading.RLock()
        if first is None and not os.path.isfile(self.path):  # also if its name is too long
            raise _unusable(self.path, "does not exist", LOST)
        self._connect(wait)
        with self._whole():
            if first is not None:
                self._make(first)
                return
            self._read()
            if self._one("select erasing from site")[0]:  # the process was killed during an erasure
                self._erase()

    @classmethod
    def create(cls, path: Path | str, first: Change) -> Self:
        """Make and open the store of a new site with its first state. Raises an ArtifactError if a
        store exists already, or the file cannot be written.
        """
        return cls(path, first=first)

    def commit(self, change: Change) -> None:
        """Make a change durable, as a whole or not at all. The time is that of forcing it to disk,
        so commit the effects of several waiting messages at once. Raises an ArtifactError on
        failure, which closes the store; when opened again it is unchanged.
        """
        with self._lock, self._whole():
            with self._transaction():
                self._write(change)
            if change.erase:
                self._erase()

    def entries(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Return the entries of the log from ``start`` to before ``stop``, by default all."""
        query = "select entry from log where number >= ? and number < ? order by number"
        with self._lock, self._translated():
            stop = len(self.log) if stop is None else stop
            return [entry for (entry,) in self._run(query, start, stop)]

    def checkpoint(self, origin: str, key: PrivateKey) -> TreeHead:
        """Return the checkpoint of the present log, signed by its keeper's key."""
        with self._lock:
            return TreeHead.of(self.log, origin, key)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self.is_open = False
            self._connection.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- SQLite ----------------------------------------------------------------------------------

    def _connect(self, wait: float = 0.0) -> None:
        with self._translated():
            # Several threads share the connection, one at a time, by the lock.
            self._connection = sqlite3.connect(
                self.path, timeout=wait, isolation_level=None, check_same_thread=False
            )
            try:
                for pragma in (
                    "locking_mode = exclusive",  # two agents with one store would answer twice
                    "journal_mode = wal",
                    f"synchronous = {self.SYNCHRONOUS}",
                    "fullfsync = on",
                    "checkpoint_fullfsync = on",
                    "secure_delete = on",
                    "temp_store = memory",  # no other files
                ):
                    self._run(f"pragma {pragma}").fetchall()
                self._run("begin immediate")  # locks the file
                self._run("rollback")
            except BaseException:
                self._connection.close()
                raise

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def _one(self, query: str) -> Any:
        return self._run(query).fetchone()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run("begin immediate")
        try:
            yield
            self._run("commit")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._run("rollback")
            raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        # UnicodeDecodeError: SQLite's message on a table whose name was altered.
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            usual = sqlite3.SQLITE_IOERR if isinstance(error, OSError) else sqlite3.SQLITE_CORRUPT
            code = getattr(error, "sqlite_errorcode", usual) & 0xFF
            why = "cannot be used" if code in ADVICE else "is damaged"
            raise _unusable(self.path, f"{why} ({error})", ADVICE.get(code, LOST)) from error

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Close the store after any error, since the content of the disk is then unknown."""
        try:
            with self._translated():
                yield
        except BaseException:
            self.close()
            raise

    def _make(self, first: Change) -> None:
        if self._one("select count(*) from sqlite_master")[0]:
            raise _unusable(self.path, "exists", "Name another file.")
        self.log = Tree()
        self.outbox = {}
        with self._transaction():
            for statement in SCHEMA:
                self._run(statement)
            self._run(f"pragma application_id = {APPLICATION}")
            self._run(f"pragma user_version = {VERSION}")
            self._write(first)
        force_to_disk(self.path.parent)

    def _read(self) -> None:
        """Read the store into memory, and check that it was not altered."""
        made = self._one("pragma application_id") == (APPLICATION,)
        if not made or self._run("pragma quick_check").fetchall() != [("ok",)]:
            raise _unusable(self.path, "is damaged", LOST)
        (version,) = self._one("pragma user_version")
        if version != VERSION:
            why = f"has version {version}, and release {__version__} reads {VERSION}"
            fix = "Use the release that wrote it last: pip install --upgrade 'posterity[engine]'."
            raise _unusable(self.path, why, fix)
        try:
            state, digest, root = self._one("select state, digest, root from site")
            entries = self._run("select entry from log order by number")
            self.state: bytes = state
            self.log = Tree(entry for (entry,) in entries)
            rows = self._run("select key, receiver, content, digest from outbox").fetchall()
            self.outbox = {key: Outgoing(receiver, content) for key, receiver, content, _ in rows}
            whole = digest == _digest(state) and root == self.log.root()
            whole = whole and all(_digest(content) == sha for _, _, content, sha in rows)
        except TypeError:  # no row, or a value of another type
            whole = False
        if not whole:
            raise _unusable(self.path, "was altered", LOST)

    def _write(self, change: Change) -> None:
        for entry in change.entries:
            self._run("insert into log values (?, ?)", len(self.log), entry)
            self.log.append(entry)
        for key in self.outbox.keys() - change.outbox.keys():
            self._run("delete from outbox where key = ?", key)
        for key, message in change.outbox.items():
            if self.outbox.get(key) != message:
                row = (key, *message, _digest(message.content))
                self._run("insert or replace into outbox values (?, ?, ?, ?)", *row)
        row = (change.state, _digest(change.state), self.log.root(), change.erase)
        self._run("insert or replace into site values (0, ?, ?, ?, ?)", *row)
        self.state, self.outbox = change.state, dict(change.outbox)

    def _erase(self) -> None:
        """Erase deleted data from the file and from SQLite's write-ahead log."""
        for statement in ("vacuum", "update site set erasing = 0"):
            self._truncate()
            self._run(statement)
        self._truncate()

    def _truncate(self) -> None:
        """Move all pages into the database, and empty SQLite's write-ahead log."""
        busy, *_ = self._one("pragma wal_checkpoint(truncate)")
        if busy:
            raise OSError("another process reads data to be erased")


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _unusable(path: Path, why: str, fix: str) -> ArtifactError:
    return ArtifactError(
        found=f"store '{path}', which {why}", expected="the store of this site", fix=fix
    )
