"""The demo's table, and where its files are."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from posterity.cli.failures import printable


def text(data: dict[str, Any]) -> RenderableType:
    """A row a posterior."""
    table = Table(
        title="Handwritten digits: posteriors of separate sites, fused from their files",
        caption=f"On {data['held_out']} held-out images of all ten digits. Fused from files alone, "
        f"the posterior has {data['ratio']:.0%} of the mutual information between components "
        "and digits that a fit to all images pooled has.",
    )
    table.add_column("posterior")
    table.add_column("digits seen")
    for column in ("images", "components", "mutual information", "log density (nats)"):
        table.add_column(column, justify="right")
    for row in data["sites"]:
        table.add_row(*_cells(row))
    table.add_section()
    table.add_row(*_cells(data["fused"]), style="bold")
    table.add_row(*_cells(data["pooled"]), style="dim")
    return Group(table, "", f"Wrote to the folder {printable(data['folder'])}:", _files(data))


def _files(data: dict[str, Any]) -> Table:
    """Each file, and what it is."""
    what = {
        "fused.safetensors": "all of them fused; any site can be taken out again",
        "matching.png": "the picture of what was matched, and how surely",
        "report.json": "the figures above",
    }
    table = Table.grid(padding=(0, 2))
    for name in data["files"]:
        site = f"what {name.removesuffix('.safetensors')} sent: its posterior, and no image"
        table.add_row(f"  {name}", what.get(name, site))
    return table


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["name"],
        "all ten" if len(row["digits"]) == 10 else " ".join(map(str, row["digits"])),
        str(row["images"]),
        str(row["components"]),
        f"{row['mutual_information']:.3f}",
        f"{row['log_density']:.2f}",
    ]
