"""An agent: a machine and its store, where what is durable comes before what is sent."""

import functools
import threading
import urllib.parse
from collections.abc import Callable, Iterable

from posterity.artifact.manifest import as_text
from posterity.engine.machine import Machine
from posterity.engine.memory import File, Memory, Step
from posterity.engine.messages import digest_of
from posterity.engine.store import Change, Outgoing, Store
from posterity.files import write_file


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
            return self.machine.receive(memory, letter)
        except Exception as error:
            entry = {"event": "failed", "error": repr(error)[:200], "digest": digest_of(letter)}
            return Step(memory, entries=(as_text(entry).encode(),))

    def command(self, command: Callable[[Memory], Step]) -> tuple[Outgoing, ...]:
        """Carry out a command of the machine; returns what is to be sent after it.

        Raises:
            Refusal: if the state of the site forbids it.
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
            for file in whole.files:
                self._keep(file)
            memory = whole.memory
            if memory is not self.memory or whole.entries:
                same = memory.is_like(self.memory)
                state = self.store.state if same else memory.to_bytes()
                self.store.commit(Change(state, memory.rows, whole.entries, whole.erase))
            self.memory = memory
            return whole.sent

    def _keep(self, file: File) -> None:
        """Write a file that a member handed over into the folder ``inbox`` beside the store."""
        inbox = self.store.path.parent / "inbox"
        inbox.mkdir(exist_ok=True)
        sender = urllib.parse.quote(file.sender, safe="")
        write_file(inbox / f"{sender}-{file.handover.name}", file.handover.content)
