"""A running site: its agent, the socket at which it is reached, and its incoming and outgoing
letters.

Letters that have arrived wait in an inbox, and all of them are processed in one write to the disk.
Letters that are due go to the sockets of other sites, if these are known; else couriers collect
them. Durable state is only in the store, so the process may be killed and restarted at any time.
"""

import contextlib
import dataclasses
import functools
import inspect
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from posterity.arguments import COUNT, FLAG, Constraint
from posterity.artifact.artifact import to_bytes
from posterity.engine.agent import Agent, Post
from posterity.engine.log import key_name
from posterity.engine.memory import RESTING, TOKEN, Memory, Step, failed
from posterity.engine.messages import SCHEMA
from posterity.engine.notices import posterior_bytes
from posterity.engine.refusal import Refusal
from posterity.engine.store import Outgoing
from posterity.engine.transports.unix import HEAD_BYTES, Absent, Client, Head, Server
from posterity.errors import PosterityError, SiteError, UsageError
from posterity.version import __version__

MATTERS = ("key changed", "rests", "forgotten")
"""Events that cause a checkpoint of the log at once."""
MOST_WAITING = 4
"""Maximum total size of the letters in an inbox, in messages of the largest size."""
_PLACE = Constraint("a place in the log", lambda n: type(n) is int and 0 <= n < 2**62)
_SECONDS = Constraint("seconds, at most 600", lambda s: type(s) in (int, float) and 0 <= s <= 600)
_NAMES = Constraint(
    "a list of names", lambda v: isinstance(v, list) and all(isinstance(n, str) for n in v)
)
Event = dict[str, Any]


class Running:
    """A running site. It answers requests also before :meth:`run` is called.

    ``sockets`` are those of other sites, by name. Letters to other sites wait for couriers, which
    must encrypt them from end to end if ``encrypted``. ``tell`` is called with each event. The
    inbox, all of which is processed in one write to the disk, holds at most ``letters`` letters; a
    request waits ``patience`` seconds if it is full, or for the agent of another site. Every
    ``anew`` seconds a log that grows has a checkpoint.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        sockets: Mapping[str, Path] | None = None,
        encrypted: bool = True,
        tell: Callable[[Event], None] | None = None,
        letters: int = 256,
        patience: float = 30.0,
        anew: float = 60.0,
    ):
        self.letters = letters
        self.patience = patience
        self.anew = anew
        self.agent, self.encrypted, self.post = agent, encrypted, Post()
        self._checkpoint = (0, time.monotonic())
        self.sockets = dict(sockets or {})
        self.tell = tell or (lambda event: None)
        self._largest = agent.machine.terms.limits.bytes
        self._started = None
        self._key = agent.machine.present_key
        self._waits, self._inbox = dict[str, float](), dict[bytes, None]()
        self._moved, self._after_lock = threading.Condition(), threading.Lock()
        self._stopping = False
        self._error = None
        self._last = Event()
        self._lines = 0
        self._matters = False
        self._read_log(lambda event: None)
        self.post.update(agent.resend())

    # --- running ---------------------------------------------------------------------------------

    def run(self, path: Path) -> None:
        """Serve at the socket ``path`` until :meth:`stop`. Raises an ArtifactError if the store can
        no longer be written, or the socket cannot be made.
        """
        self._started = time.monotonic()
        with Server(path, self.answer, most=self._largest + HEAD_BYTES):
            self._go_on(self._command, self.agent.machine.start)
            for name, socket in {**self.sockets, self.agent.machine.name: path}.items():
                threading.Thread(target=self._carry, args=(name, socket), daemon=True).start()
            while not self._stopping:
                self._go_on(self._take_in)
                self._go_on(self._look_around)
        self.tell({"event": "stopped"})
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop after the present action; may be called from any thread."""
        with self._moved:
            self._stopping = True
            self._moved.notify_all()
        self.post.close()

    def _go_on(self, act: Callable[..., None], *arguments: Any) -> None:
        """Call a function and log any failure; only errors of the store end the site."""
        try:
            act(*arguments)
        except Exception as error:
            if self.agent.store.is_open:
                raised = error  # Python deletes `error` at the end of the clause
                with contextlib.suppress(PosterityError):
                    self._command(lambda memory: failed(memory, raised))

    def _take_in(self) -> None:
        with self._moved:
            self._moved.wait_for(lambda: self._inbox or self._stopping, 1.0)
            letters = list(self._inbox)
            self._inbox = dict[bytes, None]()
            self._moved.notify_all()
        if letters and not self._stopping:
            self._done(self.agent.receive, *letters)

    def _look_around(self) -> None:
        machine = self.agent.machine
        memory = self.agent.memory
        now = time.monotonic()
        size, last = self._checkpoint
        if machine.present_key != self._key:
            self._error = UsageError(
                found=f"the key {self._key} of {machine.name!r}, which was replaced",
                expected=f"{machine.present_key}",
                fix="Start the agent again: it takes the new key, if that is in its folder.",
            )
            self.stop()
        if self._stopping or machine.is_replaced or not memory.highest:
            return
        if self._lines > size and (self._matters or now > last + self.anew):
            tree = self.agent.store.log
            self._checkpoint = (self._lines, now)
            self._matters = False
            self._command(lambda memory: machine.checkpoint(memory, tree))
        awaited = machine.awaited(memory)
        present = {*machine.terms.staying(memory.gone | memory.absent)} - {machine.name}
        waiting = present & (awaited | self.post.waiting().keys())
        self._waits = {name: self._waits.get(name, now) for name in waiting}
        late = {n for n, seconds in self._silences().items() if seconds > machine.terms.deadline}
        silent = late & awaited
        left = machine.terms.staying(memory.gone | memory.absent | silent)
        if silent and len(left) >= (machine.terms.quorum or 0):
            self._command(lambda memory: machine.pass_over(memory, silent))

    def _silences(self) -> dict[str, float]:
        """Return for how many seconds members have been silent for which a letter waits."""
        now = time.monotonic()
        heard = self.agent.heard
        return {n: now - max(since, heard.get(n, since)) for n, since in self._waits.items()}

    def _command(self, command: Callable[[Memory], Step]) -> None:
        self._done(self.agent.command, command)

    def _done(self, act: Callable[..., Iterable[Outgoing]], *arguments: Any) -> None:
        began = time.monotonic()
        try:
            sent = act(*arguments)
        except Exception as error:
            if not self.agent.store.is_open:  # restart from the disk
                self._error = self._error or error
                self.stop()
            raise
        with self._after_lock:
            kept = self.agent.resend()
            self.post.update(kept, set(sent).difference(kept))
            self._read_log(self.tell)
        self.post.heard({name for name, last in self.agent.heard.items() if last >= began})

    def _read_log(self, tell: Callable[[Event], None]) -> None:
        """Report new lines of the log, and keep what the status needs."""
        for line in self.agent.store.entries(self._lines):
            entry = json.loads(line)
            self._lines = self._lines + 1
            if "answer" in entry:
                self._last = entry
            self._matters = self._matters or entry["event"] in MATTERS
            tell(entry)

    def _carry(self, name: str, socket: Path) -> None:
        """Deliver letters to the socket of another site, whenever it can be reached."""
        reached = True
        with Client(socket, timeout=self.patience + 1.0) as client:
            while not self._stopping:
                letters = self.post.collect(60.0, most=16, size=self._largest, to=[name])
                try:
                    for letter in letters:
                        client.deliver(letter.content)
                    if letters and not reached:
                        self.tell({"event": "reached", "site": name})
                    reached = reached or bool(letters)
                except Absent:
                    self.post.unreached(letters)
                    if reached:
                        self.tell({"event": "unreachable", "site": name})
                    reached = False
                except PosterityError as error:
                    client.close()
                    self.tell({"event": "undelivered", "to": name, "found": error.found})

    # --- requests --------------------------------------------------------------------------------

    def answer(self, head: Head, body: bytes) -> tuple[dict[str, Any], bytes]:
        """Answer a request at the socket; errors are sent to the client."""
        asked = {name: value for name, value in head.items() if name != "do"}
        do = str(head.get("do"))
        commands = ("begin", "leave", "forget", "pass_over", "post", "rotate")
        content = (body,) if do == "post" else ()
        requests: dict[str, Callable[..., Any]] = {
            **{command: functools.partial(self._asked, command, *content) for command in commands},
            "deliver": functools.partial(self._deliver, body),
            "collect": self._collect,
            "status": self.status,
            "audit": self._audit,
            "result": self._result,
            "stop": self.stop,
        }
        request = requests.get(do)
        known = request
        if do in commands:
            known = functools.partial(getattr(self.agent.machine, do), self.agent.memory, *content)
        if request is None or not _takes(known, asked):
            raise UsageError(
                found=f"a request to do {do!r} with {sorted(asked)}",
                expected=f"one of {sorted(requests)}, with the arguments that it takes",
                fix="Use the release of posterity that the agent has.",
            )
        answer = request(**asked)
        head, body = answer if isinstance(answer, tuple) else (answer or {}, b"")
        return {"ok": True, **head}, body

    def _deliver(self, letter: bytes) -> None:
        with self._moved:
            roomy = self._moved.wait_for(lambda: self._has_room(letter), self.patience)
            if not roomy or self._stopping:
                full = f"{self.letters} letters that wait"
                raise SiteError(
                    found="an agent that ends" if self._stopping else full,
                    expected="an agent that accepts letters",
                )
            self._inbox[letter] = None  # duplicates are dropped
            self._moved.notify_all()

    def _has_room(self, letter: bytes) -> bool:
        size = len(letter) + sum(map(len, self._inbox))
        fits = len(self._inbox) < self.letters and size <= MOST_WAITING * self._largest
        return fits or letter in self._inbox or self._stopping

    def _collect(
        self,
        *,
        wait: float = 0.0,
        most: int = 16,
        encrypted: bool = False,
        to: list[str] | None = None,
        again: bool = False,
    ) -> tuple[Head, bytes]:
        _SECONDS.check(wait=wait)
        COUNT.check(most=most)
        FLAG.check(encrypted=encrypted, again=again)
        _NAMES.or_none().check(to=to)
        if self.encrypted and not encrypted:
            raise UsageError(
                found="a courier that does not encrypt letters from end to end",
                expected="one that encrypts, since tokens reveal information about records",
                fix="Use an engine that does, or set transport.encrypted = false in site.toml.",
            )
        if again:
            self.post.heard(to)
        letters = self.post.collect(wait, most=most, size=self._largest, to=to)
        lengths = [[letter.receiver, len(letter.content)] for letter in letters]
        return {"letters": lengths}, b"".join(letter.content for letter in letters)

    def _asked(self, do: str, *content: bytes, **arguments: Any) -> Event:
        COUNT.or_none().check(number=arguments.get("number"))
        _NAMES.check(sites=arguments.get("sites", []))
        command = getattr(self.agent.machine, do)
        self._command(lambda memory: command(memory, *content, **arguments))
        return self.status()

    def _result(self) -> tuple[Head, bytes]:
        """Return the newest known posterior, as an artifact, and its certificate."""
        memory = self.agent.memory
        known = memory.certificate or memory.newest("survey")
        course = getattr(memory, "course", None)  # only at a star's server
        if course is not None and (known is None or course.phase != "rest"):
            state = course.run.state
            who = self.agent.machine.name
            about = {"epoch": list(state.epoch), "sequence": state.step, "by": who}
            return {**about, "certificate": None}, to_bytes(state.posterior)
        if known is None:
            found = "no posterior yet"
            expected = "one that all members were asked about"
            fix = "Wait until the token rests, or ask the server; see `posterity site status`."
            raise Refusal.of(found, expected, "order", fix)
        epoch, sequence, *_ = known.version
        certificate = known.text if known is memory.certificate else None
        about = {"epoch": list(epoch), "sequence": sequence, "by": known.site}
        return {**about, "certificate": certificate}, posterior_bytes(known.predicate)

    def _audit(self, *, start: int = 0) -> tuple[Head, bytes]:
        """Return log entries from ``start`` on, as many as fit a message, and the checkpoint."""
        _PLACE.check(start=start)
        store = self.agent.store
        machine = self.agent.machine
        head = store.checkpoint(key_name(machine.terms.name, machine.name), machine.key)
        lines = list[bytes]()
        size = self._largest
        for entry in store.entries(start, min(start + 10_000, head.size)):
            size -= len(entry) + 1
            if lines and size < 0:
                break
            lines.append(entry)
        notices = self.agent.memory.notices.values()
        about = {
            "site": machine.name,
            "terms": machine.terms.digest,
            "checkpoint": head.to_bytes().decode(),
            "rotations": self.agent.memory.rotations,
            "cosignatures": [
                known.predicate["note"]
                for known in notices
                if (known.claim, known.site) == ("cosignature", machine.name)
            ],
        }
        return {**about, "lines": len(lines)}, b"\n".join(lines)

    # --- status ----------------------------------------------------------------------------------

    def status(self) -> Event:
        """Return the known state of the site as plain values."""
        terms = self.agent.machine.terms
        memory = self.agent.memory
        now = time.monotonic()
        others = sorted(terms.members.keys() - memory.gone - {memory.own.name})
        reached = self.agent.machine.status(memory)
        course = getattr(memory, "course", None)
        at: Any = memory.own if course is None else course.run.state
        number = reached.left if math.isfinite(reached.left) else None
        heard = self.agent.heard
        since = {name: now - heard[name] if name in heard else None for name in others}
        return {
            "site": memory.own.name,
            "federation": terms.name,
            "terms": terms.digest,
            "release": __version__,
            "schema": SCHEMA,
            "apart": memory.apart,
            "key": str(self.agent.machine.key.public),
            "rotations": [[r.site, str(r.key), r.signer, r.notice] for r in terms.rotations],
            "server": terms.server,
            "epoch": list(at.epoch),
            "sequence": memory.own.answered if course is None else at.step,
            "counted": memory.own.counted,
            "leaving": memory.own.leaving,
            "highest": memory.highest,
            "forgotten": sorted(memory.gone),
            "absent": sorted(memory.absent),
            "posterior": {**dataclasses.asdict(reached), "left": number},
            "holder": self._holder(),
            "awaited": sorted(self.agent.machine.awaited(memory)),
            "waits": {name: s for name, s in self._silences().items() if s >= self.post.first},
            "heard": since,
            "waiting": self.post.waiting(),
            "refused": dict(memory.refusals),
            "log": len(self.agent.store.log),
            "running": None if self._started is None else now - self._started,
            "process": os.getpid(),
        }

    def _holder(self) -> str | None:
        """Return the token's last known holder: this site until the next acknowledges it."""
        memory = self.agent.memory
        server = self.agent.machine.terms.server
        if server is not None:
            return server
        if memory.outbox.keys() & {TOKEN, RESTING}:
            return memory.own.name
        survey = memory.newest("survey")
        if survey is not None and survey.version >= (memory.own.epoch, memory.own.answered):
            return survey.signer
        return self._last.get("to")


def _takes(function: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether a function has parameters for these arguments, and all that it needs."""
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError:
        return False
    return True
