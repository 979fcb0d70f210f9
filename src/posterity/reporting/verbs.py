"""Sections on results of verbs: matchings, visits, components of a pursuit, students, receipts."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from posterity.receipt import Receipt, Verification, verify
from posterity.reporting.charts import Axis, Series, chart, through
from posterity.reporting.layout import LAYOUT
from posterity.reporting.markup import (
    Markup,
    bullets,
    capital,
    figure,
    paragraph,
    shown,
    table,
    tag,
)
from posterity.reporting.matches import MEANING, Kind, kinds_of
from posterity.reporting.sites import legend, matrix
from posterity.reporting.sources import Source
from posterity.runtime.text import count
from posterity.status import Status


def status(what: str, found: Status) -> Markup:
    """Return a sentence on whether a result is reliable."""
    return paragraph(f"{what} has {found}.", class_="note good" if found.converged else "note")


def fusion(result: Any) -> list[Markup]:
    """Return the matching of components, with margins and ambiguous matches."""
    parts = [
        paragraph(
            "Components of different sites were matched by their files alone. Rows are sites, "
            "columns fused components, and a cell has the number of the component at the site. Its "
            "colour is the margin of the match: by how many nats the next best one is worse. Ten "
            "nats are odds of 22,000 to 1, three nats 20 to 1."
        )
        if result.plates
        else paragraph("There was nothing to match: coefficients are identified by their names."),
        paragraph(f"Rule: {result.rule.value}, {result.why or 'as requested'}."),
        status("The matching", result.status),
    ]
    for path, plate in result.plates.items():
        if path:
            parts.append(tag("h3", path))
        parts += _plate(plate, result.scales[path])
    return parts


def _plate(plate: Any, scale: Any) -> list[Markup]:
    kinds_of_cells = kinds_of(plate)
    columns = range(min(plate.components, LAYOUT.cells))
    rows = []
    listing = []
    for place, (site, labels) in enumerate(plate.matching.items()):
        margins = np.asarray(plate.margins[site], float)
        for local, fused in enumerate(labels):
            listing.append([site, local, None if fused < 0 else fused, margins[local]])
        if place >= LAYOUT.cells:
            continue
        cells = []
        for column in columns:
            kind = Kind(kinds_of_cells[place, column])
            own = [local for local, fused in enumerate(labels) if fused == column]
            margin = min((margins[k] for k in own), default=math.nan)
            numbers = ", ".join(map(str, own))
            told = f"{site}, fused component {column}: {MEANING[kind].split(':')[0]}"
            told += f"; component {numbers} of the site" if own else ""
            if math.isfinite(margin):
                told += f"; the next best match is {shown(margin)} nats worse"
            cells.append(tag("td", numbers or "·", class_=kind.name.lower(), data_tip=told))
        rows.append(tag("tr", tag("th", site, scope="row"), *cells))
    kinds = set(kinds_of_cells.ravel())
    keys = {kind.name.lower(): text for kind, text in MEANING.items() if kind in kinds}
    caption = f"{count(len(plate.matching), 'site')}, {plate.components} fused components"
    if len(plate.matching) > LAYOUT.cells or plate.components > LAYOUT.cells:
        caption += f"; the first {len(rows)} sites and {len(columns)} components are shown"
    headers = ["Site", "Its component", "Fused component", "Margin in nats"]
    numbers = table("Every match", headers, listing)
    picture = matrix(caption, list(map(str, columns)), rows)
    parts = [figure(picture, legend(keys), numbers)]
    parts.append(paragraph(f"Matched components differ by {scale}."))
    absorbed = plate.absorbed
    if absorbed:
        told = (f"{', '.join(map(str, own))} of {site}" for site, own in absorbed.items())
        parts.append(paragraph(f"Part of another component of their own site: {'; '.join(told)}."))
    evidence = sorted(plate.components_evidence.items())
    if len(evidence) > 1:
        caption = "Other numbers of components, and by how many nats each is worse"
        parts.append(table(caption, ["Components", "Nats worse"], evidence))
    return parts


def federation(source: Source) -> list[Markup]:
    """Return the changes of the posterior by visit, and the visits of each site."""
    visits = source.visits
    value = source.value
    parts = list[Markup]()
    if source.kind == "Run":
        parts += [
            status("The posterior", value.status),
            paragraph(f"Local updates and schedule: {value.rule}."),
        ]
    sites = sorted({visit.site for visit in visits})
    parts.append(_convergence(visits))
    failed = [v for v in visits if v.outcome in ("failed", "refused")]
    if failed:
        last = failed[-1]
        text = f"{count(len(failed), 'visit')} failed, the last at {last.site}"
        parts.append(paragraph(f"{text}: {last.error or last.outcome}.", class_="note"))
    outcomes = Counter((visit.site, visit.outcome) for visit in visits)
    kinds = sorted({outcome for _, outcome in outcomes})
    rows = [[site, *(outcomes[site, kind] for kind in kinds)] for site in sites]
    headers = ["Site", *(kind.capitalize() for kind in kinds)]
    parts.append(table("Visits by site and outcome", headers, rows))
    return parts


def _convergence(visits: Sequence[Any]) -> Markup:
    """Plot the change of the posterior by visit, or the site's remaining change, in nats."""
    changes = [(n, v, v.change) for n, v in enumerate(visits, 1) if v.change]
    label = "moved by, nats"
    what = "how far a visit moved the posterior, in nats"
    if not changes:
        changes = [(n, v, v.residual**2 / 2) for n, v in enumerate(visits, 1) if v.residual]
        label = "left at the site, nats"
        what = "how much the site's factor still had to change, in nats"
    known = [(n, v, nats) for n, v, nats in changes if math.isfinite(nats) and nats > 0]
    if not known:
        return paragraph(
            "The visits have no record of how far the posterior moved, for example because every "
            "contribution was exact after its first visit."
        )
    every = max(1, -(-len(known) // LAYOUT.points))
    known = known[::every]
    x = [n for n, *_ in known]
    y = [nats for *_, nats in known]
    across = Axis("visit", 1, max(len(visits), 2), whole=True)
    up = Axis.around(label, y, log=True)
    tips = [f"visit {n}, {v.site}: {shown(nats, 3)} nats" for n, v, nats in known]
    trail = through(across, up, zip(x, y, strict=True))
    points = Series("Visits", x, y, tips=tips)
    drawing = chart(f"Convergence: {what}", across, up, [points], trail)
    rows = [[f"{n:.0f}", v.site, v.outcome, shown(nats, 3)] for n, v, nats in known]
    numbers = table("Visits", ["Visit", "Site", "Outcome", "Nats"], rows)
    caption = f"Convergence: {what}, on a logarithmic scale."
    caption += f" One visit in {every} is drawn." if every > 1 else ""
    return figure(drawing, caption, numbers)


def pursuit(result: Any) -> list[Markup]:
    """Return the growth of a mixture, component by component."""
    trace = result.trace
    numbers = [row.components for row in trace]
    elbo = [row.elbo for row in trace]
    tips = [
        f"{row.components} components: ELBO {shown(row.elbo)} ± {shown(row.standard_error, 2)} nats"
        for row in trace
    ]
    low, high = ([row.elbo + way * row.standard_error for row in trace] for way in (-2, 2))
    across = Axis("components", 0.5, max(numbers) + 0.5, whole=True)
    up = Axis.around("ELBO, nats", [*low, *high])
    series = Series("Bound on the evidence", numbers, elbo, low, high, tips=tips)
    headers = ["Components", "ELBO", "Standard error", "Gain", "Weight", "Effective components"]
    rows = [
        [
            row.components,
            row.elbo,
            shown(row.standard_error, 2),
            shown(row.gain, 3),
            "all polished" if math.isnan(row.alpha) else shown(row.alpha, 3),
            shown(row.effective, 3),
        ]
        for row in trace
    ]
    caption = (
        "The lower bound on the log evidence (ELBO) after each component, with two standard errors:"
        " components are added until another gains nothing."
    )
    drawing = chart("How the bound grew", across, up, [series])
    picture = figure(drawing, caption, table("Component by component", headers, rows))
    refused = [f"Component {one.number} was refused: {one.reason}." for one in result.refused]
    return [status("The mixture", result.status), picture, *([bullets(refused)] if refused else [])]


def distillation(result: Any) -> list[Markup]:
    """Return a plot of a student's distance from its teacher over steps."""
    parts = [status("The student", result.status)]
    tolerance = result.status.tolerance
    trace = [row for row in result.trace if row.gap > 0]
    if not trace:
        return parts
    steps = [row.step for row in trace]
    gaps = [row.gap for row in trace]
    tips = [f"step {row.step:,}: {shown(row.gap, 3)} nats" for row in trace]
    across = Axis.around("steps of the student", steps, log=True)
    up = Axis.around("nats from its teacher", [*gaps, tolerance], log=True)
    goal = through(across, up, [(across.low, tolerance), (across.high, tolerance)])
    series = [Series("Gap", steps, gaps, tips=tips)]
    drawing = chart("How far the student is from its teacher", across, up, series, goal)
    rows = [[row.step, shown(row.gap, 3)] for row in trace]
    numbers = table("Step by step", ["Step", "Nats"], rows)
    caption = "Nats between the predictions of student and teacher; dashed is the tolerance."
    return [*parts, figure(drawing, caption, numbers)]


def student(value: Any, columns: Sequence[str]) -> list[Markup]:
    """Return a section on a student: its network and its inputs."""
    head = value.head
    text = (
        "A student is one small network that was trained to give the predictions of a posterior, "
        "with their uncertainty. No site can be removed from it: to forget one, distill again from "
        "the ledger without it."
    )
    degrees = head.degrees if np.isfinite(head.degrees) else None
    told = {
        "Network": value.summary,
        "Weights": value.size,
        "Predicts": f"{head.likelihood}, {count(head.targets, 'target')}",
        "Separates epistemic uncertainty": "yes" if head.split else "no",
        "Noise variance": head.noise_variance,
        "Degrees of freedom of new values' t law": degrees,
        "Detects inputs outside its training range": "no" if value.domain is None else "yes",
    }
    rows = [row for row in told.items() if row[1] is not None]
    parts = [paragraph(text), table("The student", ["What", "Which"], rows)]
    if columns:
        parts.append(paragraph(f"Columns: {', '.join(columns[:100])}."))
    return parts


NOT_SHOWN = (
    "That the site's records were deleted where they are kept: a receipt is about the posterior.",
    "Who issued it: its digest detects alterations, but is not a signature.",
    "That no copy of the earlier ledger is kept elsewhere.",
    "What earlier predictions, students or reports reveal.",
)


def checked(source: Source, before: Source | None, after: Source | None) -> Verification | None:
    """Return a receipt's verification against its ledgers; None if one is missing."""
    if before is None or after is None:
        return None
    return verify(source.value, before.posterior, after.posterior)


def receipt(
    source: Source, before: Source | None, after: Source | None, verification: Verification | None
) -> list[Markup]:
    """Return a section on what a receipt, as :func:`checked`, proves and does not prove."""
    value: Receipt = source.value
    if verification is None:
        missing = [n for n, one in (("before", before), ("after", after)) if one is None]
        verdict = f"The ledger {' and the one '.join(missing)} that the receipt names"
        tone = "note"
        verdict += " is missing, so nothing was checked."
        claims = [
            (f"The factors of {', '.join(value.sites)} were subtracted.", "open"),
            ("The ledger before and the ledger after are those whose digests it names.", "open"),
        ]
    else:
        verdict = "Every claim was checked against the two ledgers, and holds."
        if not verification.passed:
            verdict = "The receipt does not hold: see the claims that are marked with a cross."
        tone = "note good" if verification.passed else "note"
        pairs = verification.claims.items()
        claims = [(capital(text), "yes" if holds else "no") for text, holds in pairs]
    unshown = [*NOT_SHOWN]
    if not value.exact:
        unshown.append("That the remaining factors do not depend on the records that left.")
    if value.refinement is not None:
        unshown.append(
            "How far the posterior is from one without these records: the distance is the "
            "issuer's estimate."
        )

    def marked(texts):
        return tag("ul", *(tag("li", text, class_=kind) for text, kind in texts))

    rows = [["Forgotten", ", ".join(value.sites)], ["Exact", "yes" if value.exact else "no"]]
    rows += [["Time", value.time], ["posterity", value.version]]
    rows += [["Ledger before", value.before], ["Ledger after", value.after]]
    return [
        paragraph(f"The receipt says: {value.statement}"),
        paragraph(verdict, class_=tone),
        tag("h3", "What it shows"),
        marked(claims),
        tag("h3", "What it does not show"),
        marked((text, "open") for text in unshown),
        table("The receipt", ["What", "Which"], rows),
    ]
