"""``posterity show``: what a posterior says, by name."""

import contextlib
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.inspect import inspected
from posterity.cli.report.numbers import MOST_ROWS, number
from posterity.cli.streams import Json, present
from posterity.errors import ArtifactError, StructureError, UsageError

if TYPE_CHECKING:
    from posterity.summary import Influence, Row, Summary

COLUMNS = ("block", "member", "quantity", "name")
ROW = (*COLUMNS, "mean", "sd", "low", "high")
PULL = (*COLUMNS, "mean", "without", "by")


@app.command(
    epilog=example(
        "posterity show both.safetensors",
        "posterity show clinics.safetensors --site north --plot north.png",
        "posterity show both.safetensors --level 0.95 --csv > rows.csv",
    )
)
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by posterity.")],
    level: Annotated[
        float, typer.Option(metavar="P", help="Probability of the intervals, between 0 and 1.")
    ] = 0.9,
    site: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of a ledger: each number with this site and without."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print all rows, however many.")] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print all rows as CSV, and only these.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .pdf or .svg.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a posterior knows: means, standard deviations and intervals, by name.

    Components are told with their weights, networks by layer, and ledgers site by site: the nats
    of information that each adds to the others', and what it pulls most, in standard deviations.
    """
    if as_csv and as_json:
        raise UsageError(
            found="--csv beside --json", expected="one of both", fix="Choose one of them."
        )
    if plot is not None:
        from posterity.plots import check_format

        check_format(plot)
        files.check_outputs([plot], [file])
    compute = lambda: _show(file, level, site, plot, whole=every or as_csv or as_json)
    if as_csv:
        _print_csv(compute)
    else:
        present(compute, "show", as_json)


def _show(
    file: Path, level: float, site: str | None, plot: Path | None, *, whole: bool
) -> dict[str, Any]:
    from posterity.artifact import artifact
    from posterity.cli.inspect import NO_POSTERIORS
    from posterity.ledger import Ledger
    from posterity.summary import influences, summarise

    files.check_regular(file)
    try:
        posterior, found = files.read(file)
    except (ArtifactError, StructureError):
        if artifact.outline(file)["type"] not in NO_POSTERIORS:
            raise
        return _other(file, site, plot)
    summary = summarise(posterior, level)
    moved = []
    if site is not None:
        if not isinstance(posterior, Ledger):
            raise _no_ledger(site, found.kind)
        moved = influences(posterior, site)
    if plot is not None:
        from posterity.plots.summary import plot_summary

        plot_summary(posterior, plot, level=level, site=site)
    return {
        "path": found.path,
        "kind": found.kind,
        "digest": found.digest,
        "family": summary.family,
        "proper": summary.proper,
        "level": summary.level,
        "count": len(moved) if site is not None else _told(summary, whole)[1],
        "rows": [_row(row) for row in _told(summary, whole)[0]],
        "components": [_component(one) for one in summary.components],
        "layers": [{**one._asdict(), **_numbers(one, "size", "sd")} for one in summary.layers],
        "sites": [_site(one) for one in summary.sites] if isinstance(posterior, Ledger) else None,
        "site": site,
        "pulls": [_pull(one) for one in moved],
        "plot": None if plot is None else str(plot),
        "whole": whole,
        "notes": [],
    }


def _told(summary: "Summary", whole: bool) -> "tuple[Iterator[Row], int]":
    """The rows to tell and how many there are; people are not told what components say twice."""
    if whole:
        return iter(summary.rows), summary.size
    topics = {c.block for c in summary.components if c.top}
    weighed = {c.block for c in summary.components if c.weight is not None}
    kept = [
        table
        for table in summary.tables
        if not (table.quantity == "probability" and table.block in topics)
        and not (table.quantity == "weight" and table.block in weighed)
    ]
    import dataclasses

    some = dataclasses.replace(summary, tables=tuple(kept))
    return some.first(MOST_ROWS), some.size


def _other(file: Path, site: str | None, plot: Path | None) -> dict[str, Any]:
    """What a file is that holds no posterior."""
    told = inspected(file)
    if site is not None:
        raise _no_ledger(site, told["kind"])
    if plot is not None:
        raise UsageError(
            found=f"--plot beside a {told['kind']}",
            expected="a posterior or a ledger, whose numbers can be drawn",
            fix="Leave --plot out.",
        )
    student = told["kind"] == "Student"
    what = "a student, which predicts: see posterity predict" if student else f"a {told['kind']}"
    return {**told, "rows": [], "count": 0, "whole": True,
            "notes": [f"{what}; it has no means or intervals"]}  # fmt: skip


def _no_ledger(site: str, kind: str) -> UsageError:
    return UsageError(
        found=f"--site {site} of a {kind}",
        expected="a ledger, which knows what each site contributed",
        fix="Leave --site out, or use the ledger that the posterior was made of.",
    )


# --- as data -------------------------------------------------------------------------------------


def _numbers(one: Any, *names: str) -> dict[str, float | None]:
    return {name: number(getattr(one, name)) for name in names}


def _row(row: "Row") -> dict[str, Any]:
    return {**row._asdict(), **_numbers(row, *ROW[4:]), "label": row.label}


def _pull(pull: "Influence") -> dict[str, Any]:
    return {**pull._asdict(), **_numbers(pull, *PULL[4:]), "label": pull.label}


def _component(one: Any) -> dict[str, Any]:
    return {
        **one._asdict(),
        **_numbers(one, "weight", "weight_sd"),
        "mean": _nested(one.mean),
        "covariance": _nested(one.covariance),
        "top": [{"name": name, "probability": number(p)} for name, p in one.top],
    }


def _nested(array: Any) -> Any:
    """Lists of numbers, null where there is none."""
    if array is None:
        return None
    return [_nested(part) for part in array] if array.ndim else number(array)


def _site(one: Any) -> dict[str, Any]:
    return {
        "name": one.name,
        "nats": number(one.nats),
        "most": None if one.most is None else _pull(one.most),
        "why": one.why,
        "independent": one.independent,
    }


def _print_csv(compute: Any) -> None:
    """Rows alone on standard output; what else there is to say goes beside it."""
    from posterity.adapters.tables.reader import as_text
    from posterity.cli.failures import printable
    from posterity.interrupts import heed

    with contextlib.redirect_stdout(sys.stderr):
        heed()
        data = compute()
    for note in data["notes"]:
        print(printable(f"note: {note}"), file=sys.stderr)
    if data.get("layers"):
        print("note: weights of networks are told by layer, not row by row", file=sys.stderr)
    pulled = data.get("site") is not None
    columns = PULL if pulled else ROW
    writer = csv.writer(sys.stdout, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(columns)
    for row in data["pulls"] if pulled else data["rows"]:
        cells = (row[name] for name in columns)
        writer.writerow([as_text(cell) if isinstance(cell, str) else cell for cell in cells])
