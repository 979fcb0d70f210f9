"""Sources of a report: values and files of known types, and how they belong together."""

import contextlib
import dataclasses
import functools
import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posterity.artifact import Inspection, digest
from posterity.artifact.many import Alone, name_in
from posterity.artifact.provenance import PERSONAL
from posterity.errors import StructureError, UsageError
from posterity.families.distribution import Distribution
from posterity.families.names import has_names, with_names
from posterity.ledger import Ledger
from posterity.receipt import Receipt
from posterity.runtime.files import check_regular, named
from posterity.tabular.recipe import Recipe, recipe_in
from posterity.tabular.sites import read_any, sites_in

OF_FUSE = ("rule", "divergence", "matching", "components", "absorb")
"""Options of a fusion that its file stores."""
KINDS = ("Run", "Fusion", "NetworkFusion", "Pursuit", "Distillation", "Student")
"""Results that a page can show, by type name."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A value to report, and its origin.

    Attributes:
        name: name of its file, or of its type.
        value: a law, a ledger, a student, a receipt, or the result of a verb.
        about: inspection of its file; None for a value.
        visits: visits so far, for a federation.
    """

    name: str
    value: Any
    about: Inspection | None = None
    visits: Sequence[Any] = ()

    @property
    def provenance(self) -> Mapping[str, str]:
        """Provenance by key, as its file stores it."""
        return {} if self.about is None else self.about.provenance

    @property
    def kind(self) -> str:
        """Name of its type."""
        return type(self.value).__name__

    @property
    def recipe(self) -> Recipe | None:
        """Recipe of its model, if its file has one."""
        return recipe_in(self.provenance)

    @property
    def posterior(self) -> Any:
        """The source's ledger, or else its law; None for a receipt and a student."""
        if isinstance(self.value, Ledger | Distribution):
            return self.value
        ledger = getattr(self.value, "ledger", None)
        return ledger if isinstance(ledger, Ledger) else getattr(self.value, "posterior", None)

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the posterior, independent of its file's other content; empty without one."""
        return "" if self.posterior is None else digest(self.posterior)


def read(source: object) -> Source:
    """Return the value of a file, or a value itself, as a source.

    Raises:
        ArtifactError: for a file that is missing, foreign, altered or of a newer version.
        StructureError: for other types.
    """
    name = type(source).__name__
    about = None
    value = source
    if isinstance(source, str | os.PathLike):
        site, path = named(source)
        name = site or path.name
        check_regular(path)
        start = b""
        with contextlib.suppress(OSError), path.open("rb") as file:  # raised when the file is read
            start = file.read(1)
        if start == b"{":
            return Source(name, Receipt.load(path))
        value, about = read_any(source)
        if isinstance(value, dict) and "ledger" in value and "federate" in about.provenance:
            return _checkpoint(path, value, about)
    kind = type(value).__name__
    if isinstance(value, Ledger | Distribution | Receipt) or kind in KINDS:
        visits: Any = getattr(value, "trace", ()) if kind == "Run" else ()
        return Source(name, value, about, tuple(visits))
    raise StructureError(
        found=f"a {kind}" if about is None else f"a {about.kind} in '{source}'",
        expected="a posterior, a ledger, a receipt, a student, the result of a verb, or a path",
        fix="See what is in a file by posterity inspect FILE.",
    )


def _checkpoint(path: Path, value: dict[str, Any], about: Inspection) -> Source:
    from posterity.federation.checkpoint import visits_of

    position = json.loads(about.provenance["federate"])["position"]
    visits = visits_of(value["trace"])
    about = dataclasses.replace(about, provenance={"steps": str(position.get("step", 0))})
    return Source(path.name, value["ledger"], about, visits)


@dataclasses.dataclass(frozen=True)
class Subjects:
    """The subjects of a page.

    Attributes:
        main: sources with their own sections.
        receipts: receipts with the ledgers before and after, if these are among the files.
        inputs: files that were fused for this page.
        notes: remarks on how the sources belong together.
    """

    main: tuple[Source, ...]
    receipts: tuple[tuple[Source, Source | None, Source | None], ...] = ()
    inputs: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> list[Inspection]:
        """Inspections of all sources that are files, without duplicates."""
        parts = [*self.inputs, *self.main]  # a fusion made for the page has its first file's path
        parts += [part for receipt in self.receipts for part in receipt if part is not None]
        files = (part.about for part in reversed(parts) if part.about is not None)
        return list({about.path: about for about in files}.values())


def subjects_of(sources: Iterable[object]) -> Subjects:
    """Return the subjects of a page; several posteriors are fused as ``fuse`` does.

    A receipt is shown with the ledgers before and after it, a checkpoint with its ledger, and a
    fused posterior with the files that it was made from; none of these is fused again.

    Raises:
        UsageError: for no source.
        PosterityError: as :func:`read`, and :func:`posterity.fuse` of several posteriors.
    """
    known = [read(source) for source in sources]
    if not known:
        raise UsageError(found="no file", expected="one at least")
    receipts = [one for one in known if isinstance(one.value, Receipt)]
    others = [one for one in known if not isinstance(one.value, Receipt)]
    by_digest = {one.digest: one for one in others if isinstance(one.posterior, Ledger)}
    pairs = tuple(
        (one, by_digest.get(one.value.before), by_digest.get(one.value.after)) for one in receipts
    )
    after = {id(ledger) for _, _, ledger in pairs if ledger is not None}
    before = [b for _, b, a in pairs if a is not None and b is not None]
    shown = _with_visits([one for one in others if one not in before or id(one) in after])

    def plain(one):
        return one.value is one.posterior and not one.visits and id(one) not in after

    loose = [one for one in shown if plain(one)]
    result = _result_of(loose)
    inputs = [one for one in loose if one is not result]
    if len(inputs) < 2:
        return Subjects(tuple(shown), pairs)
    fused, notes = _fused(inputs, result)
    shown = [fused, *(one for one in shown if one not in loose)]
    return Subjects(tuple(shown), pairs, tuple(inputs), tuple(notes))


def _with_visits(sources: list[Source]) -> list[Source]:
    """Merge each ledger with the checkpoint of the run that made it."""
    runs = {one.digest: one.visits for one in sources if one.visits}
    merged = [
        dataclasses.replace(one, visits=runs[one.digest])
        for one in sources
        if not one.visits and isinstance(one.value, Ledger) and one.digest in runs
    ]
    told = {one.digest for one in merged}

    def left(one):
        return not isinstance(one.posterior, Ledger) or one.digest not in told

    return [*merged, *filter(left, sources)]


def _result_of(sources: Sequence[Source]) -> Source | None:
    """Return the source that was fused from all others, if there is one."""
    files = {id(one): one.about.digest for one in sources if one.about is not None}
    for one in sources:
        inputs = {text for key, text in one.provenance.items() if key.startswith("input ")}
        if inputs and inputs == {name for which, name in files.items() if which != id(one)}:
            return one
    sites = [set(s.value.sites) if isinstance(s.value, Ledger) else set() for s in sources]
    for one, own in zip(sources, sites, strict=True):  # a ledger of the union of all others' sites
        others = [sites[k] for k, other in enumerate(sources) if other is not one]
        if len(others) > 1 and all(others) and own == set().union(*others):
            return one
    return None


def _fused(inputs: Sequence[Source], result: Source | None) -> tuple[Source, list[str]]:
    """Return the fusion of several posteriors, with the options that their result records."""
    from posterity.fusion import fuse

    kept = {} if result is None else result.provenance
    options: dict[str, Any] = {key: kept[key] for key in OF_FUSE if key in kept}
    if PERSONAL in kept:
        options = {"personal": json.loads(kept[PERSONAL])}
    for key in options.keys() & {"components", "absorb"}:
        options[key] = json.loads(options[key])
    start = "weight "
    weights = {k.removeprefix(start): float(v) for k, v in kept.items() if k.startswith(start)}
    if weights:
        options["weights"] = weights
    if result is not None and "prior" in kept and isinstance(result.value, Ledger):
        prior: Any = result.value.prior  # which has the one that was passed
        prior = prior.coefficients if PERSONAL in kept else prior
        first = inputs[0].posterior
        law = getattr(first, "posterior", first)
        options["prior"] = prior if has_names(law) else with_names(prior, {})
    sites: Any = [one.value for one in inputs]
    if all(one.about is not None for one in inputs):
        sites = [
            Alone(name_in(one.value, one.name), one.value, one.about.digest, one.about.provenance)
            for one in inputs
            if one.about is not None
        ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # shown on the page
        fusion = fuse(sites, **options)
    if result is None:
        about = next((one.about for one in inputs if one.recipe is not None), None)
        note = f"{len(inputs)} files were fused for this page; no file of the result was given."
        return Source("their fusion", fusion, about), [note]
    same = digest(Source("", fusion).posterior) == result.digest
    note = f"The matching was found anew from the files that {result.name} names; " + (
        "it gives the same posterior, to the last bit."
        if same
        else "it gives another posterior: the file may be of another release, or its options are "
        "not all kept. The page shows what was found anew."
    )
    return dataclasses.replace(result, value=fusion), [note]


def known_records(sources: Iterable[Source]) -> dict[str, dict[str, Any]]:
    """Return, by site, the facts about its records, from all sources."""
    known: dict[str, dict[str, Any]] = {}
    for one in sources:
        known |= sites_in(one.provenance)
    return known
