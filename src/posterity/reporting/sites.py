"""The report's part on sites: information added, and numbers moved."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posterity.ledger import Ledger
from posterity.reporting.layout import LAYOUT
from posterity.reporting.markup import (
    Markup,
    bullets,
    named,
    paragraph,
    scrolling,
    shown,
    signed,
    table,
    tag,
)
from posterity.reporting.summary import Summary
from posterity.runtime.text import count, listed, natural


def shown_sites(ledger: Ledger, summary: Summary) -> list[str]:
    """Return the sites with a line of their own, by name: if there are many, those that add most
    information.
    """
    nats = {site.name: site.nats or 0.0 for site in summary.sites}
    order = sorted(ledger.sites, key=lambda site: (-nats[site], site))
    shown = order if len(order) <= LAYOUT.sites else order[: LAYOUT.sites - 1]
    return sorted(shown, key=natural)


def influence(summary: Summary, records: Mapping[str, Any]) -> list[Markup]:
    """Return one bar per site for the nats that it adds, with the number that it moves most."""
    sites = [site for site in summary.sites if site.why != "forgotten"]
    order = sorted(sites, key=lambda site: -(site.nats if site.nats is not None else -1.0))
    most = max((site.nats or 0.0 for site in sites if np.isfinite(site.nats or 0.0)), default=0.0)
    counts = {site.name: records.get(site.name, {}).get("records") for site in sites}
    headers = ["Site", "Information added", "Nats", "Moves most"]
    headers += ["Records"] * any(number is not None for number in counts.values())
    rows = []
    for site in order[: LAYOUT.bars]:
        share = 0.0 if site.nats is None or not most else min(site.nats / most, 1.0)
        bar = tag("rect", width=f"{100 * share:.2f}%", height=14, y=2, rx=2)
        cells: list[object] = [
            site.name,
            tag("svg", bar, aria_hidden="true"),
            site.nats,
            None if site.most is None else f"{site.most.label} ({signed(site.most.by)} sd)",
            counts[site.name],
        ]
        rows.append(cells[: len(headers)])
    caption = "Information that each site adds to the prior and all other sites"
    bars = table(caption, headers, rows, len(order) - len(rows), "bars")
    text = (
        "The information that a site adds is the Kullback-Leibler divergence of the posterior of "
        "all sites from the posterior without that site, in nats (1 nat is about 1.44 bits). The "
        "number that a site moves most is given with the shift of its mean, in standard deviations "
        "(sd) of the posterior of all sites."
    )
    asides = [f"{site.name}: {site.why}." for site in summary.sites if site.why][: LAYOUT.bars]
    return [paragraph(text), bars, *([bullets(asides)] if asides else [])]


def matrix(caption: str, columns: Sequence[str], rows: Sequence[Markup]) -> Markup:
    """Return a table of coloured cells; arrow keys move between them."""
    head = tag("tr", tag("td"), *(tag("th", named(name), scope="col") for name in columns))
    return scrolling(caption, head, rows, class_="cells", data_roving=True)


def legend(keys: Mapping[str, str]) -> Markup:
    """Return the legend of colours."""

    def swatch(kind):
        return tag("span", class_=f"swatch {kind}", aria_hidden="true")

    items = (tag("li", swatch(kind), text) for kind, text in keys.items())
    return tag("ul", *items, class_="legend", role="list", aria_label="What the colours mean")


def components(summary: Summary) -> list[Markup]:
    """Return components of plates and mixtures by weight, and layers of networks."""
    parts = []
    blocks: dict[tuple[str, str], list[Any]] = {}
    for one in summary.components:
        blocks.setdefault((one.block, one.kind), []).append(one)
    for (block, kind), own in blocks.items():
        rows = [[kind.capitalize(), "Weight", "Standard deviation", "Most probable", "Mean"]]
        for one in own:
            mean = [] if one.mean is None else np.asarray(one.mean).ravel()[:6].tolist()
            top = ", ".join(f"{word} {shown(p, 2)}" for word, p in one.top[:6])
            means = ", ".join(shown(value, 3) for value in mean)
            rows.append([one.name, one.weight, one.weight_sd, top, means])
        kept = [k for k in range(5) if not k or any(row[k] not in ("", None) for row in rows[1:])]
        headers, *rows = ([row[k] for k in kept] for row in rows)
        what = f"{count(len(own), kind)}{f' of {block}' if block else ''}"
        parts.append(table(what, headers, rows))
    if summary.layers:
        headers = ["Layer", "Kind", "Weights", "Size", "Standard deviation", "Excludes zero"]
        rows = [
            [
                ", ".join(filter(None, (one.block, one.member, str(one.number)))),
                one.kind,
                one.weights,
                one.size,
                one.sd,
                f"{100 * one.sure:.0f} %",
            ]
            for one in summary.layers
        ]
        text = (
            "Single weights of a network have no meaning, so the table has for each layer the root "
            "mean square of its means, the median standard deviation, and the share of weights "
            f"whose {100 * summary.level:g} % interval excludes zero."
        )
        parts += [paragraph(text), table("Layers", headers, rows)]
    return parts


def in_short(ledger: Ledger) -> list[str]:
    """Return sentences that summarise a ledger."""
    lines = []
    if ledger.forgotten:
        lines.append(f"Forgotten, and subtracted: {listed(ledger.forgotten)}.")
    lines.append(
        "Every contribution is marked as computed from its own site's data alone, so that a site "
        "can be removed exactly."
        if ledger.independent
        else "Contributions are not marked as computed from each site's own data alone: they were "
        "refined or matched together, so that the others' may still depend on the data of a site "
        "that is removed."
    )
    return lines
