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
from posterity.cli.failures import printable
from posterity.cli.inspect import NO_POSTERIORS, inspected
from posterity.cli.inspect import report as inspect_report
from posterity.cli.report import MOST_ROWS, Data, group, number, short
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
        present(compute, _report, as_json)


def _show(file: Path, level: float, site: str | None, plot: Path | None, *, whole: bool) -> Data:
    from posterity.artifact import artifact
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


def _other(file: Path, site: str | None, plot: Path | None) -> Data:
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
    return {
        **told,
        "rows": [],
        "count": 0,
        "whole": True,
        "notes": [f"{what}; it has no means or intervals"],
    }


def _no_ledger(site: str, kind: str) -> UsageError:
    return UsageError(
        found=f"--site {site} of a {kind}",
        expected="a ledger, which knows what each site contributed",
        fix="Leave --site out, or use the ledger that the posterior was made of.",
    )


# --- as data -------------------------------------------------------------------------------------


def _numbers(one: Any, *names: str) -> dict[str, float | None]:
    return {name: number(getattr(one, name)) for name in names}


def _row(row: "Row") -> Data:
    return {**row._asdict(), **_numbers(row, *ROW[4:]), "label": row.label}


def _pull(pull: "Influence") -> Data:
    return {**pull._asdict(), **_numbers(pull, *PULL[4:]), "label": pull.label}


def _component(one: Any) -> Data:
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


def _site(one: Any) -> Data:
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


# --- what people are told ------------------------------------------------------------------------

TOP = 6
"""Words of a topic that a person is shown."""
MOST_APART = 3
"""Coordinates of components that a person is shown."""
LONGEST, TAIL = 60, 16
"""Letters of a name that a person is shown, and how many of them are its end."""
NARROW = 7
"""Letters of a name that stand on one line, however narrow the terminal."""


def _report(data: Data) -> Any:
    """A headline, then sites, components, layers and numbers."""
    if "family" not in data or isinstance(data["family"], dict) or "content" in data:
        return inspect_report(data)
    parts: list[Any] = [_headline(data)]
    if data["sites"] is not None:
        parts += [_sites_table(data)]
    if any(one["top"] or one["weight"] is not None for one in data["components"]):
        parts += [_components_table(data)]
    if data["layers"]:
        parts += [_layers_table(data)]
    if data["site"] is not None:
        parts += [_pulls_table(data)]
    elif data["rows"]:
        parts += [_rows_table(data)]
    if data["plot"] is not None:
        parts.append(f"Drew it in {printable(data['plot'])}")
    return group(*parts)


def _headline(data: Data) -> str:
    proper = "" if data["proper"] else ", which is no distribution: its numbers are not known"
    ledger = ""
    if data["sites"] is not None:
        left = sum(site["why"] == "forgotten" for site in data["sites"])
        told = _count(len(data["sites"]) - left, "site") + f" and {left} forgotten" * bool(left)
        ledger = f"Ledger of {told}, "
    return f"{printable(data['path'])}: {ledger}{data['family']}{proper}"


def _name(text: str) -> str:
    """Of a very long name both ends, so that it takes no screen of its own."""
    text = printable(text)
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - TAIL]}...{text[-TAIL:]}"


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _table(*headers: str) -> Any:
    """The first column holds names, which are folded; the others numbers."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, padding=(0, 0, 0, 1), pad_edge=False)
    for index, header in enumerate(headers):
        justify = "right" if index else "left"
        table.add_column(header, overflow="fold", justify=justify, min_width=0 if index else NARROW)
    return table


def _limit(data: Data) -> int | None:
    return None if data["whole"] else MOST_ROWS


def _more(rows: Any, data: Data, count: int) -> Any:
    if not data["whole"] and (more := count - MOST_ROWS) > 0:
        rows.add_row(f"and {more:,} more (--all)")
    return rows


def _sites_table(data: Data) -> Any:
    if not data["sites"]:
        return "No site has contributed: this is the prior."
    table = _table("site", "adds, nats", "pulls most", "by, sd")
    table.columns[2].justify = "left"
    asides = []
    for site in data["sites"][: _limit(data)]:
        most = site["most"]
        cells = ("-", "0") if most is None else (_name(most["label"]), _signed(most["by"]))
        if site["why"]:
            cells = ("-", "-")
            asides.append(f"{printable(site['name'])}: {site['why']}.")
        nats = "-" if site["why"] else short(site["nats"])
        table.add_row(_name(site["name"]), nats, *cells)
    return group(_more(table, data, len(data["sites"])), *asides)


def _signed(value: float | None) -> str:
    return "overflow" if value is None else f"{value:+.3g}"


def _components_table(data: Data) -> Any:
    """Weights, and words of topics."""
    components = data["components"]
    weighed = any(one["weight"] is not None for one in components)
    topics = any(one["top"] for one in components)
    apart = _apart(data)
    headers = [components[0]["kind"], *["weight"] * weighed, *["most probable"] * topics]
    headers += [_name(_places(data)[i]["label"]) for i in apart]
    table = _table(*headers)
    if topics:
        table.columns[1 + weighed].justify = "left"
    for one in components[: _limit(data)]:
        block = f"{one['block']}: " if one["block"] else ""
        cells = [_name(block + one["name"])]
        if weighed:
            sd = f" ± {short(one['weight_sd'])}" if one["weight_sd"] is not None else ""
            cells.append("-" if one["weight"] is None else short(one["weight"]) + sd)
        if topics:
            cells.append(printable(", ".join(_word(word) for word in one["top"][:TOP])))
        cells += [f"{short(one['mean'][i])} ± {short(_sds(one)[i])}" for i in apart]
        table.add_row(*cells)
    return _more(table, data, len(components))


def _apart(data: Data) -> list[int]:
    """The coordinates by which components of a mixture differ most, as many as have room.

    A row of the whole says where no draws lie, if there are two heaps.
    """
    components, rows = data["components"], _places(data)
    known = all(one["kind"] == "component" and _flat(one) for one in components)
    if not known or components[0]["block"] or len(components) < 2:
        return []
    count = min(len(components[0]["mean"]), len(rows))

    def gap(i: int) -> float:
        means = [one["mean"][i] for one in components]
        return (max(means) - min(means)) / max(min(_sds(one)[i] for one in components), 1e-300)

    return sorted(sorted(range(count), key=gap, reverse=True)[:MOST_APART])


def _places(data: Data) -> list[Data]:
    """Rows of coordinates: with --all there are some of weights too."""
    return [row for row in data["rows"] if not row["quantity"]]


def _flat(one: Data) -> bool:
    """Whether a component is a Gaussian whose numbers are all known."""
    mean, covariance = one["mean"], one["covariance"]
    if not isinstance(mean, list) or not isinstance(covariance, list):
        return False
    return None not in mean and None not in _variances(one)


def _variances(one: Data) -> list[Any]:
    return [v[i] if isinstance(v, list) else v for i, v in enumerate(one["covariance"])]


def _sds(one: Data) -> list[float]:
    return [max(v, 0.0) ** 0.5 for v in _variances(one)]


def _word(word: Data) -> str:
    return f"{word['name']} {word['probability']:.2g}"


def _layers_table(data: Data) -> Any:
    share = f"{100 * data['level']:g} % without 0"
    table = _table("layer", "weights", "size", "sd", share)
    for one in data["layers"][: _limit(data)]:
        place = ": ".join(filter(None, (one["block"], one["member"])))
        name = f"{place + ': ' if place else ''}{one['number']} {one['kind']}"
        numbers = (short(one["size"]), short(one["sd"]), f"{one['sure']:.1%}")
        table.add_row(printable(name), f"{one['weights']:,}", *numbers)
    return _more(table, data, len(data["layers"]))


def _rows_table(data: Data) -> Any:
    table = _table("", "mean", "sd", f"{100 * data['level']:g} % from", "to")
    for row in data["rows"]:
        cells = (_cell(row[name]) for name in ("mean", "sd", "low", "high"))
        table.add_row(_name(row["label"]), *cells)
    return _more(table, data, data["count"])


def _cell(value: float | None) -> str:
    """A number that does not exist, or that nobody knows, is a dash."""
    return "-" if value is None else short(value)


def _pulls_table(data: Data) -> Any:
    """The most moved first."""
    table = _table("", "with all", f"without {printable(data['site'])}", "pull, sd")
    order = sorted(data["pulls"], key=lambda pull: -abs(pull["by"] or 0.0))
    for pull in order[: _limit(data)]:
        cells = (_cell(pull["mean"]), _cell(pull["without"]), _signed(pull["by"]))
        table.add_row(_name(pull["label"]), *cells)
    return _more(table, data, len(order))
