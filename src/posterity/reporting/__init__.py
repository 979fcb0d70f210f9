"""Reports: one page of HTML that shows a posterior, ledger or result, and loads nothing else."""

import base64
import dataclasses
import hashlib
import html
import importlib.metadata
import os
import platform
import shlex
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from posterity.artifact.recipe import INTERCEPT, Recipe
from posterity.errors import UsageError
from posterity.families.distribution import Distribution
from posterity.files import write_file
from posterity.fitting.reading import PLAIN, Reading
from posterity.ledger import Ledger
from posterity.reporting import coefficients, evaluation, sites, verbs
from posterity.reporting.markup import (
    Ids,
    Markup,
    bullets,
    capital,
    count,
    escaped,
    join,
    listed,
    paragraph,
    table,
    tag,
)
from posterity.reporting.sources import Source, Subjects, known_records, subjects_of
from posterity.reporting.words import effects_of
from posterity.summary import LEVEL, Summary, summarise
from posterity.version import __version__

__all__ = ["Report", "report"]
WITHOUT = "It holds no record of anybody."
WITH = (
    "Scores and groups are of the records in a table: a group of few, or a curve's step, may tell "
    "of a single person."
)
"""Sentences on what a page holds of persons, made with a table of records or without."""
PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; \
base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title><style>{style}</style></head>
<body><a href="#main" class="skip">Skip to the content</a>
<header><h1>{title}</h1>{opening}
<nav aria-label="Sections"><ul role="list">{links}</ul></nav></header>
<main id="main">{sections}</main>
<footer><p>A posterior is a file you can send. This page loads nothing, and sends nothing. \
{persons}</p></footer>
<div id="tip" role="tooltip" hidden></div><script>{script}</script></body></html>
"""


@dataclasses.dataclass(frozen=True)
class Report:
    """A page of HTML that is whole in itself: nothing is loaded when it is viewed."""

    title: str
    html: str = dataclasses.field(repr=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page, whole or not at all; an ArtifactError if that fails."""
        write_file(Path(path), self.html.encode())

    def _repr_html_(self) -> str:
        page = html.escape(self.html)
        style = "width:100%;height:800px;border:1px solid #ccc"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def report(
    *sources: object,
    path: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    reading: Reading = PLAIN,
    level: float = 0.95,
    title: str | None = None,
) -> Report:
    """A page that shows posteriors, ledgers, results of verbs and receipts to people.

    What it is and for what, every number by site with a box to untick that site, who adds how much
    and who contradicts whom, matchings with their margins, convergence, calibration, what a receipt
    shows and what it does not, and how to reproduce it all. The same sources give the same page.

    Args:
        sources: what verbs return, ledgers, laws, receipts, students, or paths of files. Several
            posteriors are fused for the page, unless one of them is their fusion; a receipt is
            checked against its ledgers where these are among the sources, and a checkpoint of a
            federation shows how its ledger came about.
        path: where to write the page, if anywhere.
        data: a table of records with the target, on which predictions of regressions are judged.
        reading: how that table says what the model is about.
        level: probability of the intervals, between 0 and 1.
        title: what is written above, instead of what it is.

    Raises:
        UsageError: for no source, or a level that is not between 0 and 1.
        ArtifactError: for a file that is missing, altered, or of a newer version.
        StructureError: for what has nothing to be reported, or data for what does not predict.

    >>> from posterity import Gaussian, Ledger
    >>> prior = Gaussian.from_standard([0.0], [[1.0]]).named(["age"])
    >>> page = report(Ledger(prior).update("north", Gaussian([3.0], [[3.0]])))
    >>> page.title
    'A ledger of 1 site'
    """
    LEVEL.check(level=level)
    subjects = subjects_of(sources)
    page = _Page(subjects, float(level), None if data is None else Path(data), reading)
    page.fill()
    made = Report(title or page.title, page.html(title or page.title))
    if path is not None:
        made.save(path)
    return made


class _Page:
    """The sections of a page, as they are made."""

    def __init__(self, subjects: Subjects, level: float, data: Path | None, reading: Reading):
        self.subjects, self.level, self.data, self.reading = subjects, level, data, reading
        self.ids, self.sections = Ids(), list[tuple[str, str, Markup]]()
        self.facts, self.short, self.about = list[tuple[str, str]](), list[str](), list[str]()
        self.title = ""

    def fill(self) -> None:
        """Make all sections."""
        for source, before, after in self.subjects.receipts:
            gone, verification = listed(source.value.sites), verbs.checked(source, before, after)
            self._name(f"A receipt of forgetting {gone}")
            if verification is not None:
                holds = "holds" if verification.passed else "does not hold"
                self.short.append(f"The receipt of forgetting {gone} {holds}.")
            self.add("The receipt", verbs.receipt(source, before, after, verification))
        several, names = len(self.subjects.main) > 1, [one.name for one in self.subjects.main]
        for number, source in enumerate(self.subjects.main, 1):
            name = source.name if names.count(source.name) == 1 else f"{source.name} {number}"
            facts, short = len(self.facts), len(self.short)
            self._subject(source, f"{name}: " if several else "")
            if several:
                self.facts[facts:] = [(f"{name}: {what}", own) for what, own in self.facts[facts:]]
                self.short[short:] = [f"{name}: {line}" for line in self.short[short:]]
        if self.data is not None:
            self._judged(self.data)
        self.add("How to reproduce this", self._reproduction())

    def add(self, title: str, parts: Iterable[Markup]) -> None:
        """A section, unless there is nothing in it."""
        if parts := list(parts):
            self.sections.append((self.ids.new("section"), capital(title), join(parts)))

    def _subject(self, source: Source, prefix: str) -> None:
        value, kind = source.value, source.kind
        titled = lambda text: f"{prefix}{text}" if prefix else capital(text)
        recipe = source.recipe
        if recipe is not None:
            self.about += [line for line in recipe.describe() if line not in self.about]
        if kind == "Distillation":
            self.add(titled("how near its teacher"), verbs.distillation(value))
            value = value.student
        if hasattr(value, "head"):
            self._name("A student: one network in the place of a posterior")
            self.add(titled("the student"), verbs.student(value, self._columns(source)))
            self._state_of(source)
            return
        posterior = source.posterior
        if not isinstance(posterior, Ledger | Distribution):
            raise UsageError(
                found=f"a {kind} without a posterior",
                expected="a result with one",
                fix="Pass its student, or its posterior.",
            )
        summary = summarise(posterior, self.level)
        self._name(_title(source, posterior))
        self._facts(source, posterior, summary)
        effects = effects_of(recipe)
        records = known_records([source, *self.subjects.inputs])
        if isinstance(posterior, Ledger) and posterior.sites and summary.proper:
            found = sites.contradictions_of(posterior, summary)
            self.short += _sure(recipe, summary)
            self.short += sites.in_short(posterior, summary, found)
            estimates = coefficients.estimates_of(posterior, summary, found.chosen)
            self.add(
                titled("what is known, site by site"),
                coefficients.section(estimates, effects, self.ids),
            )
            self.add(titled("who adds how much"), sites.influence(summary, records, found))
            self.add(titled("who contradicts whom"), sites.contradiction(found))
        else:
            if not summary.proper:
                text = "This is no distribution: its numbers are not known. A factor is to be "
                self.short.append(f"{text}added to a prior first.")
            elif isinstance(posterior, Ledger):
                self.short.append("No site has contributed: this is the prior.")
            alone = coefficients.without_sites(summary)
            parts = coefficients.section(alone, effects, self.ids) if summary.proper else []
            self.add(titled("what is known"), parts)
        self.add(titled("components and layers"), sites.components(summary))
        if hasattr(value, "plates"):
            self.add(titled("what was matched with what"), verbs.fusion(value))
        if hasattr(value, "gap") and hasattr(value, "trace"):
            self.add(titled("how the mixture grew"), verbs.pursuit(value))
        if source.visits or kind == "Run":
            self.add(titled("how it converged"), verbs.federation(source, self.ids))
        self._state_of(source)

    def _name(self, title: str) -> None:
        self.title = f"{self.title}; {title[:1].lower()}{title[1:]}" if self.title else title

    def _columns(self, source: Source) -> Sequence[str]:
        from posterity.artifact.provenance import inputs_of

        network = getattr(source.value, "network", None)
        inputs = getattr(network, "inputs", None)
        return () if inputs is None else inputs_of(source.provenance, inputs)

    def _facts(self, source: Source, posterior: Any, summary: Summary) -> None:
        if isinstance(posterior, Ledger):
            self.facts.append(("Sites", f"{len(posterior.sites):,}"))
            if posterior.forgotten:
                self.facts.append(("Forgotten", f"{len(posterior.forgotten):,}"))
        own = known_records([source, *self.subjects.inputs])
        if records := sum(one.get("records", 0) for one in own.values()):
            sites = set(posterior.sites) if isinstance(posterior, Ledger) else set()
            known = {site for site, one in own.items() if "records" in one}
            least = "at least " if sites - known and "" not in known else ""
            self.facts.append(("Records", f"{least}{records:,.0f}"))
        if summary.size:
            regression = source.recipe is not None and source.recipe.regression
            what = "Coefficients" if regression else "Numbers"
            self.facts.append((what, f"{summary.size:,}"))
        if summary.layers:
            self.facts.append(("Weights", f"{sum(one.weights for one in summary.layers):,}"))
        self.facts.append(("Family", summary.family))
        self.facts.append(("Intervals", f"{100 * self.level:g} %"))

    def _state_of(self, source: Source) -> None:
        """Add the state of a run that a file names."""
        state = source.provenance.get("status")
        if state:
            text = f"When it was written: {state}."
            self.short.append(text)

    def _judged(self, path: Path) -> None:
        judged = [s for s in self.subjects.main if s.recipe is not None] or self.subjects.main
        for source in judged:
            value = source.value if hasattr(source.value, "head") else source.posterior
            parts = evaluation.section(value, source.provenance, path, self.level, self.reading)
            prefix = f"{source.name}: " if len(judged) > 1 else ""
            self.add(f"{prefix}predictions beside what was observed", parts)

    def _reproduction(self) -> list[Markup]:
        """Files with their digests, commands, and versions."""
        known, parts = self.subjects.files, list[Markup]()
        receipts = [source for source, _, _ in self.subjects.receipts]
        names = [Path(one.about.path).name if one.about else one.name for one in known]
        told = [*names, *(one.name for one in receipts if one.name != "Receipt")]
        if told:
            lines = [f"posterity report {shlex.join(told)} -o report.html"]
            lines += [f"posterity inspect {shlex.quote(name)}" for name in names]
            if self.subjects.inputs:
                inputs = shlex.join(one.name for one in self.subjects.inputs)
                lines.append(f"posterity fuse {inputs} -o fused.safetensors")
            for one, before, after in self.subjects.receipts:
                pair = [
                    one.name,
                    before.name if before else "BEFORE",
                    after.name if after else "AFTER",
                ]
                lines.append(f"posterity verify {shlex.join(pair)}")
            if self.data is not None:
                lines[0] += f" --data {shlex.quote(self.data.name)}"
            parts += [paragraph("With the same files, these commands show the same numbers:")]
            code = tag("code", Markup("\n".join(map(escaped, lines))))
            parts.append(tag("pre", code, tabindex=0, role="group", aria_label="Commands"))
        else:
            parts.append(paragraph("This page was made of values in memory, which are in no file."))
        if known:
            rows = [
                [n, one.about.kind, f"{one.about.bytes:,}", tag("code", one.about.digest)]
                for n, one in zip(names, known, strict=True)
                if one.about is not None
            ]
            parts.append(table("Files", ["File", "Kind", "Bytes", "SHA-256"], rows))
        skipped = {"recipe", "sites", "columns"}
        for one in known[:20]:
            rows = [[k, v[:400]] for k, v in one.provenance.items() if k not in skipped]
            if rows:
                listing = table(f"{one.name} says", ["Key", "Text"], rows[:100], len(rows) - 100)
                parts.append(
                    tag("details", tag("summary", f"What {one.name} says of itself"), listing)
                )
        packages = [f"{n} {importlib.metadata.version(n)}" for n in ("numpy", "scipy")]
        parts.append(
            paragraph(
                f"Made by posterity {__version__} with Python {platform.python_version()}, "
                f"{' and '.join(packages)}. The page has no date: the same sources give it again, "
                "byte for byte."
            )
        )
        return parts

    def html(self, title: str) -> str:
        """The page."""
        folder = resources.files("posterity.reporting")
        style, script = (
            folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js")
        )
        hashed = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        facts = (tag("div", tag("dt", what), tag("dd", which)) for what, which in self.facts)
        opening = [
            *(paragraph(line, class_="lead") for line in self.about),
            tag("dl", *facts, class_="facts") if self.facts else None,
            *(paragraph(note, class_="note good") for note in self.subjects.notes),
            *([tag("h2", "In short"), bullets(self.short)] if self.short else []),
        ]
        sections = []
        for id_, what, inner in self.sections:
            head = tag("h2", what, id=f"{id_}-title")
            sections.append(tag("section", head, inner, id=id_, aria_labelledby=f"{id_}-title"))
        links = (tag("li", tag("a", what, href=f"#{id_}")) for id_, what, _ in self.sections)
        return PAGE.format(
            title=escaped(title),
            style=style,
            script=script,
            hashes=[hashed(style), hashed(script)],
            opening=join(opening),
            links=join(links),
            sections=join(sections),
            persons=WITH if self.data else WITHOUT,
        )


def _sure(recipe: Recipe | None, summary: Summary) -> list[str]:
    """A sentence on the coefficients of a regression whose interval leaves zero out."""
    if recipe is None or not recipe.regression or not summary.proper:
        return []
    levels = recipe.levels[1:] if recipe.model == "multinomial" else ()
    apart = {INTERCEPT, *recipe.baseline, *(f"{level}:{INTERCEPT}" for level in levels)}
    rows = [row for row in summary.first(coefficients.ROWS) if row.name not in apart]
    above, below = [r.name for r in rows if r.low > 0], [r.name for r in rows if r.high < 0]
    told = [f"above zero for {listed(above)}"] if above else []
    told += [f"below zero for {listed(below)}"] if below else []
    rest = len(rows) - len(above) - len(below)
    told += [f"on both sides of zero for {'all' if not told else 'all others'}"] if rest else []
    return [f"The {100 * summary.level:g} % interval is {listed(told)}."] if told else []


def _title(source: Source, posterior: Any) -> str:
    """A description of it in a few words."""
    if hasattr(source.value, "plates"):
        value = source.value
        matched = next(iter(value.plates.values()), None)
        number = len(posterior.sites) if isinstance(posterior, Ledger) else 0
        number = number or (len(matched.matching) if matched is not None else 0)
        return f"A fusion of {count(number, 'site')}" if number else "A fusion"
    if isinstance(posterior, Ledger):
        what = "federation" if source.visits or source.kind == "Run" else "ledger"
        return f"A {what} of {count(len(posterior.sites), 'site')}"
    if posterior.is_mixture:
        return f"A mixture of {count(posterior.size, 'component')}"
    return "A posterior"
