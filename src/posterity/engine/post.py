"""Letters that wait to be handed over: when each is due, and who may take it."""

import dataclasses
import random
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable

from posterity.engine.store import Outgoing

FIRST, LONGEST = 1.0, 60.0
"""Seconds after which a letter that is not acknowledged is handed over again: they double from the
first to the longest, and up to half of them is added at random, so that sites do not go in step."""
MOST_ONCE = 4096


@dataclasses.dataclass
class _Due:
    time: float
    rest: float = FIRST


class Post:
    """The letters of a site that are to be handed over, to threads of its own or to couriers.

    Those that are kept, since they wait for their acknowledgement, are due again and again; others,
    such as acknowledgements, once. Nothing of it has to be durable: the store has what is kept.
    """

    def __init__(self) -> None:
        self._kept: dict[Outgoing, _Due] = {}
        self._once: dict[Outgoing, None] = {}
        self._changed, self._open, self._random = threading.Condition(), True, random.Random()

    def update(self, kept: Iterable[Outgoing], once: Iterable[Outgoing] = ()) -> None:
        """The letters that are kept now, of which new ones are due; and some that are due once."""
        now = time.monotonic()
        with self._changed:
            self._kept = {each: self._kept.get(each) or _Due(now) for each in kept}
            for letter in once:
                if letter not in self._kept:
                    self._once[letter] = None
            while len(self._once) > MOST_ONCE:  # their senders will ask for them again
                del self._once[next(iter(self._once))]
            self._changed.notify_all()

    def collect(
        self, wait: float, *, most: int, size: int, to: Collection[str] | None = None
    ) -> list[Outgoing]:
        """Letters that are due, for which it waits some seconds; they then rest.

        Args:
            wait: Seconds after which it gives up, and returns none.
            most: How many at most.
            size: Bytes of all of them at most; the first may be larger.
            to: Receivers, all by default.
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
            if (state := self._kept.get(letter)) is not None:
                state.time = now + state.rest * self._random.uniform(1.0, 1.5)
                state.rest = min(2 * state.rest, LONGEST)
        return taken

    def unreached(self, letters: Iterable[Outgoing]) -> None:
        """Letters that were not handed over, because nobody listened: soon due again."""
        with self._changed:
            for letter in letters:
                if letter in self._kept:
                    wait = FIRST * self._random.uniform(0.5, 1.0)
                    self._kept[letter] = _Due(time.monotonic() + wait)

    def heard(self, senders: Collection[str] | None) -> None:
        """Some members, or all, can be reached: letters to them that rest for long are due."""
        with self._changed:
            for letter, state in self._kept.items():
                if state.rest > 4 * FIRST and (senders is None or letter.receiver in senders):
                    state.time, state.rest = time.monotonic(), FIRST
            self._changed.notify_all()

    def waiting(self) -> dict[str, int]:
        """The number of letters that wait for their acknowledgement, by receiver."""
        with self._changed:
            return dict(sorted(Counter(letter.receiver for letter in self._kept).items()))

    def close(self) -> None:
        """Hand over nothing any more; who waits is told so."""
        with self._changed:
            self._open = False
            self._kept, self._once = {}, {}
            self._changed.notify_all()
