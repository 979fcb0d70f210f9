"""What a posterior says, as tables that fit the terminal."""

from typing import Any

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table

from posterity.cli.failures import printable
from posterity.cli.report.numbers import MOST_ROWS, short

TOP = 6
"""Words of a topic that a person is shown."""
MOST_APART = 3
"""Coordinates of components that a person is shown."""
LONGEST, TAIL = 60, 16
"""Letters of a name that a person is shown, and how many of them are its end."""
NARROW = 7
"""Letters of a name that stand on one line, however narrow the terminal."""
Data = dict[str, Any]


def text(data: Data) -> RenderableType:
    """A headline, then sites, components, layers and numbers."""
    if "family" not in data or isinstance(data["family"], dict) or "content" in data:
        from posterity.cli.report.inspect import text as inspected

        return inspected(data)
    parts: list[RenderableType] = [_headline(data)]
    if data["sites"] is not None:
        parts += [_sites(data)]
    if any(one["top"] or one["weight"] is not None for one in data["components"]):
        parts += [_components(data)]
    if data["layers"]:
        parts += [_layers(data)]
    if data["site"] is not None:
        parts += [_pulls(data)]
    elif data["rows"]:
        parts += [_rows(data)]
    if data["plot"] is not None:
        parts.append(f"Drew it in {printable(data['plot'])}")
    return Group(*parts)


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


def _table(*headers: str) -> Table:
    """The first column holds names, which are folded; the others numbers."""
    table = Table(box=SIMPLE, padding=(0, 0, 0, 1), pad_edge=False)
    for index, header in enumerate(headers):
        justify = "right" if index else "left"
        table.add_column(header, overflow="fold", justify=justify, min_width=0 if index else NARROW)
    return table


def _limit(data: Data) -> int | None:
    return None if data["whole"] else MOST_ROWS


def _more(table: Table, data: Data, count: int) -> Table:
    if not data["whole"] and (more := count - MOST_ROWS) > 0:
        table.add_row(f"and {more:,} more (--all)")
    return table


def _sites(data: Data) -> RenderableType:
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
    return Group(_more(table, data, len(data["sites"])), *asides)


def _signed(value: float | None) -> str:
    return "overflow" if value is None else f"{value:+.3g}"


def _components(data: Data) -> Table:
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


def _layers(data: Data) -> Table:
    share = f"{100 * data['level']:g} % without 0"
    table = _table("layer", "weights", "size", "sd", share)
    for one in data["layers"][: _limit(data)]:
        place = ": ".join(filter(None, (one["block"], one["member"])))
        name = f"{place + ': ' if place else ''}{one['number']} {one['kind']}"
        numbers = (short(one["size"]), short(one["sd"]), f"{one['sure']:.1%}")
        table.add_row(printable(name), f"{one['weights']:,}", *numbers)
    return _more(table, data, len(data["layers"]))


def _rows(data: Data) -> Table:
    table = _table("", "mean", "sd", f"{100 * data['level']:g} % from", "to")
    for row in data["rows"]:
        cells = (_cell(row[name]) for name in ("mean", "sd", "low", "high"))
        table.add_row(_name(row["label"]), *cells)
    return _more(table, data, data["count"])


def _cell(value: float | None) -> str:
    """A number that does not exist, or that nobody knows, is a dash."""
    return "-" if value is None else short(value)


def _pulls(data: Data) -> Table:
    """The most moved first."""
    table = _table("", "with all", f"without {printable(data['site'])}", "pull, sd")
    order = sorted(data["pulls"], key=lambda pull: -abs(pull["by"] or 0.0))
    for pull in order[: _limit(data)]:
        cells = (_cell(pull["mean"]), _cell(pull["without"]), _signed(pull["by"]))
        table.add_row(_name(pull["label"]), *cells)
    return _more(table, data, len(order))
