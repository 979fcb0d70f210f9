"""Letters between sites in one process, on a simulated clock, with whatever can happen to them."""

import dataclasses
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable

import numpy as np

from posterity.engine.store import Outgoing


@dataclasses.dataclass(frozen=True)
class Faults:
    """Probabilities, for each letter, of what may happen to it, and its mean time on the way.

    One of ``stragglers`` takes ten times as long. What is ``misdelivered`` reaches another site.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    flip: float = 0.0
    misdeliver: float = 0.0
    straggle: float = 0.0
    delay: float = 1.0


class Network:
    """Letters on their way between ``sites``; later ones may overtake earlier ones.

    ``now`` is the time, ``faults`` what happens to letters that are sent from now on. Who is on
    different sides of a partition does not hear of each other. ``count`` tells what happened.
    """

    def __init__(self, sites: Iterable[str], faults: Faults | None = None, *, seed: int = 0):
        self.sites, self.faults = tuple(sites), faults or Faults()
        self.now: float | int = 0.0
        self.count, self.partition = Counter[str](), frozenset[str]()
        self._rng, self._numbers = np.random.default_rng(seed), itertools.count()
        self._waiting: list[tuple[float, int, str, bytes]] = []

    def send(self, sender: str, messages: Iterable[Outgoing]) -> None:
        for receiver, content in messages:
            copies = 0 if self._happens("drop") else 2 if self._happens("duplicate") else 1
            if (sender in self.partition) != (receiver in self.partition):
                copies, self.count["parted"] = 0, self.count["parted"] + 1
            for _ in range(copies):
                longer = 10.0 if self._happens("straggle") else 1.0
                time = self.now + longer * self._rng.exponential(self.faults.delay)
                there = receiver
                if self._happens("misdeliver"):
                    there = str(self._rng.choice(self.sites))
                altered = self._flipped(content) if self._happens("flip") else content
                self.put(there, altered, time)

    def put(self, receiver: str, content: bytes, time: float | int) -> None:
        """Let a letter arrive at a time, whoever wrote it."""
        heapq.heappush(self._waiting, (time, next(self._numbers), receiver, content))

    def arrived(self, now: float | int) -> list[Outgoing]:
        """The letters that have arrived by then, in the order in which they did."""
        self.now, arrived = now, []
        while self._waiting and self._waiting[0][0] <= now:
            _, _, receiver, content = heapq.heappop(self._waiting)
            arrived.append(Outgoing(receiver, content))
        return arrived

    def _happens(self, fault: str) -> bool:
        happens = self._rng.random() < getattr(self.faults, fault)
        self.count[fault] += happens
        return bool(happens)

    def _flipped(self, content: bytes) -> bytes:
        place = int(self._rng.integers(8 * len(content)))
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        return bytes(changed)
