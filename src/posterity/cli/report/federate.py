"""How a federation went, site by site."""

from typing import Any

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from posterity.cli.failures import printable


def text(data: dict[str, Any]) -> RenderableType:
    """A row a site."""
    table = Table("site", "records", "updates", "failures", "residual", box=SIMPLE)
    for site, told in data["sites"].items():
        residual = "" if told["residual"] is None else f"{told['residual']:.1e}"
        counts = (str(told[name]) for name in ("records", "updates", "failures"))
        table.add_row(printable(site), *counts, residual)
    went_on = f", from {data['resumed']} on" if data["resumed"] else ""
    status = data["status"]
    left = "an unknown amount" if status["left"] is None else f"{status['left']:.2g} nats"
    told = f"The posterior has {status['state']}: {left} left to change, {status['tolerance']:.2g} "
    lines = [told + "allowed.", *map(printable, status["reasons"])]
    lines += [data["warning"]] if data["warning"] else []
    settled = Text("\n".join(lines), style="" if status["state"] == "converged" else "red")
    headline = f"Federated {len(data['sites'])} sites: {data['steps']} {data['unit']}{went_on}."
    rule = f"Each site: {data['rule']}."
    wrote = f"Wrote the ledger to {printable(data['output'])}"
    return Group(headline, rule, table, settled, wrote)
