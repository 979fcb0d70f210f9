"""``posterity show``: the numbers of a posterior, by name."""

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from posterity.cli import files
from posterity.cli.options import Settings, conflict, unwanted
from posterity.cli.report import MOST_ROWS, Group, first, group, short
from posterity.cli.streams import Data, plain, verb
from posterity.inference.federated_effects import caveats_of
from posterity.ledger import Ledger
from posterity.reporting.cautions import doubts_of
from posterity.reporting.contents import about_recipe
from posterity.reporting.population import in_words, population_of
from posterity.reporting.summary import Summary, influences, summarise
from posterity.reporting.words import ratios_of
from posterity.tabular.recipe import recipe_in
from posterity.tabular.sites import sites_in
from posterity.tabular.tables.files import as_csv as as_csv_text

COLUMNS = ("block", "member", "quantity", "name")
ROW = (*COLUMNS, "mean", "sd", "low", "high")
RATIO = ("name", "what", "ratio", "low", "high", "level", "unit")
PULL = (*COLUMNS, "mean", "without", "by")


def _report(data: Data) -> Group | None:
    if data.get("csv"):
        return None
    limits = (f"{100 * data['level']:g} % from", "to")
    proper = "" if data["proper"] else ", which is improper: its numbers are not defined"
    ledger = ""
    sites = data["sites"]
    if sites is not None:
        left = sum(site["why"] == "forgotten" for site in sites)
        here = len(sites) - left
        forgotten = f" and {left} forgotten" if left else ""
        ledger = f"Ledger of {here:,} site{'' if here == 1 else 's'}{forgotten}, "
    parts: list[Any] = [f"{data['path']}: {ledger}{data['family']}{proper}"]
    parts += data.get("about", ())
    if sites is not None:
        parts.append(_sites_table(data) if sites else "No site has contributed: this is the prior.")
    if any(one["top"] or one["weight"] is not None for one in data["components"]):
        parts.append(_components_table(data))
    if data["layers"]:
        share = f"{100 * data['level']:g} % without 0"
        table = _table("layer", "weights", "size", "sd", share)
        parts.append(_rows(data, data["layers"], table, _layer_cells))
    if data["population"] is not None:
        parts += [*in_words(data["population"]), _population_table(data)]
    if data["site"] is not None:
        parts.append(_pulls_table(data))
    elif data["ratios"] is not None:
        parts.append(_ratios_table(data, limits))
    elif rows := data["rows"]:
        table = _table("", "mean", "sd", *limits)

        def cells(row):
            return (_name(row["label"]), *(row[name] for name in ROW[4:]))

        parts.append(_rows(data, rows, table, cells, data["count"] - len(rows)))
    return group(*parts)


@verb(_report)
def show(settings: Settings) -> Data:
    """Print a posterior's means, standard deviations and intervals, by name."""
    as_csv = bool(settings["csv"])
    level = settings["level"]
    site = settings["site"]
    if as_csv and settings.as_json:
        raise conflict("--csv", "--json")
    if site is not None and settings["ratios"]:
        raise conflict("--ratios", "--site")
    (file,) = settings.arguments("a file")
    whole = as_csv or settings["all"] or settings.as_json
    posterior, about = files.read(file)
    summary = summarise(posterior, level)
    pulls = []
    ledger = isinstance(posterior, Ledger)
    if site is not None:
        if not isinstance(posterior, Ledger):
            expected = "a ledger, which has each site's factor"
            raise unwanted(f"--site {site}", f"of a {about.kind}", expected)
        pulls = influences(posterior, site)
    shown = summary if whole else _unsaid(summary)
    by_layer = "weights of networks are summarised by layer, not listed"
    recipe = recipe_in(about.provenance)
    ratios = [*ratios_of(recipe, shown.first(shown.size), level)] if settings["ratios"] else None
    facts = sites_in(about.provenance)
    doubts = doubts_of(posterior, facts, recipe=recipe) if ledger and summary.proper else ()
    data = {
        "path": about.path,
        "kind": about.kind,
        "digest": about.digest,
        "ratios": ratios,
        "family": summary.family,
        "proper": summary.proper,
        "level": summary.level,
        **about_recipe(about.provenance, posterior),
        "count": shown.size if site is None else len(pulls),
        "rows": [*shown.first(shown.size if whole else MOST_ROWS)],
        "components": [
            one._asdict() | {"top": [{"name": name, "probability": p} for name, p in one.top]}
            for one in summary.components
        ],
        "layers": summary.layers,
        "sites": summary.sites if ledger else None,
        "site": site,
        "pulls": pulls,
        "population": population_of(posterior, level, facts),
        "whole": whole,
        "notes": [*[by_layer] * (as_csv and bool(summary.layers)), *caveats_of(posterior)],
        "warnings": [*doubts],
    }
    return _printed(data, as_csv)


def _unsaid(summary: Summary) -> Summary:
    """Return the summary without the rows that its components already contain."""
    topics = {c.block for c in summary.components if c.top}
    weighed = {c.block for c in summary.components if c.weight is not None}
    said = {"probability": topics, "weight": weighed}
    kept = (t for t in summary.tables if t.block not in said.get(t.quantity, ()))
    return dataclasses.replace(summary, tables=tuple(kept))


def _printed(data: Data, as_csv: bool) -> Data:
    """Print the numbers as CSV if asked to, and return the data."""
    if not as_csv:
        return data
    columns = ROW
    rows = data["rows"]
    if data["site"] is not None:
        columns = PULL
        rows = data["pulls"]
    elif data["ratios"] is not None:
        columns = RATIO
        rows = data["ratios"]
    cells = ([row[name] for name in columns] for row in plain(rows))
    sys.stdout.write(as_csv_text([columns, *cells]))
    return data | {"csv": True}


def _rows(data: Data, rows: list[Any], table: Table, cells: Any, hidden: int = 0) -> Table:
    return first(rows, table, cells, None if data["whole"] else MOST_ROWS, hidden, " (--all)")


def _name(text: str, most: int = 60, end: int = 16) -> str:
    """Return a name; one of more letters than fit beside numbers is reduced to both ends."""
    return text if len(text) <= most else f"{text[: most - end]}...{text[-end:]}"


def _table(*headers: str, narrow: int = 7) -> Table:
    """Return a table whose first column holds names, which wrap, and the others numbers. In a
    ``narrow`` terminal a line has this many letters of a name, those of most words.
    """
    table = Table(box=SIMPLE, padding=(0, 0, 0, 1), pad_edge=False)
    for index, header in enumerate(headers):
        justify = "right" if index else "left"
        table.add_column(header, overflow="fold", justify=justify, min_width=0 if index else narrow)
    return table


def _signed(value: float | None) -> str:
    return "overflow" if value is None else f"{value:+.3g}"


def _sites_table(data: Data) -> Group:
    table = _table("site", "adds, nats", "pulls most", "by, sd")
    table.columns[2].justify = "left"

    def cells(site: Data) -> list[Any]:
        most = site["most"]
        pull = [None, None if site["why"] else 0]
        pull = pull if most is None else [_name(most["label"]), _signed(most["by"])]
        return [_name(site["name"]), site["nats"], *pull]

    rows = _rows(data, data["sites"], table, cells)
    asides = (site for site in data["sites"][: None if data["whole"] else MOST_ROWS] if site["why"])
    return group(rows, *(f"{site['name']}: {site['why']}." for site in asides))


def _population_table(data: Data) -> Table:
    """Return a table of each site's own estimates, and of those shrunken to the population."""
    table = _table("site", "own estimate", "its error", "shrunken", "its sd")
    several = len(data["population"]["coefficients"]) > 1

    def cells(row):
        name = _name(f"{row['site']}: {row['name']}" if several else row["site"])
        return (name, *(row[key] for key in ("estimate", "error", "mean", "sd")))

    return _rows(data, data["population"]["sites"], table, cells)


def _ratios_table(data: Data, limits: tuple[str, str]) -> Table:
    """Return a table of ratios with their intervals, each with what one more is of."""
    table = _table("", data["ratios"][0]["what"] if data["ratios"] else "", *limits)

    def cells(row):
        unit = row["unit"].removeprefix(row["what"]).strip(" ,")
        named = (_name(row["name"]), unit) if unit else (_name(row["name"]),)
        return (", ".join(named), *(row[name] for name in ("ratio", "low", "high")))

    return _rows(data, data["ratios"], table, cells)


def _pulls_table(data: Data) -> Table:
    """Return a table of the numbers with and without a site, those moved most first."""
    table = _table("", "with all", f"without {data['site']}", "pull, sd")
    order = sorted(data["pulls"], key=lambda pull: -abs(pull["by"] or 0.0))

    def cells(pull):
        return _name(pull["label"]), pull["mean"], pull["without"], _signed(pull["by"])

    return _rows(data, order, table, cells)


def _layer_cells(one: Data) -> list[Any]:
    place = "".join(f"{part}: " for part in (one["block"], one["member"]) if part)
    name = f"{place}{one['number']} {one['kind']}"
    return [name, *(one[key] for key in ("weights", "size", "sd")), f"{one['sure']:.1%}"]


def _components_table(data: Data, words: int = 6) -> Table:
    """Return a table of the components' weights, and of the most probable words of a topic, as many
    as fit on a line.
    """
    components = data["components"]
    weighed = any(one["weight"] is not None for one in components)
    topics = any(one["top"] for one in components)
    headers = [components[0]["kind"], *["weight"] * weighed, *["most probable"] * topics]
    table = _table(*headers)
    if topics:
        table.columns[1 + weighed].justify = "left"

    def cells(one: Data) -> Iterator[str | None]:
        yield _name((f"{one['block']}: " if one["block"] else "") + one["name"])
        if weighed:
            sd = f" ± {short(one['weight_sd'])}" if one["weight_sd"] is not None else ""
            yield None if one["weight"] is None else short(one["weight"]) + sd
        if topics:
            top = (f"{word['name']} {word['probability']:.2g}" for word in one["top"][:words])
            yield ", ".join(top)

    return _rows(data, components, table, cells)
