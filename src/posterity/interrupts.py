"""Ctrl-C and SIGTERM that wait until what is being done is done.

Python raises KeyboardInterrupt wherever it happens to be: in a finaliser or amid an import it is
lost, in a callback of compiled code it may end the process. Here a signal is noted, and acted upon
where it is safe.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(SystemExit):
    """SIGTERM came, and what there was is saved; the exit code is 143."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


def of_signal(number: int) -> BaseException:
    """The exception that a signal asks for: KeyboardInterrupt or Terminated."""
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated()


def leave(number: int, frame: Any) -> None:
    """A handler for as long as a program but imports: end, since an exception may be lost there."""
    os._exit(128 + number)


def heed() -> None:
    """Restore Ctrl-C: from here on it raises KeyboardInterrupt, where it was :func:`leave` that
    heeded it.
    """
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Interrupts:
    """The signals that came, and what to do about them."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self.rescue: Callable[[], None] | None = None
        """Saves what there is; None until there is something to lose."""

    @contextlib.contextmanager
    def rescued_by(self, save: Callable[[], None]) -> Iterator[None]:
        """A block of which ``save`` keeps what there is, however it ends."""
        self.rescue = save
        try:
            yield
        finally:
            save()
            self.rescue = lambda: None

    def check(self) -> None:
        """Raise what the first signal asks for, if one came; a KeyboardInterrupt or Terminated for
        Ctrl-C, for SIGTERM.
        """
        if self.came:
            raise of_signal(self.came[0])


Watch = Callable[[Interrupts, int, int], None]
"""A function of a signal's number and how many have come, which acts on it."""
_outermost: Interrupts | None = None


@contextlib.contextmanager
def deferred(watch: Watch | None = None) -> Iterator[Interrupts]:
    """Within, a first Ctrl-C or SIGTERM is noted only; a second one raises at once.

    A handler of Python's runs between two of its own instructions, so not while compiled code does.
    If ``watch`` is given, that is called instead, for each signal and in a thread of its own,
    whatever else is running.

    Handlers that others have set stay. Outside of the main thread there are no signals to defer,
    and a block within another shares its interrupts.
    """
    global _outermost
    if threading.current_thread() is not threading.main_thread():
        yield Interrupts()
        return
    if _outermost is not None:
        yield _outermost
        return
    interrupts = Interrupts()

    def note(number: int, frame: Any) -> None:
        interrupts.came.append(number)
        if len(interrupts.came) > 1 and watch is None:
            interrupts.check()

    with contextlib.ExitStack() as undo:
        if watch is not None:
            undo.enter_context(_watched(interrupts, watch))
        for number in SIGNALS:
            if (before := signal.getsignal(number)) in (signal.default_int_handler, signal.SIG_DFL):
                undo.callback(signal.signal, number, before)
                signal.signal(number, note)
        _outermost = interrupts
        try:
            yield interrupts
        finally:
            _outermost = None


@contextlib.contextmanager
def _watched(interrupts: Interrupts, watch: Watch) -> Iterator[None]:
    """A thread that reads the number of each signal from a pipe, as it comes."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def listen() -> None:
        count = 0
        while number := os.read(reader, 1):
            if number[0] in SIGNALS:
                count += 1
                watch(interrupts, number[0], count)
        os.close(reader)

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=listen, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
