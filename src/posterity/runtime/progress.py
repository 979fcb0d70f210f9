"""Display of the progress of long calls: a bar, lines of JSON for logs, or nothing in a pipe.

Every verb takes a ``progress=``, which it calls with a :class:`~posterity.status.Progress`::

    with posterity.runtime.progress.shown("Federating") as progress:
        run = posterity.federate(sites, model, prior, progress=progress)

:func:`moving` updates a bar of tqdm, also in a notebook.
"""

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

from posterity.status import Progress, ProgressCallback

Style = Literal["auto", "bar", "json", "none"]


class Pace:
    """The rate of a call since its first report."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.begun = clock, clock()
        self.first: tuple[int, float] | None = None

    def measured(self, now: Progress) -> dict[str, Any]:
        """Return the report as data: ``rate`` is in steps per second, ``seconds_left`` an upper
        estimate from the largest number of steps; unknown values are None.
        """
        time = self.clock()
        # A resumed run starts at a higher step; a lower step than before starts a new stage.
        if self.first is None or now.step < self.first[0]:
            self.first = now.step, time
        made = now.step - self.first[0]
        spent = time - self.first[1]
        rate = made / spent if made > 0 and spent > 0 else math.nan
        ahead = math.nan if now.steps is None else max(now.steps - now.step, 0)
        left = 0.0 if ahead == 0 else ahead / rate if rate > 0 else math.nan
        known = {"rate": rate, "seconds_left": left, "objective": now.objective, "left": now.left}
        finite = {name: own if math.isfinite(own) else None for name, own in known.items()}
        made = {"step": now.step, "steps": now.steps, "seconds": round(time - self.begun, 3)}
        return made | finite


def sentence(known: dict[str, Any]) -> str:
    """Return a report in words.

    >>> sentence({"step": 3, "steps": 12, "rate": 0.5, "seconds_left": 18.0, "left": None})
    '3 of 12, 0.5 a second, at most 18 s left'
    """
    parts = [str(known["step"]) + ("" if known["steps"] is None else f" of {known['steps']}")]
    if known["left"] is not None:  # first, as a narrow terminal cuts the end
        parts.append(f"{known['left']:.2g} nats to go")
    rate = known["rate"]
    if rate is not None:
        parts.append(f"{rate:.3g} a second" if rate >= 0.1 else f"{1 / rate:.3g} s each")
    left = known["seconds_left"]
    if left is not None and known["step"] != known["steps"]:
        minutes = left / 60
        hours = left / 3600
        time = f"{left:.0f} s" if left < 100 else f"{minutes:.0f} min"
        parts.append(f"at most {time if minutes < 100 else f'{hours:.1f} h'} left")
    return ", ".join(parts)


@contextlib.contextmanager
def shown(
    title: str, style: Style = "auto", *, width: int = 16, longest: int = 20, every: float = 1.0
) -> Iterator[ProgressCallback]:
    """Show reports on standard error while the block runs.

    Args:
        title: name of the task.
        style: ``"bar"`` draws a bar by rich. ``"json"`` writes lines at the start, once in a while,
            and at the end or an interruption. ``"none"`` shows nothing. ``"auto"``: a bar in a
            terminal, else nothing.
        width: characters of a bar in a terminal.
        longest: largest number of characters of its title.
        every: least number of seconds between two lines of a log.

    >>> with shown("Counting", "none") as progress:
    ...     _ = progress(Progress(1, 2))
    """
    pace = Pace()
    if style == "auto":
        style = "bar" if sys.stderr and sys.stderr.isatty() else "none"
    if style == "none" or not sys.stderr:  # which is None if it is closed
        yield lambda now: None
        return
    if style == "json":
        yield from _logged(title, pace, every)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    # A fixed width, as a narrow terminal would leave no space for it.
    bar_of = BarColumn(width, table_column=Column(width=width))
    columns = bar_of, TextColumn("{task.description}", markup=False)
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        title = title if len(title) <= longest else f"{title[: longest - 1]}…"
        task = bar.add_task(title, total=None)

        def move(now: Progress) -> None:
            text = f"{title}: {sentence(pace.measured(now))}"
            bar.update(task, completed=now.step, total=now.steps, description=text)

        yield move


def _logged(title: str, pace: Pace, every: float) -> Iterator[ProgressCallback]:
    last: dict[str, Any] = {}
    written = -math.inf

    def write(event: str) -> None:
        line = {"event": event, "time": round(time.time(), 3), "title": title, **last}
        with contextlib.suppress(BrokenPipeError):  # a closed log does not stop the computation
            print(json.dumps(line, allow_nan=False), file=sys.stderr, flush=True)

    def log(now: Progress) -> None:
        nonlocal last, written
        last = pace.measured(now)
        if pace.clock() - written >= every:
            written = pace.clock()
            write("progress")

    write("begin")
    try:
        yield log
    except BaseException:
        write("stopped")
        raise
    write("end")


def moving(bar: Any) -> ProgressCallback:
    """Return a callback that updates a bar of tqdm: ``progress=moving(tqdm.auto.tqdm())``.

    The bar is any object with ``n``, ``total``, ``update`` and ``set_postfix``.
    """

    def move(now: Progress) -> None:
        bar.total = now.steps
        if math.isfinite(now.left):
            bar.set_postfix(nats_left=f"{now.left:.2g}", refresh=False)
        bar.update(now.step - bar.n)

    return move
