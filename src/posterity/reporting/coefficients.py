"""All numbers of a posterior by site, and the posterior without any chosen sites.

Forgetting is subtraction: the page holds the natural parameters of the prior and of each site, adds
those that are ticked, and computes means and intervals in the browser. If there are too many, or
the page cannot compute the family's quantiles, it holds the numbers without each site instead.
"""

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posterity.families import Beta, DiagonalGaussian, Dirichlet, Gamma, Gaussian
from posterity.families.names import names_of, with_names
from posterity.ledger import Ledger
from posterity.reporting.charts import ticks
from posterity.reporting.layout import LAYOUT
from posterity.reporting.markup import (
    Markup,
    Scale,
    behind,
    digits,
    embedded,
    named,
    paragraph,
    shown,
    signed,
    table,
    tag,
    visible,
)
from posterity.reporting.summary import Row, Summary, summarise
from posterity.reporting.summary.rows import cavity, influences_of
from posterity.reporting.words import Effect, effect_of, exponentials
from posterity.runtime.text import count, listed

NATIVE = (Gaussian, DiagonalGaussian, Gamma, Beta, Dirichlet)
"""Families whose quantiles the page computes."""
OTHERS = "all others together"


@dataclasses.dataclass(frozen=True)
class Estimates:
    """A posterior's numbers and, for a ledger, the estimates and effects of its sites.

    Attributes:
        whole: summary of the posterior given all sites.
        ledger: ledger of the sites; None for a posterior without known sites.
        factors: factors by site with its own line; the last may combine all others.
        alone: by site, rows of the prior plus its factor, if proper; None for numbers of which it
            has no information.
        pulls: by site, the shift of each row, in standard deviations.
        nats: by site, the information that it adds to all others.
    """

    whole: Summary
    ledger: Ledger | None = None
    factors: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    alone: Mapping[str, tuple[Row | None, ...]] = dataclasses.field(default_factory=dict)
    pulls: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    nats: Mapping[str, float | None] = dataclasses.field(default_factory=dict)


def estimates_of(ledger: Ledger, whole: Summary, chosen: Sequence[str]) -> Estimates:
    """Return the numbers of the chosen sites, and of all others combined."""
    factors = {site: ledger.factor(site) for site in chosen}
    total = ledger.total
    known = names_of(ledger.prior)
    if len(chosen) < len(ledger.sites):
        rest = total - ledger.prior
        for factor in factors.values():
            rest = rest - factor
        factors[OTHERS if OTHERS not in ledger.sites else f"{OTHERS} (no one site)"] = rest
    own = {}
    pulls = {}
    before = list(summarise(ledger.prior, whole.level).first(LAYOUT.rows))
    for name, factor in factors.items():
        law = with_names(ledger.prior + factor, known)
        if np.all(law.is_proper()):
            rows = zip(summarise(law, whole.level).first(LAYOUT.rows), before, strict=True)
            own[name] = tuple(None if _silent(row, prior) else row for row, prior in rows)
        left = _left(ledger, name, factor)
        if np.all(left.is_proper()):
            moved = influences_of(total, left, known, None)
            pulls[name] = tuple(one.by for one in moved)[: LAYOUT.rows]
    nats = {site.name: site.nats for site in whole.sites}
    return Estimates(whole, ledger, factors, own, pulls, nats)


def _silent(row: Row, prior: Row) -> bool:
    """Return whether a number's interval is the prior's, up to a hundredth of its length."""
    moved = max(abs(row.low - prior.low), abs(row.high - prior.high))
    return moved <= 0.01 * (prior.high - prior.low) < np.inf


def _left(ledger: Ledger, name: str, factor: Any) -> Any:
    return cavity(ledger, name) if name in ledger.sites else ledger.total - factor


def _packed(values: Any) -> str:
    """Encode numbers for the page: little-endian float64, in base 64."""
    return base64.b64encode(np.asarray(values, "<f8").ravel().tobytes()).decode()


def _blocks(law: Any) -> list[Any]:
    """Return the independent blocks of a law, in the order of its tables."""
    parts = law.independent_blocks()
    return [leaf for part in parts.values() for leaf in _blocks(part)] if parts else [law]


def _numbers_of(block: Any, centre: Any) -> list[Any]:
    """Return natural parameters of a block; of a Gaussian relative to a centre near all means."""
    if not block.gaussian:
        return [block.natural_parameters]
    if block.diagonal:
        return [block.precision_mean - block.precision * centre, block.precision]
    lower = np.tril_indices(block.own_size)
    return [block.precision_mean - block.precision @ centre, block.precision[lower]]


def _kept(estimates: Estimates) -> dict[str, Any]:
    """Return natural parameters of prior and sites, or the rows without each site."""
    ledger = estimates.ledger
    whole = estimates.whole
    factors = estimates.factors
    if ledger is None or not factors or not whole.proper:
        return {}
    parts = _blocks(ledger.total)
    native = all(type(one) in NATIVE and not one.batch_shape for one in parts)
    if native and ledger.prior.dimension * (1 + len(factors)) <= LAYOUT.parameters:
        blocks = []
        for place, block in enumerate(parts):
            centre = None
            if block.gaussian:
                proper = np.all(block.is_proper())
                centre = np.asarray(block.mean) if proper else np.zeros(block.own_size)
            laws = [_blocks(law)[place] for law in (ledger.prior, *factors.values())]
            numbers = [[_packed(part) for part in _numbers_of(law, centre)] for law in laws]
            packed = None if centre is None else _packed(centre)
            blocks.append({"family": type(block).__name__, "centre": packed, "laws": numbers})
        return {"blocks": blocks}
    if whole.size * len(factors) * 4 > LAYOUT.parameters:
        return {}
    without = []
    for name, factor in factors.items():
        left = with_names(_left(ledger, name, factor), names_of(ledger.prior))
        proper = np.all(left.is_proper())
        own = summarise(left, whole.level).first(LAYOUT.rows) if proper else ()
        without.append(_packed([row[4:] for row in own]) if proper else None)
    return {"without": without}


def _chosen(estimates: Estimates) -> list[int]:
    """Return the rows that have a panel, in order; of many those that sites move most."""
    rows = list(estimates.whole.first(LAYOUT.rows))
    drawn = [k for k, row in enumerate(rows) if np.isfinite([row.low, row.high]).all()]
    most = LAYOUT.panels
    if estimates.whole.components:  # they have their own table, with weights and spreads
        drawn = [k for k in drawn if rows[k].quantity in ("", "mean")]
        most = LAYOUT.of_components
    pulls = [np.abs(np.array(own)[: len(rows)]) for own in estimates.pulls.values()]
    force = np.nan_to_num(pulls).max(0) if pulls else np.zeros(len(rows))
    return sorted(sorted(drawn, key=lambda k: -force[k])[:most])


def _domain(rows: Sequence[Row]) -> tuple[float, float]:
    """Return the ends of a panel's axis, which truncates intervals much longer than the last."""
    ends = np.array([[row.low, row.high] for row in rows], float)
    ends = ends[np.isfinite(ends).all(1)]
    fused = ends[-1]
    reach = 14 * max(fused[1] - fused[0], 1e-300)
    long = ends[:, 1] - ends[:, 0] > reach
    low = np.where(long, np.maximum(ends[:, 0], fused[0] - reach), ends[:, 0]).min()
    high = np.where(long, np.minimum(ends[:, 1], fused[1] + reach), ends[:, 1]).max()
    span = (high - low) or abs(high) or 1.0
    low = low - 0.05 * span
    high = high + 0.05 * span
    if 0 < low < 0.6 * span:
        low = -0.03 * span
    elif -0.6 * span < high < 0:
        high = 0.03 * span
    return low, high


def _percent(value: float, low: float, high: float) -> str:
    share = (value - low) / (high - low)
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"


def _interval(row: Row, scale: Scale) -> Markup:
    ends = f"({scale.text(row.low)} to {scale.text(row.high)})"
    return tag("td", f"{scale.text(row.mean)} ", tag("span", ends), class_="value")


def _strip(row: Row, low: float, high: float, size: float | None, zero: str | None) -> Markup:
    """Return an interval as a line with its mean: a square for a site, a diamond for all."""
    middle = row.mean if np.isfinite(row.mean) else (row.low + row.high) / 2

    def x(value):
        return _percent(value, low, high)

    inside = low <= middle <= high
    at = x(middle)
    if size is None:
        mark = tag("path", d="M-7 0 0-7 7 0 0 7Z", class_="diamond")
    elif inside:
        mark = tag("rect", x=-size / 2, y=-size / 2, width=size, height=size, class_="square")
    else:  # an arrow towards the mean, beyond the end of the axis
        mark = tag("path", d=f"M0-5V5L{-8 if middle < low else 8} 0Z", class_="beyond")
    hidden = "hidden" if size is None and not inside else None
    return tag(
        "svg",
        None if zero is None else tag("line", x1=zero, x2=zero, y1=0, y2="100%", class_="zero"),
        tag("line", x1=x(row.low), x2=x(row.high), y1="50%", y2="50%", class_="whisker"),
        tag("svg", mark, x=at, y="50%", overflow="visible", visibility=hidden),
        class_="strip",
        aria_hidden="true",
    )


def _axis(low: float, high: float, scale: Scale) -> Markup:
    """Return round numbers below a panel, as many as fit next to each other."""
    low = low / scale.unit
    high = high / scale.unit
    texts: dict[float, str] = {}
    for most in (6, 5, 4, 3, 2):
        texts = {value: shown(value, digits(low, high)) for value in ticks(low, high, most)}
        if len("  ".join(texts.values())) <= LAYOUT.letters:
            break
    parts = []
    for value, text in texts.items():
        x = _percent(value, low, high)
        parts.append(tag("line", x1=x, x2=x, y1=0, y2=4))
        parts.append(tag("text", text, x=x, y=16, class_="middle"))
    return tag("svg", *parts, class_="axis", aria_hidden="true")


def _panel(estimates: Estimates, place: int, row: Row, effect: Effect | None) -> Markup:
    percent = f"{100 * estimates.whole.level:g} %"
    every = {name: rows[place] for name, rows in estimates.alone.items()}
    own = {name: mine for name, mine in every.items() if mine is not None}
    low, high = _domain([*own.values(), row])
    zero = _percent(0.0, low, high) if low < 0 < high else None
    lengths = {n: r.high - r.low for n, r in own.items() if np.isfinite(r.high - r.low)}
    most = min((length for length in lengths.values() if length > 0), default=1.0)
    scale = Scale.of(max(-low, high), row.high - row.low)
    exact = digits(row.low, row.high)

    def ends(one):
        return f"{shown(one.low, exact)} to {shown(one.high, exact)}"

    def told(one):
        return f"{shown(one.mean, exact)}, {percent} from {ends(one)}"

    lines = []
    silent = [n for n, mine in every.items() if mine is None]
    for number, name in enumerate(estimates.factors):
        if name in silent:
            continue
        tip = f"{name} has no estimate alone: prior and contribution are not a distribution"
        cells = [tag("td", class_="draw"), tag("td", "no estimate alone", class_="value nothing")]
        mine = own.get(name)
        if mine is not None:
            share = most / lengths[name] if lengths.get(name) else 1.0
            nats = estimates.nats.get(name)
            pull = estimates.pulls.get(name)
            tip = f"{name} alone: {told(mine)}"
            if pull is not None:
                tip += f"; moves the estimate of all by {signed(pull[place])} standard deviations"
            tip += "" if nats is None else f"; adds {shown(nats)} nats to all numbers together"
            strip = _strip(mine, low, high, round(4 + 6 * share**0.5, 1), zero)
            cells = [tag("td", strip, class_="draw"), _interval(mine, scale)]
        head = tag("th", named(name), scope="row")
        lines.append(tag("tr", head, *cells, data_site=number, data_tip=tip))
    if silent:
        verb = "has" if len(silent) == 1 else "have"
        text = f"{listed(silent)} {verb} no information on this number."
        lines.append(tag("tr", tag("th", text, colspan=3, scope="row"), class_="quiet"))
    fused = tag(
        "tr",
        tag("th", "All sites" if estimates.factors else "Posterior", scope="row"),
        tag("td", _strip(row, low, high, None, zero), class_="draw"),
        _interval(row, scale),
        class_="fused",
        data_tip=f"all sites: {told(row)}",
        data_low=low,
        data_high=high,
        data_row=place,
        data_unit=scale.unit,
        data_decimals=scale.decimals,
        data_digits=exact,
    )
    what = " ".join(filter(None, ["" if effect is None else effect.unit, scale.factor]))
    unit = tag("span", what, class_="unit") if what else None
    heads = ("Site", f"Mean and {percent} interval, drawn", f"Mean ({percent} interval)")
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in heads)), class_="hide")
    foot = tag("tr", tag("td"), tag("td", _axis(low, high, scale), class_="draw"), tag("td"))
    title = tag("caption", tag("strong", row.label), " ", unit)
    widths = tag("colgroup", *3 * [tag("col")])
    parts = title, widths, head, tag("tbody", *lines, fused), tag("tfoot", foot)
    return tag("div", tag("table", *parts, class_="forest"), class_="panel", data_roving=True)


def _ratio(row: Row, effect: Effect | None) -> str:
    if effect is None or not effect.ratio:
        return ""
    low, middle, high = exponentials(row)
    return f"{effect.ratio} {shown(middle, 3)} ({shown(low, 3)} to {shown(high, 3)})"


def _table(estimates: Estimates, effects: Mapping[str, Effect]) -> Markup:
    whole = estimates.whole
    percent = f"{100 * whole.level:g} % interval"
    headers = ["Number", "Mean", "Standard deviation", percent, "As a ratio"]
    rows = []
    headers = headers if any(effect.ratio for effect in effects.values()) else headers[:-1]
    for row in whole.first(LAYOUT.rows):
        exact = digits(row.low, row.high)
        ends = f"{shown(row.low, exact)} to {shown(row.high, exact)}"
        ratio = _ratio(row, effect_of(effects, row))
        cells = [row.label, shown(row.mean, exact), row.sd, ends, ratio]
        rows.append(cells[: len(headers)])
    return table("All numbers of the posterior", headers, rows, whole.size - len(rows))


def _controls(estimates: Estimates, several: bool) -> Markup:
    """Return a box to exclude each site, and a line for the result."""
    boxes = []
    for place, name in enumerate(estimates.factors):
        box = tag("input", type="checkbox", checked=True, data_place=place, autocomplete="off")
        nats = estimates.nats.get(name)
        told = None if nats is None else tag("small", f"adds {shown(nats)} nats")
        boxes.append(tag("label", box, named(name), told))
    one = "" if several else " Only one site at a time can be left out on this page."
    return tag(
        "fieldset",
        tag("legend", "Sites in the posterior"),
        paragraph(
            "Untick a site to see the posterior without it. The page subtracts what that site "
            f"contributed, as the command posterity forget does.{one}"
        ),
        tag("div", *boxes, class_="boxes"),
        tag("button", "Select all sites", type="button", disabled=True),
        tag("output", "The posterior of all sites.", aria_live="polite"),
        class_="controls",
        data_several=several,
    )


def section(estimates: Estimates, effects: Mapping[str, Effect]) -> list[Markup]:
    """Return the panels, the boxes to exclude sites, and the table of all numbers."""
    whole = estimates.whole
    drawn = _chosen(estimates)
    kept = _kept(estimates)
    rows = list(whole.first(LAYOUT.rows))
    parts = list[Markup]()
    if estimates.factors:
        alone = estimates.ledger is None or estimates.ledger.independent
        what = "the estimate from the records of one site and the common prior"
        if not alone:
            what = "what the factor of one site says beside the common prior alone, which was "
            what += "refined together with the others', and is no fit of its records by themselves"
        text = (
            f"Each line is {what}: a square at the mean, larger for shorter intervals, and a line "
            "along the interval; an arrow points to a mean beyond the axis. The diamond is the "
            "estimate from all sites. A dashed line marks zero."
        )
        parts.append(paragraph(text))
    if kept:
        parts.append(_controls(estimates, "blocks" in kept))
    if 0 < len(drawn) < whole.size:
        which = "those that depend most on a single site" if estimates.factors else "the first"
        parts.append(paragraph(f"Of {whole.size:,} numbers {len(drawn)} are drawn, {which}."))
    panels = [_panel(estimates, k, rows[k], effect_of(effects, rows[k])) for k in drawn]
    if panels:
        parts.append(tag("div", *panels, class_="panels"))
    if rows:
        parts.append(behind(f"Table of {count(len(rows), 'number')}", _table(estimates, effects)))
    if not kept:
        return parts
    data = {"level": whole.level, "sites": list(map(visible, estimates.factors)), **kept}
    return [tag("div", *parts, embedded(data), class_="ledger")]
