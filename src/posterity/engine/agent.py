"""An agent: a machine and its store, where what is durable comes before what is sent."""

import contextlib
import functools
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from posterity.engine.machine import Machine
from posterity.engine.memory import Memory, Step, failed, line, refused
from posterity.engine.messages import Handover, digest_of
from posterity.engine.refusal import Refusal
from posterity.engine.store import Change, Outgoing, Store
from posterity.files import write_file

MOST_FILES, MOST_FILE_BYTES = 256, 2**30
"""Files in the inbox of one member's, and their bytes, beyond which none is taken."""


class Agent:
    """A site that runs. It may be called from several threads; errors are those of its store."""

    def __init__(self, machine: Machine, store: Store):
        self.machine, self.store, self._lock = machine, store, threading.Lock()
        self.memory: Memory = machine.load(store.state, store.outbox)

    def receive(self, *letters: bytes) -> tuple[Outgoing, ...]:
        """Take letters in, all in one write to the disk; returns what is to be sent after it.

        One at which the machine fails, as nobody meant it to, is as if it had been lost.
        """
        return self._made(functools.partial(self._received, letter) for letter in letters)

    def _received(self, letter: bytes, memory: Memory) -> Step:
        try:
            step = self.machine.receive(memory, letter)
            for sender, handover in step.files:
                self._keep(sender, handover)
            return step
        except Refusal as refusal:
            return refused(memory, refusal, digest_of(letter))
        except Exception as error:
            return failed(memory, error, digest=digest_of(letter))

    def command(self, command: Callable[[Memory], Step]) -> tuple[Outgoing, ...]:
        """Carry out a command of the machine; returns what is to be sent after it; a Refusal if the
        state of the site forbids it.
        """
        return self._made([command])

    def resend(self) -> tuple[Outgoing, ...]:
        """The letters that are not acknowledged yet."""
        return self.machine.resend(self.memory)

    def _made(self, steps: Iterable[Callable[[Memory], Step]]) -> tuple[Outgoing, ...]:
        with self._lock:
            whole = Step(self.memory)
            for step in steps:
                whole = whole.then(step(whole.memory))
            memory, entries = whole.memory, (*whole.entries, *self._left_by(whole))
            if memory is not self.memory or entries:
                same = memory.is_like(self.memory)
                state = self.store.state if same else memory.to_bytes()
                self.store.commit(Change(state, memory.rows, entries, whole.erase))
            self.memory = memory
            return whole.sent

    def _left_by(self, whole: Step) -> Iterator[bytes]:
        """Lines of the log on files of members who were forgotten: people see to them."""
        with contextlib.suppress(OSError):  # nothing about files keeps a forgetting from the disk
            for site in sorted(whole.memory.gone - self.memory.gone if whole.erase else ()):
                if names := sorted(self._kept(site)):
                    yield line("files stay", of=site, names=names)

    def _keep(self, sender: str, handover: Handover) -> None:
        name, content = handover.name, handover.content
        others = [size for other, size in self._kept(sender).items() if other != name]
        if len(others) >= MOST_FILES or sum(others) + len(content) > MOST_FILE_BYTES:
            found = f"file {name!r} after {len(others)} of {sender!r}, {sum(others)} bytes"
            expected = f"at most {MOST_FILES} of a member, {MOST_FILE_BYTES} bytes"
            fix = "Move files out of its folder in the inbox: it is sent again."
            raise Refusal.of(found, expected, "size", fix)
        folder = self.inbox(sender)
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / name, content)

    def _kept(self, sender: str) -> dict[str, int]:
        folder = self.inbox(sender)
        if not folder.is_dir():
            return {}
        return {each.name: each.stat().st_size for each in folder.iterdir() if each.is_file()}

    def inbox(self, sender: str) -> Path:
        """The folder of what a member hands over, ``inbox/SENDER`` beside the store.

        Its name is written as in a URL, and so is a dot at the beginning.
        """
        quoted = urllib.parse.quote(sender, safe="")
        quoted = "%2E" + quoted[1:] if quoted.startswith(".") else quoted
        return self.store.path.parent / "inbox" / quoted
