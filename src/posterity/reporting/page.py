"""Reports: one self-contained HTML page about a posterior, ledger or result."""

import base64
import dataclasses
import hashlib
import html
import importlib.metadata
import os
import platform
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from posterity.arguments import BETWEEN
from posterity.arrays.linear_algebra import one_thread
from posterity.families.distribution import Distribution
from posterity.inference.federated_effects import caveats_of
from posterity.ledger import Ledger
from posterity.reporting import coefficients, evaluation, sites, verbs
from posterity.reporting.cautions import doubts_of
from posterity.reporting.coefficients import Estimates
from posterity.reporting.markup import (
    Markup,
    bullets,
    capital,
    escaped,
    join,
    paragraph,
    table,
    tag,
)
from posterity.reporting.population import in_words, population_of, section
from posterity.reporting.sources import Source, Subjects, known_records, subjects_of
from posterity.reporting.summary import Summary, summarise
from posterity.reporting.words import effects_of
from posterity.runtime.files import write_file
from posterity.runtime.text import count, listed
from posterity.tabular.reading import PLAIN, Reading
from posterity.tabular.records import columns_of_student, is_student
from posterity.tabular.sites import said
from posterity.version import __version__

__all__ = ["Report", "report"]
WITHOUT = "It contains no records of persons."
WITH = (
    "Scores, groups and curves were computed from the records of a table: a small group, or a step "
    "of a curve, may reveal something about a single person."
)
"""Sentence about personal data on a page made with a table of records."""
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
<footer><p>This page loads nothing and sends nothing. \
{persons}</p></footer>
<div id="tip" role="tooltip" hidden></div><script>{script}</script></body></html>
"""


@dataclasses.dataclass(frozen=True)
class Report:
    """A self-contained HTML page: viewing it loads nothing."""

    title: str
    html: str = dataclasses.field(repr=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page atomically; an ArtifactError if that fails."""
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
    """Make an HTML page about posteriors, ledgers, results of verbs and receipts.

    It shows what the sources are, and all numbers by site with a box to exclude each site. It also
    shows information added by site, what the check of a fusion doubts, matchings with margins,
    convergence, calibration, and what a receipt proves. Equal sources give equal pages.

    Args:
        sources: results of verbs, ledgers, laws, receipts, students, or paths of files. Several
            posteriors are fused for the page, unless one of them is their fusion. A receipt is
            checked against its ledgers if they are among the sources, and a checkpoint of a
            federation adds the history of its ledger.
        path: path at which to write the page, if given.
        data: path of a table of records with the target, to evaluate predictions of regressions.
        reading: names, units and levels of that table, where they differ from the recipe's.
        level: probability of the intervals, between 0 and 1.
        title: title of the page; by default a description of the sources.

    Raises:
        UsageError: for no source, or a level that is not between 0 and 1.
        ArtifactError: for a file that is missing, altered, or of a newer version.
        StructureError: for sources of other types, or ``data`` for a source that does not predict.

    >>> from posterity import Gaussian, Ledger
    >>> prior = Gaussian.from_standard([0.0], [[1.0]]).named(["age"])
    >>> page = report(Ledger(prior).update("north", Gaussian([3.0], [[3.0]])))
    >>> page.title
    'A ledger of 1 site'
    """
    BETWEEN.check(level=level)
    page = _Page(subjects_of(sources), float(level), None if data is None else Path(data), reading)
    with one_thread():
        page.fill()
    made = Report(title or page.title, page.html(title or page.title))
    if path is not None:
        made.save(path)
    return made


class _Page:
    """The sections of a page under construction."""

    def __init__(self, subjects: Subjects, level: float, data: Path | None, reading: Reading):
        self.subjects = subjects
        self.level = level
        self.data = data
        self.reading = reading
        self.sections = list[tuple[str, Markup]]()
        self.facts, self.short, self.about = list[tuple[str, str]](), list[str](), list[str]()
        self.title = ""

    def fill(self) -> None:
        """Make all sections."""
        for source, before, after in self.subjects.receipts:
            gone = listed(source.value.sites)
            verification = verbs.checked(source, before, after)
            self._name(f"A receipt of forgetting {gone}")
            if verification is not None:
                holds = "holds" if verification.passed else "does not hold"
                self.short.append(f"The receipt of forgetting {gone} {holds}.")
            self.add("The receipt", verbs.receipt(source, before, after, verification))
        several = len(self.subjects.main) > 1
        names = [one.name for one in self.subjects.main]
        for number, source in enumerate(self.subjects.main, 1):
            name = source.name if names.count(source.name) == 1 else f"{source.name} {number}"
            prefix = f"{name}: " * several
            facts = len(self.facts)
            short = len(self.short)
            self._subject(source, prefix)
            self.facts[facts:] = [(prefix + what, own) for what, own in self.facts[facts:]]
            self.short[short:] = [prefix + line for line in self.short[short:]]
        if self.data is not None:
            self._judged(self.data)
        self.add("Files and versions", self._files())

    def add(self, title: str, parts: Iterable[Markup]) -> None:
        """Add a section, unless it is empty."""
        parts = list(parts)
        if parts:
            self.sections.append((capital(title), join(parts)))

    def _subject(self, source: Source, prefix: str) -> None:
        value = source.value
        recipe = source.recipe

        def add(title, parts):
            return self.add(prefix + title, parts)

        if recipe is not None:
            records = known_records([source, *self.subjects.inputs])
            told = [f"{line}." for line in said(records)]
            self.about += [line for line in recipe.describe() + told if line not in self.about]
        if source.kind == "Distillation":
            add("distance from its teacher", verbs.distillation(value))
            value = value.student
        if is_student(value):
            self._name("A student: one network in the place of a posterior")
            columns = columns_of_student(value, source.provenance)
            add("the student", verbs.student(value, columns))
        else:
            self._posterior(source, source.posterior, add)
        state = source.provenance.get("status")
        if state:
            self.short.append(f"When it was written: {state}.")

    def _posterior(self, source: Source, posterior: Ledger | Distribution, add: Any) -> None:
        value = source.value
        recipe = source.recipe
        summary = summarise(posterior, self.level)
        effects = effects_of(recipe)
        records = known_records([source, *self.subjects.inputs])
        self._name(_title(source, posterior))
        self._facts(source, posterior, summary, records)
        self.short += [f"{capital(note)}." for note in caveats_of(posterior)]
        population = population_of(posterior, self.level, records)
        doubts = [*getattr(value, "warnings", ())]
        checked = hasattr(value, "warnings") and population is None
        if not checked and isinstance(posterior, Ledger) and summary.proper:
            doubts += doubts_of(posterior, records, recipe=recipe)
        self.short += [f"{capital(doubt)}." for doubt in doubts]
        if population is not None:
            self.short += in_words(population)
            add("estimates of the population", coefficients.section(Estimates(summary), effects))
            add("sites about the population", section(population))
        elif isinstance(posterior, Ledger) and posterior.sites and summary.proper:
            self.short += sites.in_short(posterior)
            chosen = sites.shown_sites(posterior, summary)
            estimates = coefficients.estimates_of(posterior, summary, chosen)
            add("estimates by site", coefficients.section(estimates, effects))
            add("information from each site", sites.influence(summary, records))
        elif summary.proper:
            if isinstance(posterior, Ledger):
                self.short.append("No site has contributed: this is the prior.")
            add("estimates", coefficients.section(Estimates(summary), effects))
        else:
            self.short.append(
                "This is not a probability distribution, so it has no means or intervals. A site's "
                "factor has to be added to a prior first."
            )
        add("components and layers", sites.components(summary))
        if hasattr(value, "plates"):
            add("matching of components", verbs.fusion(value))
        if hasattr(value, "gap") and hasattr(value, "trace"):
            add("growth of the mixture", verbs.pursuit(value))
        if source.visits or source.kind == "Run":
            add("convergence", verbs.federation(source))

    def _name(self, title: str) -> None:
        self.title = f"{self.title}; {title[:1].lower()}{title[1:]}" if self.title else title

    def _facts(self, source: Source, posterior: Any, summary: Summary, records: Any) -> None:
        facts = self.facts
        own = set(posterior.sites if isinstance(posterior, Ledger) else ())
        if isinstance(posterior, Ledger):
            facts.append(("Sites", f"{len(posterior.sites):,}"))
        count = sum(one.get("records", 0) for one in records.values())
        if count:
            known = {site for site, one in records.items() if "records" in one}
            least = "at least " if own - known and "" not in known else ""
            facts.append(("Records", f"{least}{count:,.0f}"))
        if summary.size:
            regression = source.recipe is not None
            facts.append(("Coefficients" if regression else "Numbers", f"{summary.size:,}"))
        facts += [("Family", summary.family), ("Intervals", f"{100 * self.level:g} %")]

    def _judged(self, path: Path) -> None:
        judged = [s for s in self.subjects.main if s.recipe is not None] or self.subjects.main
        for source in judged:
            value = source.value if is_student(source.value) else source.posterior
            parts = evaluation.section(value, source.provenance, path, self.level, self.reading)
            prefix = f"{source.name}: " if len(judged) > 1 else ""
            self.add(f"{prefix}predictions and observations", parts)

    def _files(self) -> Iterable[Markup]:
        rows = [
            [Path(about.path).name, about.kind, about.bytes, tag("code", about.digest)]
            for about in self.subjects.files
        ]
        if rows:
            yield table("Files", ["File", "Kind", "Bytes", "SHA-256"], rows)
        packages = [f"{n} {importlib.metadata.version(n)}" for n in ("numpy", "scipy")]
        made = f"Made by posterity {__version__} with Python {platform.python_version()}, "
        made += f"{' and '.join(packages)}. The page has no date: the same sources give it again, "
        yield paragraph(f"{made}byte for byte.")

    def html(self, title: str) -> str:
        """Return the page."""
        folder = resources.files("posterity.reporting")
        style, script = (
            folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js")
        )

        def hashed(text):
            return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

        facts = (tag("div", tag("dt", what), tag("dd", which)) for what, which in self.facts)
        opening = [
            *(paragraph(line, class_="lead") for line in self.about),
            tag("dl", *facts, class_="facts") if self.facts else None,
            *(paragraph(note, class_="note good") for note in self.subjects.notes),
            *([tag("h2", "In short"), bullets(self.short)] if self.short else []),
        ]
        sections = []
        links = []
        for number, (what, inner) in enumerate(self.sections, 1):
            id_ = f"section-{number}"
            label = f"section-{number}-title"
            head = tag("h2", what, id=label)
            sections.append(tag("section", head, inner, id=id_, aria_labelledby=label))
            links.append(tag("li", tag("a", what, href=f"#{id_}")))
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


def _title(source: Source, posterior: Any) -> str:
    sites = len(posterior.sites) if isinstance(posterior, Ledger) else 0
    if hasattr(source.value, "plates"):
        matched = next(iter(source.value.plates.values()), None)
        number = sites or (len(matched.matching) if matched is not None else 0)
        return f"A fusion of {count(number, 'site')}" if number else "A fusion"
    if isinstance(posterior, Ledger):
        what = "federation" if source.visits or source.kind == "Run" else "ledger"
        return f"A {what} of {count(sites, 'site')}"
    if posterior.is_mixture:
        return f"A mixture of {count(posterior.size, 'component')}"
    return "A posterior"
