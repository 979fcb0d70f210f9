"""How a mixture grew, and whether there was more to gain."""

import math
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from posterity.cli.failures import printable
from posterity.cli.report.numbers import MOST_ROWS

STATES = {
    "converged": "has converged",
    "not converged": "has not converged",
}
COLUMNS = ("components", "ELBO", "gain", "α", "λ", "effective", "gradients")


def text(data: dict[str, Any]) -> RenderableType:
    """Of what, a row a component, what was refused, and the status."""
    trace, status = data["trace"], data["status"]
    table = Table(*COLUMNS, box=None, padding=(0, 1, 0, 0))
    for row in trace[-MOST_ROWS:]:
        table.add_row(
            str(row["components"]),
            _estimate(row["elbo"], row["standard_error"]),
            "" if row is trace[0] else _estimate(row["gain"], row["gain_error"]),
            "polish" if row["alpha"] is None else _shown(row["alpha"], ".3f"),
            "" if row["alpha"] is None else _shown(row["lam"], ".2f"),
            _shown(row["effective"], ".2f"),
            f"{row['evaluations']:,}",
        )
    hidden = len(trace) - MOST_ROWS
    parts: list[RenderableType] = [
        f"Pursued the posterior of a {data['model']} by {data['base']} components.",
        *([f"{hidden} rows before these are in --json."] if hidden > 0 else []),
        table,
    ]
    parts += [
        printable(f"Component {refused['number']} was refused: {refused['reason']}.")
        for refused in data["refused"]
    ]
    parts.append(_status(status))
    if data["plot"] is not None:
        parts.append(f"Drew how it grew, in {printable(data['plot'])}")
    count = data["components"]
    what = f"{count} component{'s' if count > 1 else ''}"
    return Group(*parts, f"Wrote the mixture of {what} to {printable(data['output'])}")


def _status(status: dict[str, Any]) -> Text:
    told = f"The mixture {STATES[status['state']]}"
    if status["gap"] is not None:
        told += f": {max(status['gap'], 0.0):.2g} nats from the target by its own draws"
    lines = [f"{told}."]
    lines += [printable(f"{why[:1].upper()}{why[1:]}.") for why in status["reasons"]]
    return Text("\n".join(lines), style="" if status["state"] == "converged" else "red")


def _estimate(value: float | None, error: float | None) -> str:
    """To two digits of the error."""
    places = 4 if not error else min(max(1 - math.floor(math.log10(error)), 0), 6)
    return f"{_shown(value, f'.{places}f')} ± {_shown(error, f'.{places}f')}"


def _shown(value: float | None, shape: str) -> str:
    return "unknown" if value is None else format(value, shape)
