"""Deferred handling of Ctrl-C and SIGTERM.

Python raises KeyboardInterrupt at any point: in a finaliser or during an import it is lost, in a
callback of compiled code it may end the process. Here a signal is recorded, and handled at points
where this is safe.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(SystemExit):
    """The exception of SIGTERM, raised after the state was saved; the exit code is 143."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


def of_signal(number: int) -> BaseException:
    """Return the exception for a signal: KeyboardInterrupt or Terminated."""
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated()


def leave(number: int, frame: Any) -> None:
    """Signal handler during imports: end the process, since an exception may be lost there."""
    os._exit(128 + number)


def heed() -> None:
    """Restore KeyboardInterrupt as the effect of Ctrl-C, if :func:`leave` is its handler."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Interrupts:
    """The signals received so far, and the function that saves the state."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self.rescue: Callable[[], None] | None = None
        """Function that saves the state; None while there is nothing to save."""

    @contextlib.contextmanager
    def rescued_by(self, save: Callable[[], None]) -> Iterator[None]:
        """Return a context that calls ``save`` at its end, also after an error."""
        self.rescue = save
        try:
            yield
        finally:
            save()
            self.rescue = lambda: None

    def check(self) -> None:
        """Raise the exception of the first signal, if any: KeyboardInterrupt for Ctrl-C, Terminated
        for SIGTERM.
        """
        if self.came:
            raise of_signal(self.came[0])


Watch = Callable[[Interrupts, int, int], None]
"""A function of the interrupts, a signal's number and the number of signals so far."""
_outermost: Interrupts | None = None


@contextlib.contextmanager
def deferred(watch: Watch | None = None) -> Iterator[Interrupts]:
    """Return a context in which a first Ctrl-C or SIGTERM is only recorded; a second one raises.

    Python's signal handlers run between two Python instructions, and so not during compiled code.
    If ``watch`` is given, it is called instead for each signal, in a separate thread, also during
    compiled code.

    Signal handlers that other code has set remain. Outside of the main thread no signals are
    deferred. A nested context shares the interrupts of the outer one.
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
            before = signal.getsignal(number)
            if before in (signal.default_int_handler, signal.SIG_DFL):
                undo.callback(signal.signal, number, before)
                signal.signal(number, note)
        _outermost = interrupts
        try:
            yield interrupts
        finally:
            _outermost = None


@contextlib.contextmanager
def _watched(interrupts: Interrupts, watch: Watch) -> Iterator[None]:
    """Return a context with a thread that reads the number of each signal from a pipe."""
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
