"""The report's part on sites: information added, numbers moved, contradictions."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.families import stack
from posterity.families.marginals import WEIGHT, Closed
from posterity.families.names import names_of, with_names
from posterity.fusion.deviations import apart, deviate, jointly, nats
from posterity.fusion.groups import EVERYTHING
from posterity.ledger import Ledger
from posterity.reporting.coefficients import learnt
from posterity.reporting.layout import LAYOUT
from posterity.reporting.markup import (
    Markup,
    bullets,
    figure,
    listed,
    named,
    paragraph,
    scrolling,
    shown,
    signed,
    table,
    tag,
)
from posterity.reporting.summary import Summary
from posterity.reporting.summary.rows import cavity, label_of
from posterity.runtime.text import count
from posterity.tabular.one_shot import NOT_GAUSSIAN


class Distance(NamedTuple):
    """Distance of two laws of the same numbers, at the number where it is largest."""

    deviations: float
    where: str

    @property
    def kind(self) -> str:
        """``high`` for a contradiction, ``middle`` for a noticeable difference, else ``low``."""
        if self.deviations >= LAYOUT.contradictory:
            return "high"
        return "middle" if self.deviations >= LAYOUT.noticeable else "low"


def distance(one: Any, other: Any, prior: Any) -> Distance | None:
    """Return the distance of two laws of one family in deviations, as ``fuse`` compares sites.

    Numbers of which either law has no information beyond the prior are left out, and so are mixing
    weights, in which sites may differ. None if either law is improper, or no marginal has a closed
    form.

    Source: presanis2013.
    """
    if not (np.all(one.is_proper()) and np.all(other.is_proper())):
        return None
    farthest = Distance(-1.0, "")
    with np.errstate(all="ignore"):
        tables = zip(one.tables(), other.tables(), prior.tables(), strict=True)
        for mine, theirs, before in tables:
            if not isinstance(mine.law, Closed) or mine.quantity == WEIGHT:
                continue
            prior_ends = before.law.interval(0.9)
            told = learnt(mine.law.interval(0.9), prior_ends)
            told &= learnt(theirs.law.interval(0.9), prior_ends)
            z = np.where(told, apart(mine.law, theirs.law), 0.0).reshape(-1)
            if z.size and (most := float(z.max())) > farthest.deviations:
                member, name = mine.labels(int(z.argmax()))
                where = label_of(mine.block, member, mine.quantity, name)
                farthest = Distance(most, where)
        full = one.gaussian and not one.diagonal and not one.batch_shape
        if full and one.own_size <= LAYOUT.joint:
            joint = jointly(stack([one]), stack([other]))
            away = float(deviate(nats(joint, one.own_size))[0])
            if away > farthest.deviations:
                farthest = Distance(away, EVERYTHING)
    return farthest if farthest.deviations >= 0 else None


class Contradictions(NamedTuple):
    """Distances of each site from all others, and between the sites shown; none of and from sites
    that are ``silent``.
    """

    apart: Mapping[str, Distance | None]
    pairs: Mapping[tuple[str, str], Distance | None]
    chosen: tuple[str, ...]
    silent: tuple[str, ...] = ()


def contradictions_of(
    ledger: Ledger, summary: Summary, silent: Sequence[str] = ()
) -> Contradictions:
    """Return distances between sites; if there are many, of those that contradict others most.

    The factors of ``silent`` sites are not informative (:class:`.OneShot`), as ``fuse`` has them.
    """
    names = names_of(ledger.prior)
    nats = {site.name: site.nats or 0.0 for site in summary.sites}
    chosen = sorted(ledger.sites, key=lambda site: -nats[site])[: LAYOUT.compared]
    heard = ledger.holding({s: own for s, own in ledger.entries.items() if s not in silent})
    compared = [site for site in chosen if site not in silent]
    own = {site: with_names(ledger.prior + ledger.factor(site), names) for site in compared}
    rest = {site: with_names(cavity(heard, site), names) for site in compared}
    away = {site: distance(own[site], rest[site], ledger.prior) for site in compared}
    if len(chosen) > LAYOUT.sites:
        far = dict.fromkeys(chosen, 0.0) | {site: d.deviations for site, d in away.items() if d}
        chosen = sorted(sorted(chosen), key=lambda s: (-far[s], -nats[s]))[: LAYOUT.sites - 1]
    chosen = sorted(chosen)
    pairs = itertools.combinations([site for site in chosen if site in own], 2)
    apart = {(a, b): distance(own[a], own[b], ledger.prior) for a, b in pairs}
    return Contradictions(away, apart, tuple(chosen), tuple(silent))


def influence(summary: Summary, records: Mapping[str, Any], away: Contradictions) -> list[Markup]:
    """Return one bar per site for the nats that it adds, with the number that it moves most."""
    sites = [site for site in summary.sites if site.why != "forgotten"]
    order = sorted(sites, key=lambda site: -(site.nats if site.nats is not None else -1.0))
    most = max((site.nats or 0.0 for site in sites if np.isfinite(site.nats or 0.0)), default=0.0)
    counts = {site.name: records.get(site.name, {}).get("records") for site in sites}
    headers = ["Site", "Information added", "Nats", "Moves most", "Distance from the others, sd"]
    headers += ["Records"] * any(number is not None for number in counts.values())
    rows = []
    for site in order[: LAYOUT.bars]:
        share = 0.0 if site.nats is None or not most else min(site.nats / most, 1.0)
        bar = tag("rect", width=f"{100 * share:.2f}%", height=14, y=2, rx=2)
        far = away.apart.get(site.name)
        cells: list[object] = [
            site.name,
            tag("svg", bar, aria_hidden="true"),
            site.nats,
            None if site.most is None else f"{site.most.label} ({signed(site.most.by)} sd)",
            None if far is None else f"{far.deviations:.1f} ({far.where})",
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


def contradiction(found: Contradictions) -> list[Markup]:
    """Return a table of the largest distance between each two sites, in deviations."""
    names = found.chosen
    pairs = found.pairs
    far = {pair: d for pair, d in pairs.items() if d is not None}
    if not far:
        return []
    worst = max(far, key=lambda pair: far[pair].deviations)
    first, second, most = *worst, far[worst]
    split = sum(d.kind == "high" for d in far.values())
    few = f" Of {len(found.apart):,} sites the {len(names)} furthest from all others were compared"
    few = f"{few} in pairs." if len(names) < len(found.apart) else ""
    text = (
        f"{count(split, 'pair')} of sites {'contradicts' if split == 1 else 'contradict'} each "
        f"other, most of all {first} and {second}: {most.where}, by {most.deviations:.1f} standard "
        "deviations. Check the units and the records of these sites before you rely on the "
        "posterior of all."
        if split
        else f"No two {'of these ' * bool(few)}sites contradict each other"
        + ", but some differ noticeably" * (most.kind == "middle")
        + f". Furthest apart are {first} and {second}, at {most.where}: {most.deviations:.1f} "
        "standard deviations."
    )
    text += (
        f" Sites with the same true values are rarely more than {LAYOUT.noticeable:g} apart at any "
        f"number; from {LAYOUT.contradictory:g} on their estimates are incompatible.{few}"
    )
    if found.silent:
        text += f" Not compared: {listed(found.silent)}, whose likelihoods {NOT_GAUSSIAN}."
    tone = {"high": "note", "middle": "note plain", "low": "note good"}[most.kind]
    rows = []
    for a in names:
        cells = []
        for b in names:
            d = pairs.get((a, b)) or pairs.get((b, a))
            if a == b or d is None:
                cells.append(tag("td", "" if a == b else "–", class_="empty"))
            else:
                told = f"{a} and {b}: {d.where}, {d.deviations:.1f} standard deviations apart"
                cells.append(tag("td", f"{d.deviations:.1f}", class_=d.kind, data_tip=told))
        rows.append(tag("tr", tag("th", named(a), scope="row"), *cells))
    keys = {
        "low": f"below {LAYOUT.noticeable:g}: compatible",
        "middle": f"{LAYOUT.noticeable:g} to {LAYOUT.contradictory:g}: noticeably different",
        "high": f"{LAYOUT.contradictory:g} or more: contradictory",
    }
    caption = "Standard deviations between two sites, at the number where they are furthest apart"
    listing = [
        [f"{a} and {b}", f"{d.deviations:.1f}", d.where]
        for (a, b), d in sorted(far.items(), key=lambda item: -item[1].deviations)
    ]
    numbers = table("Pairs of sites", ["Sites", "Standard deviations", "At"], listing)
    picture = figure(matrix(caption, names, rows), legend(keys), numbers)
    return [paragraph(text, class_=tone), picture]


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


def in_short(ledger: Ledger, summary: Summary, found: Contradictions) -> list[str]:
    """Return sentences that summarise a ledger."""
    lines = []
    sites = [site for site in summary.sites if site.nats is not None]
    if sites:
        first = max(sites, key=lambda site: site.nats or 0.0)
        lines.append(f"Most information comes from {first.name}: {shown(first.nats)} nats.")
    if ledger.forgotten:
        gone = listed(ledger.forgotten)
        verb = "was" if len(ledger.forgotten) == 1 else "were"
        lines.append(f"{gone} {verb} forgotten: their contributions were subtracted.")
    unknown = [site.name for site in summary.sites if site.why not in ("", "forgotten")]
    if unknown:
        lines.append(f"Without {listed(unknown)} there would be no posterior.")
    lines.append(
        "Every contribution is marked as computed from its own site's data alone, so that a site "
        "can be removed exactly."
        if ledger.independent
        else "Contributions are not marked as computed from each site's own data alone: they were "
        "refined or matched together, so that the others' may still depend on the data of a site "
        "that is removed."
    )
    split = [site for site, d in found.apart.items() if d is not None and d.kind == "high"]
    if split:
        verb = "contradicts" if len(split) == 1 else "contradict"
        lines.append(f"{listed(split)} {verb} the others.")
    return lines
