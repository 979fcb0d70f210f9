"""Progress of a long call, shown: a bar for people, lines of JSON for logs, nothing in a pipe.

Every verb takes a ``progress=``, which it calls with a :class:`~posterity.status.Progress`::

    with posterity.progress.shown("Federating") as progress:
        run = posterity.federate(sites, model, prior, progress=progress)

A bar of tqdm, that of its notebook too, is moved by :func:`moving`.
"""

import contextlib
import html
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

from posterity.status import Progress, ProgressCallback

Style = Literal["auto", "bar", "json", "none"]
WIDTH, TITLE = 16, 20
"""Characters of a bar in a terminal, and at most of its title, so that times fit beside them."""
EVERY = 1.0
"""Seconds between two lines of a log, at least."""


class Pace:
    """The rate of a call, by the clock, from its first report on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.begun = clock, clock()
        self.first: tuple[int, float] | None = None

    def measured(self, now: Progress) -> dict[str, Any]:
        """The report as data: ``rate`` is in steps a second, ``seconds_left`` those of the steps
        that there will be at most; None is what is not known.
        """
        time = self.clock()
        # A first report may be far into a run that goes on; a lower one is of another stage.
        if self.first is None or now.step < self.first[0]:
            self.first = now.step, time
        made, spent = now.step - self.first[0], time - self.first[1]
        rate = made / spent if made > 0 and spent > 0 else math.nan
        ahead = math.nan if now.steps is None else max(now.steps - now.step, 0)
        left = 0.0 if ahead == 0 else ahead / rate if rate > 0 else math.nan
        known = {"rate": rate, "seconds_left": left, "objective": now.objective, "left": now.left}
        finite = {name: own if math.isfinite(own) else None for name, own in known.items()}
        made = {"step": now.step, "steps": now.steps, "seconds": round(time - self.begun, 3)}
        return made | finite


def sentence(known: dict[str, Any]) -> str:
    """A report in words.

    >>> sentence({"step": 3, "steps": 12, "rate": 0.5, "seconds_left": 18.0, "left": None})
    '3 of 12, 0.5 a second, at most 18 s left'
    """
    parts = [str(known["step"]) + ("" if known["steps"] is None else f" of {known['steps']}")]
    if (rate := known["rate"]) is not None:
        parts.append(f"{rate:.3g} a second" if rate >= 0.1 else f"{1 / rate:.3g} s each")
    if (left := known["seconds_left"]) is not None and known["step"] != known["steps"]:
        minutes, hours = left / 60, left / 3600
        time = f"{left:.0f} s" if left < 100 else f"{minutes:.0f} min"
        parts.append(f"at most {time if minutes < 100 else f'{hours:.1f} h'} left")
    if known["left"] is not None:
        parts.append(f"{known['left']:.2g} nats to go")
    return ", ".join(parts)


@contextlib.contextmanager
def shown(title: str, style: Style = "auto") -> Iterator[ProgressCallback]:
    """Show reports on standard error while the block runs.

    Args:
        title: what is going on.
        style: ``"bar"`` draws one, by rich in a terminal and by HTML in a notebook; ``"json"``
            writes a line when it begins, each second at most, and when it ends or is stopped;
            ``"none"`` nothing. ``"auto"`` draws a bar where someone looks.

    >>> with shown("Counting", "none") as progress:
    ...     _ = progress(Progress(1, 2))
    """
    pace = Pace()
    notebook = _in_notebook()
    if style == "auto":
        style = "bar" if notebook or (sys.stderr and sys.stderr.isatty()) else "none"
    if style == "none" or not (notebook or sys.stderr):  # which is None where it is closed
        yield lambda now: None
        return
    if style == "json" or notebook:
        yield from (_logged if style == "json" else _displayed)(title, pace)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    # Of a fixed width: a narrow terminal would leave nothing of it beside the text.
    bar_of = BarColumn(WIDTH, table_column=Column(width=WIDTH))
    columns = bar_of, TextColumn("{task.description}", markup=False)
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        title = title if len(title) <= TITLE else f"{title[: TITLE - 1]}…"
        task = bar.add_task(title, total=None)

        def move(now: Progress) -> None:
            text = f"{title}: {sentence(pace.measured(now))}"
            bar.update(task, completed=now.step, total=now.steps, description=text)

        yield move


def _in_notebook() -> bool:
    """True if cells of a notebook are run, which is where IPython has a kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


def _displayed(title: str, pace: Pace) -> Iterator[ProgressCallback]:
    """A bar below a cell, as HTML and as text, drawn anew by each report."""
    from IPython.display import display

    def drawn(text: str, now: Progress) -> dict[str, str]:
        most = "" if now.steps is None else f' value="{now.step}" max="{now.steps}"'
        return {"text/plain": text, "text/html": f"<progress{most}></progress> {html.escape(text)}"}

    handle: Any = display(drawn(title, Progress(0)), raw=True, display_id=True)
    yield lambda now: handle.update(
        drawn(f"{title}: {sentence(pace.measured(now))}", now), raw=True
    )


def _logged(title: str, pace: Pace) -> Iterator[ProgressCallback]:
    last: dict[str, Any] = {}
    written = -math.inf

    def write(event: str) -> None:
        line = {"event": event, "time": round(time.time(), 3), "title": title, **last}
        with contextlib.suppress(BrokenPipeError):  # a log that nobody reads stops no work
            print(json.dumps(line, allow_nan=False), file=sys.stderr, flush=True)

    def log(now: Progress) -> None:
        nonlocal last, written
        last = pace.measured(now)
        if pace.clock() - written >= EVERY:
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
    """A callback that moves a bar of tqdm: ``progress=moving(tqdm.auto.tqdm())``.

    The bar is any object with ``n``, ``total``, ``update`` and ``set_postfix``.
    """

    def move(now: Progress) -> None:
        bar.total = now.steps
        if math.isfinite(now.left):
            bar.set_postfix(nats_left=f"{now.left:.2g}", refresh=False)
        bar.update(now.step - bar.n)

    return move
