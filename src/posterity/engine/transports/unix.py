"""Unix sockets of agents: the server of a site's agent, its clients, and how couriers find it.

Messages are framed by :mod:`multiprocessing.connection`. Each is a head in JSON on one line, a
newline and a body. Each request gets one answer, and a connection carries any number of them.
Access is controlled by the folder of the socket, which only the site's own user may enter.
"""

import contextlib
import json
import os
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from posterity import errors
from posterity.engine.refusal import Refusal, reading
from posterity.errors import PosterityError, SiteError, UsageError
from posterity.runtime.files import writing

Head = Mapping[str, Any]
Answer = Callable[[Head, bytes], tuple[Head, bytes]]
"""A function from the head and body of a request to those of the answer.

A PosterityError that it raises is sent to the client.
"""
HEAD_BYTES = 2**16
"""Maximum size of a head. A message holds one, and a body of at most the size of a letter."""
SITE = "POSTERITY_SITE"
"""The environment variable that names a site's folder; set it where an engine is started."""
SERVER = "server"
"""The member whose letters are carried by the engine's own server."""
_PATH = 100
"""Bytes of a socket's path that every system accepts."""


class Absent(SiteError):
    """The error if no agent listens at a socket."""


# --- messages ------------------------------------------------------------------------------------


def to_message(head: Head, body: bytes = b"") -> bytes:
    """Return the bytes of a message."""
    return json.dumps(head, allow_nan=False).encode() + b"\n" + body


def from_message(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the head and the body of a message; raises a Refusal if it has no valid head."""
    line, newline, body = content.partition(b"\n")
    fix = "Speak to the socket by posterity.engine.transports.unix.Client."
    with reading("the head of a message", "a JSON object on one line", fix):
        if not newline or len(line) > HEAD_BYTES:
            raise ValueError(f"no head within {HEAD_BYTES} bytes")
        head = json.loads(line, parse_constant=_no_number)
        if not isinstance(head, dict):
            raise TypeError(f"a {type(head).__name__}")
    return head, body


def framed(raw: socket.socket, seconds: float) -> Connection:
    """Return a connection for whole messages; each part must arrive within ``seconds``."""
    raw.setblocking(True)
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        raw.setsockopt(socket.SOL_SOCKET, option, limit)
    return Connection(raw.detach())


def received(connection: Connection, most: int) -> bytes:
    """Return the next message. Raises a Refusal, without reading it, if it has more than ``most``
    bytes, an OSError if it does not arrive in time, and an EOFError if the connection ends.
    """
    try:
        return connection.recv_bytes(most)
    except OSError as error:
        if error.errno is not None:
            raise
        found = "a message that is too large"
        expected = f"at most {most} bytes"
        raise Refusal.of(found, expected, "size") from error


def as_error(error: Exception) -> dict[str, Any]:
    """Return the head for an error; one that is no PosterityError is described as a bug."""
    if not isinstance(error, PosterityError):
        error = PosterityError(
            found=f"an unexpected {type(error).__name__} ({error})",
            expected="no error of this kind: it is a bug in posterity",
            fix="Report it, with the log of the agent.",
        )
    sentences = {name: getattr(error, name)[:4000] for name in ("found", "expected", "fix")}
    return {"error": {**sentences, "kind": type(error).__name__}}


def of_error(head: Mapping[str, str]) -> PosterityError:
    """Return the error in a head by :func:`as_error`; a SiteError if its kind is unknown."""
    sentences: Any = {name: head[name] for name in ("found", "expected", "fix")}
    kind: Any = {**vars(errors), "Refusal": Refusal}.get(head["kind"])
    known = isinstance(kind, type) and issubclass(kind, PosterityError)
    return (kind if known else SiteError)(**sentences)


# --- the server ----------------------------------------------------------------------------------


class Server(socketserver.ThreadingUnixStreamServer):
    """The socket of an agent: each connection has a thread, each message is answered by ``answer``.

    Messages of more than ``most`` bytes are refused. A message that pauses for longer than
    ``whole`` seconds ends its connection, and so do ``idle`` seconds between two messages, since
    clients that died would add up; the server goes on. A socket left by a killed process is
    replaced, which is safe since only the process with the site's store open serves it.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        path: Path | str,
        answer: Answer,
        *,
        most: int = 2**26 + HEAD_BYTES,
        whole: float = 60.0,
        idle: float = 3600.0,
    ):
        self.path = Path(path)
        self.answer = answer
        self.most = most
        self.whole = whole
        self.idle = idle
        self._connections = set[socket.socket]()
        new = self.path.with_name(f".{self.path.name}")  # moved into place once it listens
        with writing(self.path):
            new.unlink(missing_ok=True)
            with _address(new) as address:
                super().__init__(address, _Handler)
            new.chmod(0o600)
            os.replace(new, self.path)
            self._inode = self.path.stat().st_ino

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and remove the socket if it is the server's own. Earlier requests are still
        answered, for at most a second.
        """
        self.shutdown()
        self.server_close()
        for connection in tuple(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)
        over = time.monotonic() + 1.0
        while self._connections and time.monotonic() < over:
            time.sleep(0.01)
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()

    def reply(self, content: bytes) -> bytes:
        """Return the answer to a message."""
        try:
            return to_message(*self.answer(*from_message(content)))
        except Exception as error:
            return to_message(as_error(error))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        super().shutdown_request(request)
        self._connections.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a broken connection."""


class _Handler(socketserver.BaseRequestHandler):
    """Answers the messages of a connection, until it ends or sends one that is too large."""

    def handle(self) -> None:
        server: Any = self.server
        ended = contextlib.suppress(OSError, EOFError)
        with framed(self.request.dup(), server.whole) as connection, ended:
            while connection.poll(server.idle):
                try:
                    answer = server.reply(received(connection, server.most))
                except Refusal as error:  # the start of the next message is unknown
                    connection.send_bytes(to_message(as_error(error)))
                    return
                connection.send_bytes(answer)


# --- clients -------------------------------------------------------------------------------------


class Client(contextlib.AbstractContextManager["Client"]):
    """A connection to an agent, made at the first request. For one thread at a time."""

    def __init__(self, path: Path | str, *, timeout: float = 10.0, longest: float = 3600.0):
        self.path = Path(path)
        self.timeout = timeout
        self.longest = longest
        self._connection: Connection | None = None

    def ask(self, do: str, body: bytes = b"", **arguments: Any) -> tuple[dict[str, Any], bytes]:
        """Send a request, and return the head and the body of the answer.

        A kept connection that the agent has ended since is made again. The argument ``wait`` is the
        number of seconds, besides the client's ``timeout``, that the agent may take to answer; it
        takes the ``longest`` at most.

        Raises:
            Absent: if no agent listens.
            SiteError: if the agent does not answer in time, or ends the connection.
            PosterityError: the agent's own error, of the kind that it names.
        """
        content = to_message({"do": do, **arguments}, body)
        kept = self._connection is not None
        wait = min(self.timeout + float(arguments.get("wait") or 0.0), self.longest)
        try:
            try:
                answer = self._asked(content, wait)
            except (ConnectionError, EOFError):
                self.close()
                if not kept:
                    raise
                answer = self._asked(content, wait)
        except (OSError, EOFError) as error:
            self.close()
            raise SiteError(
                found=f"no answer of the agent at '{self.path}' ({error or 'it ended'})",
                expected=f"one within {wait:g} seconds",
                fix="See its log; if it hangs, restart it, which loses nothing.",
            ) from error
        head, body = from_message(answer)
        if "error" in head:
            raise of_error(head["error"])
        return head, body

    def _asked(self, content: bytes, wait: float) -> bytes:
        connection = self._connected()
        with contextlib.suppress(ConnectionError):  # its reason may have arrived
            connection.send_bytes(content)
        if not connection.poll(wait):
            raise TimeoutError("it is silent")
        return connection.recv_bytes()  # as large as the terms of the agent allow

    def _connected(self) -> Connection:
        if self._connection is None:
            raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            raw.settimeout(self.timeout)
            try:
                with _address(self.path) as address:
                    raw.connect(address)
            except OSError as error:
                raw.close()
                raise Absent(
                    found=f"no agent at '{self.path}' ({error.strerror or error})",
                    expected="a running agent",
                    fix="Start it by `posterity site run`.",
                ) from error
            self._connection = framed(raw, self.timeout)
        return self._connection

    def deliver(self, letter: bytes) -> None:
        """Hand over a sealed letter; its acknowledgement is a separate, later letter."""
        self.ask("deliver", letter)

    def collect(
        self,
        *,
        wait: float,
        most: int,
        encrypted: bool,
        to: Sequence[str] | None = None,
        again: bool = False,
    ) -> list[tuple[str, bytes]]:
        """Return letters that are due, each with its receiver, for a courier that carries them.

        The agent may ``wait`` so many seconds for one ``to`` these receivers, by default all.
        ``encrypted`` states whether the courier encrypts letters so that only the receiver can read
        them. With ``again``, letters that were taken before but not delivered are due at once.
        """
        options = {"most": most, "encrypted": encrypted, "to": to and list(to), "again": again}
        head, body = self.ask("collect", wait=wait, **options)
        letters = []
        start = 0
        for receiver, length in head["letters"]:
            letters.append((receiver, body[start : start + length]))
            start += length
        return letters

    def close(self) -> None:
        """End the connection; the next request makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yield a path to a socket that is short enough for the system."""
    if len(os.fsencode(path)) <= _PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


# --- couriers ----------------------------------------------------------------------------------


def agent_here() -> Path | None:
    """Return the socket of this machine's agent; None if the environment names no site."""
    folder = os.environ.get(SITE)
    return None if folder is None else Path(folder) / "site.sock"


def no_agent(name: str) -> UsageError:
    """Return the error if a letter arrives at a machine whose environment names no site."""
    return UsageError(
        found=f"no {SITE} in the environment of the engine at {name!r}",
        expected="the folder of the site whose letters it transports",
        fix=f"Start the engine there by: {SITE}=FOLDER COMMAND",
    )


def _no_number(text: str) -> float:
    """Refuse NaN and infinity; here, as the hook of files imports NumPy."""
    raise ValueError(f"{text} is not a JSON number")
