"""An agent, which is a machine with its store, and the queue of letters to be sent. State is made
durable before the letters that follow from it are sent.
"""

import dataclasses
import functools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from posterity.engine.machine import Machine
from posterity.engine.memory import Memory, Step, failed
from posterity.engine.messages import digest_of
from posterity.engine.store import Change, Outgoing, Store


class Agent:
    """A running site. It may be called from several threads; its errors are those of its store.

    ``heard`` has the time, in seconds of :func:`time.monotonic`, of each member's last letter.
    """

    def __init__(self, machine: Machine, store: Store):
        self.store, self._lock = store, threading.Lock()
        self.memory: Memory = machine.load(store.state, store.outbox)
        self.machine = machine.under(self.memory)
        self.heard: dict[str, float] = {}

    def receive(self, *letters: bytes) -> tuple[Outgoing, ...]:
        """Process letters in one write to the disk, and return the letters to send after it. A
        letter at which the machine fails unexpectedly is logged and has no other effect.
        """
        return self._made(functools.partial(self._received, letter) for letter in letters)

    def _received(self, letter: bytes, memory: Memory) -> Step:
        try:
            return self.machine.receive(memory, letter)
        except Exception as error:
            return failed(memory, error, digest=digest_of(letter))

    def command(self, command: Callable[[Memory], Step]) -> tuple[Outgoing, ...]:
        """Carry out a command of the machine, and return the letters to send after it. Raises a
        Refusal if the state of the site forbids the command.
        """
        return self._made([command])

    def resend(self) -> tuple[Outgoing, ...]:
        """Return the letters that are not acknowledged yet."""
        return self.machine.resend(self.memory)

    def _made(self, steps: Iterable[Callable[[Memory], Step]]) -> tuple[Outgoing, ...]:
        with self._lock:
            whole = Step(self.memory)
            for step in steps:
                whole = whole.then(step(whole.memory))
            memory = whole.memory
            if memory is not self.memory or whole.entries:
                same = memory.is_like(self.memory)
                state = self.store.state if same else memory.to_bytes()
                self.store.commit(Change(state, memory.rows, whole.entries, whole.erase))
            self.memory = memory
            self.machine = self.machine.under(memory)
            self.heard = self.heard | dict.fromkeys(whole.heard, time.monotonic())
            return whole.sent


@dataclasses.dataclass
class _Due:
    time: float
    rest: float


class Post:
    """The queue of a site's letters, which its own threads or couriers take to the receivers.

    Kept letters, which wait for an acknowledgement, are due repeatedly; others, such as
    acknowledgements, are due once. The queue is not durable: the store holds the kept letters.

    A kept letter is due again after ``first`` seconds, and each time after twice as long, up to the
    ``longest``; up to half is added at random, so that sites do not synchronise. At most ``once``
    letters are due once: the oldest go first, as their receivers will write again.
    """

    def __init__(self, *, first: float = 1.0, longest: float = 60.0, once: int = 4096) -> None:
        self.first = first
        self.longest = longest
        self.once = once
        self._kept: dict[Outgoing, _Due] = {}
        self._once: dict[Outgoing, None] = {}
        self._changed, self._open, self._random = threading.Condition(), True, random.Random()

    def update(self, kept: Iterable[Outgoing], once: Iterable[Outgoing] = ()) -> None:
        """Set the kept letters, of which new ones are due at once, and add letters due once."""
        now = time.monotonic()
        with self._changed:
            self._kept = {each: self._kept.get(each) or _Due(now, self.first) for each in kept}
            for letter in once:
                if letter not in self._kept:
                    self._once[letter] = None
            while len(self._once) > self.once:
                del self._once[next(iter(self._once))]
            self._changed.notify_all()

    def collect(
        self, wait: float, *, most: int, size: int, to: Collection[str] | None = None
    ) -> list[Outgoing]:
        """Return due letters, and let them rest. ``to`` are the receivers, by default all. Waits up
        to ``wait`` seconds. Returns at most ``most`` letters of together ``size`` bytes, or one
        larger.
        """
        deadline = time.monotonic() + wait
        with self._changed:
            while True:
                now = time.monotonic()
                waiting = [each for each in self._kept if to is None or each.receiver in to]
                due = [each for each in self._once if to is None or each.receiver in to]
                due += [each for each in waiting if self._kept[each].time <= now]
                if due or now >= deadline or not self._open:
                    return self._taken(due, most, size, now)
                soonest = min((self._kept[each].time for each in waiting), default=deadline)
                self._changed.wait(max(min(soonest, deadline) - now, 1e-3))

    def _taken(self, due: list[Outgoing], most: int, size: int, now: float) -> list[Outgoing]:
        taken: list[Outgoing] = []
        for letter in due[:most]:
            size -= len(letter.content)
            if taken and size < 0:
                break
            taken.append(letter)
            if letter in self._once:
                del self._once[letter]
            state = self._kept.get(letter)
            if state is not None:
                state.time = now + state.rest * self._random.uniform(1.0, 1.5)
                state.rest = min(2 * state.rest, self.longest)
        return taken

    def unreached(self, letters: Iterable[Outgoing]) -> None:
        """Make letters due again soon, after they could not be delivered."""
        with self._changed:
            for letter in letters:
                if letter in self._kept:
                    wait = self.first * self._random.uniform(0.5, 1.0)
                    self._kept[letter] = _Due(time.monotonic() + wait, self.first)

    def heard(self, senders: Collection[str] | None) -> None:
        """Make long-resting letters due at once, to members that can now be reached (None: all)."""
        with self._changed:
            for letter, state in self._kept.items():
                if state.rest > 4 * self.first and (senders is None or letter.receiver in senders):
                    state.time = time.monotonic()
                    state.rest = self.first
            self._changed.notify_all()

    def waiting(self) -> dict[str, int]:
        """Return the number of letters that wait for an acknowledgement, by receiver."""
        with self._changed:
            return dict(sorted(Counter(letter.receiver for letter in self._kept).items()))

    def close(self) -> None:
        """Empty the queue, and wake the threads that wait in :meth:`collect`."""
        with self._changed:
            self._open = False
            self._kept = {}
            self._once = {}
            self._changed.notify_all()
