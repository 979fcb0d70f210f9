"""Unix sockets of agents: frames, the server of a site's agent, and its clients.

A frame is a length of four bytes, the first the most significant, and as many bytes: a head in JSON
on one line, a newline and a body. Each frame that asks gets one that answers; a connection carries
any number of them. Whoever can open the socket is the site itself: it lies in a folder that nobody
else may enter.
"""

import contextlib
import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from posterity import errors
from posterity.engine.refusal import Refusal
from posterity.errors import PosterityError, SiteError, UsageError

Head = Mapping[str, Any]
Answer = Callable[[Head, bytes], tuple[Head, bytes]]
"""What answers a request, given its head and its body; a PosterityError goes to who asked."""
HEAD_BYTES = 2**16
"""The longest head. A frame holds one, and a body as long as a letter may be."""
LARGEST = 2**26 + HEAD_BYTES
"""The largest frame by default, as of :class:`~posterity.engine.agreement.Limits`."""
CONNECTIONS = 64
IDLE, WHOLE = 3600.0, 60.0
"""Seconds that a connection may rest between frames, and in which a whole frame has to come."""
_PATH = 100
_CHUNK = 2**20


class Absent(SiteError):
    """Nobody listens at a socket."""


# --- frames --------------------------------------------------------------------------------------


def to_frame(head: Head, body: bytes = b"") -> bytes:
    """The bytes of a frame."""
    line = json.dumps(head, allow_nan=False).encode()
    return (len(line) + 1 + len(body)).to_bytes(4, "big") + line + b"\n" + body


def from_frame(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The head and the body of a frame without its length; a Refusal if it has none."""
    line, newline, body = content.partition(b"\n")
    try:
        if not newline or len(line) > HEAD_BYTES:
            raise ValueError(f"no head within {HEAD_BYTES} bytes")
        head = json.loads(line, parse_constant=_no_number)
        if not isinstance(head, dict):
            raise ValueError(f"a {type(head).__name__}")
    except (ValueError, RecursionError) as error:
        raise Refusal(
            found=f"a frame whose head cannot be read ({error})",
            expected="a JSON object on one line",
            fix="Speak to the socket by posterity.engine.transports.unix.Client.",
        ) from error
    return head, body


def _no_number(text: str) -> None:
    raise ValueError(f"{text}, which is no number")


def read_frame(
    connection: socket.socket, most: int, *, wait: float, whole: float = WHOLE
) -> bytes | None:
    """The next frame without its length; None if the other side has ended the connection.

    Args:
        connection: What is read from.
        most: Bytes of the largest frame.
        wait: Seconds in which it has to begin.
        whole: Seconds in which the rest of it has to come.

    Raises:
        Refusal: if it is larger, of which nothing is read.
        TimeoutError: if it does not come in time.
        EOFError: if the connection ends within a frame.
    """
    connection.settimeout(max(wait, 1e-3))
    start = connection.recv(4)
    if not start:
        return None
    deadline = time.monotonic() + whole
    length = int.from_bytes(start + _exactly(connection, 4 - len(start), deadline), "big")
    if length > most:
        raise Refusal(found=f"a frame of {length} bytes", expected=f"at most {most}", reason="size")
    return _exactly(connection, length, deadline)


def _exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    """So many bytes; memory is taken as they come, whatever length was announced."""
    content = bytearray()
    while len(content) < size:
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        part = connection.recv(min(size - len(content), _CHUNK))
        if not part:
            raise EOFError(f"{len(content)} of {size} bytes")
        content += part
    return bytes(content)


def as_error(error: Exception) -> dict[str, Any]:
    """The head that tells of an error; of one that nobody meant, by its own words."""
    if not isinstance(error, PosterityError):
        error = PosterityError(
            found=f"an unexpected {type(error).__name__} ({error})",
            expected="no error of this kind: it is a bug in posterity",
            fix="Report it, with the log of the agent.",
        )
    sentences = {name: getattr(error, name)[:4000] for name in ("found", "expected", "fix")}
    return {"error": {**sentences, "kind": type(error).__name__}}


def of_error(told: Any) -> PosterityError:
    """The error that :func:`as_error` told of; a SiteError if it is of no kind that is known."""
    told = told if isinstance(told, dict) else {}
    sentences: Any = {name: str(told.get(name, "?")) for name in ("found", "expected", "fix")}
    name = str(told.get("kind"))
    kind = Refusal if name == "Refusal" else getattr(errors, name, SiteError)
    known = isinstance(kind, type) and issubclass(kind, PosterityError)
    return (kind if known else SiteError)(**sentences)


# --- the server ----------------------------------------------------------------------------------


class Server(socketserver.ThreadingUnixStreamServer):
    """The socket of an agent: each connection has a thread, each frame is answered by
    ``answer``.

    Frames of more than ``most`` bytes and more than ``connections`` at once are refused. Whatever
    comes is answered by an error, or its connection is ended; the server goes on. A socket that a
    killed process left is replaced: who serves has the site's store open, which only one can.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS

    def __init__(
        self,
        path: Path | str,
        answer: Answer,
        *,
        most: int = LARGEST,
        connections: int = CONNECTIONS,
        whole: float = WHOLE,
    ):
        self.path, self.answer, self.most, self.whole = Path(path), answer, most, whole
        self._most_connections, self._connections = connections, set[socket.socket]()
        self._ended = threading.Condition()
        new = self.path.with_name(f".{self.path.name}")  # nobody meets one that does not listen
        try:
            new.unlink(missing_ok=True)
            with _address(new) as address:
                super().__init__(address, _Connection)
            new.chmod(0o600)
            os.replace(new, self.path)
            self._inode = self.path.stat().st_ino
        except OSError as error:
            raise _unusable(self.path, error) from error

    def start(self) -> None:
        """Serve in a thread, until :meth:`close`."""
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        """End it, once :meth:`start` was called, and take the socket away if it is its own.

        Requests that came before are answered, for which it waits a second.
        """
        self.shutdown()
        self.server_close()
        with self._ended:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)
            self._ended.wait_for(lambda: not self._connections, 1.0)
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def reply(self, content: bytes) -> bytes:
        """The frame that answers what is in one."""
        try:
            return to_frame(*self.answer(*from_frame(content)))
        except Exception as error:
            return to_frame(as_error(error))

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection; where the process has no handle for it, after a while."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.1)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, unless there are too many."""
        with self._ended:
            free = len(self._connections) < self._most_connections
            if free:
                self._connections.add(request)
        if free:
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # no more threads
                self.shutdown_request(request)
            return
        busy = SiteError(
            found="too many connections to an agent",
            expected="fewer at once",
            fix="End some of the programs that are connected, and ask again.",
        )
        with contextlib.suppress(OSError):
            request.settimeout(1e-3)
            request.sendall(to_frame(as_error(busy)))
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """End a connection, and give its place back."""
        super().shutdown_request(request)
        with self._ended:
            self._connections.discard(request)
            self._ended.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is no news."""


class _Connection(socketserver.BaseRequestHandler):
    """Answers the frames of a connection, until it ends or breaks a rule."""

    def handle(self) -> None:
        server, connection = self.server, self.request
        assert isinstance(server, Server)
        with contextlib.suppress(OSError, EOFError):
            while True:
                try:
                    content = read_frame(connection, server.most, wait=IDLE, whole=server.whole)
                except Refusal as refusal:  # where the next frame begins is not known
                    connection.sendall(to_frame(as_error(refusal)))
                    return
                if content is None:
                    return
                frame = server.reply(content)
                connection.settimeout(server.whole)
                connection.sendall(frame)


# --- clients -------------------------------------------------------------------------------------


class Client:
    """A connection to an agent, made when something is asked first. For one thread at a time."""

    def __init__(self, path: Path | str, *, timeout: float = 10.0, most: int = LARGEST):
        self.path, self.timeout, self.most = Path(path), timeout, most
        self._connection: socket.socket | None = None

    def ask(self, do: str, body: bytes = b"", **arguments: Any) -> tuple[dict[str, Any], bytes]:
        """The head and the body that answer a request.

        A connection that was kept, and that the agent has ended since, is made anew.

        Args:
            do: What is asked for.
            body: What goes with it, such as a letter.
            arguments: What else the head of the request says; ``wait`` are seconds, beside the
                client's ``timeout``, that the agent may take to answer.

        Raises:
            Absent: if nobody listens.
            SiteError: if the agent does not answer in time, or ends the connection.
            PosterityError: what the agent says is wrong, of the kind that it names.
        """
        frame, kept = to_frame({"do": do, **arguments}, body), self._connection is not None
        wait = float(arguments.get("wait") or 0.0)
        try:
            try:
                content = self._asked(frame, wait)
            except (ConnectionError, EOFError):
                self.close()
                if not kept:
                    raise
                content = self._asked(frame, wait)
        except (OSError, EOFError) as error:
            self.close()
            raise self._unanswered(error) from error
        try:
            head, body = from_frame(content)
        except Refusal:
            self.close()
            raise
        if "error" in head:
            raise of_error(head["error"])
        return head, body

    def deliver(self, letter: bytes) -> None:
        """Hand over a sealed letter; it is acknowledged by a letter of its own, later."""
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
        """Letters that are due, each with its receiver, for a courier that carries them there.

        Args:
            wait: Seconds that the agent may wait for one.
            most: How many at most.
            encrypted: Whether the courier encrypts them so that only the receiver can read them.
            to: Receivers, all by default.
            again: Whether letters that others took and did not bring are due at once.
        """
        options = {"most": most, "encrypted": encrypted, "to": to and list(to), "again": again}
        head, body = self.ask("collect", wait=wait, **options)
        letters, start = [], 0
        try:
            for receiver, length in head["letters"]:
                letters.append((str(receiver), body[start : start + length]))
                start += length
        except (KeyError, TypeError, ValueError) as error:
            raise of_error(None) from error
        return letters

    def connect(self) -> None:
        """Make the connection, unless there is one; Absent if nobody listens."""
        if self._connection is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(self.timeout)
            try:
                with _address(self.path) as address:
                    connection.connect(address)
            except OSError as error:
                connection.close()
                raise Absent(
                    found=f"no agent at {str(self.path)!r} ({error.strerror or error})",
                    expected="one that runs",
                    fix="Start it by `posterity site run`.",
                ) from error
            self._connection = connection

    def close(self) -> None:
        """End the connection; the next request makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _asked(self, frame: bytes, wait: float) -> bytes:
        self.connect()
        assert self._connection is not None
        self._connection.settimeout(self.timeout)
        with contextlib.suppress(BrokenPipeError):  # it may have said why before it ended
            self._connection.sendall(frame)
        content = read_frame(self._connection, self.most, wait=self.timeout + wait)
        if content is None:
            raise EOFError("the agent ended the connection")
        return content

    def _unanswered(self, error: OSError | EOFError) -> SiteError:
        return SiteError(
            found=f"no answer of the agent at {str(self.path)!r} ({error or 'it ended'})",
            expected=f"one within {self.timeout:g} seconds",
            fix="See its log; if it hangs, end it and start it again: what is durable stays.",
        )


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """A name of a socket that is short enough for the system, whatever folder it lies in."""
    if len(os.fsencode(path)) <= _PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _unusable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        found=f"socket {str(path)!r}, which cannot be made ({error.strerror or error})",
        expected="a folder in which sockets can be made",
        fix="Mend its permissions, or keep the site in a folder of a local disk.",
    )
