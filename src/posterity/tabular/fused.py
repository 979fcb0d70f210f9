"""Fusion of files with what they say of their records: what was read, partial pooling, distances.

Files are read in memory, or some at a time; regressions are put into common units and levels.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import posterity
from posterity.artifact import Inspection, open_artifact
from posterity.artifact.many import Alone, Several, name_in, read_many
from posterity.artifact.provenance import PERSONAL
from posterity.errors import CHOOSE, UsageError
from posterity.families.names import names_of, some
from posterity.fusion import Fusion
from posterity.fusion import plan as plans
from posterity.fusion.networks.options import is_network
from posterity.ledger import Ledger
from posterity.runtime.files import named
from posterity.status import Progress, ProgressCallback
from posterity.tabular.recipe import RECIPE, Recipe, recipe_in
from posterity.tabular.reconcile import check_same, reconciled
from posterity.tabular.sites import MOST_SITES, as_provenance, sites_in, together, twice

if TYPE_CHECKING:
    from posterity.tabular.multicentre import Columns

Reader = Callable[[Path], tuple[Any, Inspection]]
"""A function that reads a file, as :func:`posterity.artifact.open_artifact`."""


@dataclasses.dataclass
class Inputs:
    """Record of the files that are fused.

    Attributes:
        listed: number of sites whose digests are kept one by one; ten thousand fit into a header.
        record: provenance of the fits.
        notes: remarks on conversions of files, and on oddities.
        sites: facts about the sites' records.
        digests: digests of the first files, by site.
        count: number of all files.
        all: digest of all their names and digests.
        untold: number of files that say nothing of their records, as imported ones.
    """

    listed: int = 10_000
    record: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    sites: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    digests: dict[str, str] = dataclasses.field(default_factory=dict)
    count: int = 0
    all: Any = dataclasses.field(default_factory=hashlib.sha256)
    untold: int = 0

    @property
    def recipe(self) -> Recipe | None:
        """Recipe of the files; None if they have none."""
        return recipe_in(self.record)

    def exact(self, sites: Sequence[str]) -> bool:
        """Return whether the files hold all that the records of these sites tell: they are fits of
        a linear model with known noise.
        """
        if self.recipe is None or not self.recipe.conjugate:
            return False
        if [*self.sites] == [""]:  # too many to know one by one
            return not self.untold
        return all("records" in self.sites.get(site, {}) for site in sites)

    def note(self, names: Sequence[str], digests: Sequence[str], about: Mapping[str, str]) -> None:
        """Record some more files of one provenance; a UsageError for a site that is known."""
        facts = sites_in(about)
        if not facts:
            self.untold += len(names)
        if RECIPE in about:
            self.record.setdefault(RECIPE, about[RECIPE])
            self.sites |= facts
            if len(self.sites) > MOST_SITES:
                self.sites = {"": together(self.sites.values())}
        self.count += len(names)
        for name, digest in zip(names, digests, strict=True):
            if name in self.digests:
                raise twice("files", name)
            self.all.update(f"{name} {digest}\n".encode())
            if len(self.digests) < self.listed:
                self.digests[name] = digest


def fused(
    paths: Sequence[str],
    inputs: Inputs,
    *,
    budget: int | None = None,
    read: Reader = open_artifact,
    progress: ProgressCallback,
    personal: "Columns" = None,
    **options: Any,
) -> Fusion:
    """Return the fusion of files, in memory, or file by file if there are too many to match there.

    Args:
        paths: paths of files of posteriors or ledgers, or ``NAME=FILE``, which are read in memory.
        inputs: record to which the files are added.
        budget: bytes of memory; with a budget files are read some at a time.
        read: reader of files that are matched in memory.
        progress: callback with the number of files that were read, and of the fusion.
        personal: columns whose coefficients differ between sites; all files are read in memory.
        options: other arguments of :func:`posterity.fuse`.
    """
    if personal not in (None, False):
        alone = _in_memory(paths, inputs, read)
        columns = _columns(personal, alone, inputs)
        refined = [s.name for s in alone if isinstance(s.value, Ledger) and not s.value.independent]
        if refined:
            inputs.notes.append(
                f"factors of {some(refined)} were refined together, and are no fits of sites' "
                "records by themselves: fuse files of posterity fit, or run federate --personal"
            )
        inputs.record[PERSONAL] = json.dumps(columns, ensure_ascii=False)
        return posterity.fuse(alone, personal=columns, budget=budget, **options, progress=progress)
    files = [named(path) for path in paths]
    large = budget is not None or sum(plans.size_of(path) for _, path in files) > plans.IN_MEMORY
    sites: Any
    large = large and not any(name for name, _ in files)
    if large and not is_network(paths[0]):  # networks need memory, or are refused
        budget = budget or plans.BUDGET
        sites = _in_passes(paths, inputs, progress)
    else:
        sites = _in_memory(paths, inputs, read)
    return posterity.fuse(sites, budget=budget, **options, progress=progress)


def _in_passes(
    paths: Sequence[str], inputs: Inputs, moved: ProgressCallback
) -> Iterator[Several | Alone]:
    """Yield the values of the files, many at a time; record each file."""
    one: dict[str, Any] = {}
    for read in read_many(paths):
        several = isinstance(read, Several)
        names, digests = (read.names, read.digests) if several else ([read.name], [read.digest])
        one = one if RECIPE in next(iter(one.values()), {}) else {names[0]: read.provenance}
        check_same({**one, names[0]: read.provenance})
        inputs.note(names, digests, read.provenance)
        yield read
        moved(Progress(inputs.count, len(paths)))


def _in_memory(paths: Sequence[str], inputs: Inputs, read: Reader) -> list[Alone]:
    """Return the values of the files in the units and levels of the first; record each file."""
    values = {}
    about = {}
    for path in map(Path, paths):
        value, own = read(path)
        given, file = named(path)
        name = given or name_in(value, file)
        if name in about:
            raise twice(f"files, '{about[name].path}' and '{file}',", name)
        inputs.note([name], [own.digest], own.provenance)
        values[name] = value
        about[name] = own
    done = reconciled(values, {name: own.provenance for name, own in about.items()})
    inputs.record |= done.provenance
    inputs.sites = sites_in(done.provenance)
    inputs.notes += done.notes
    return [Alone(name, value, about[name].digest, {}) for name, value in done.values.items()]


def provenance_of(fusion: Fusion, inputs: Inputs, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the provenance of a fusion's file: its rule, its ``options``, and its inputs.

    ``options`` are arguments of :func:`posterity.fuse`.
    """
    components = options.get("components")
    absorb = options.get("absorb")
    weights = options.get("weights") or {}
    rebased = json.dumps(fusion.rebased, ensure_ascii=False)
    if len(fusion.rebased) > inputs.listed:
        rebased = f"{len(fusion.rebased)} sites"
    record = {}
    if PERSONAL not in inputs.record:
        record["rule"] = fusion.rule.value
        record["divergence"] = fusion.divergence.value
        record["matching"] = str(options["matching"])
    if inputs.count > inputs.listed:  # a header has no room for the digests of a million files
        record["inputs"] = f"sha256 of names and digests: {inputs.all.hexdigest()}"
    else:
        record |= {f"input {site}": digest for site, digest in inputs.digests.items()}
    if fusion.rebased:
        record["rebased"] = rebased
    if components is not None:
        record["components"] = str(components)
    if absorb is not None:
        record["absorb"] = str(absorb).lower()
    record |= {f"weight {site}": repr(float(weight)) for site, weight in weights.items()}
    recipe = inputs.recipe if inputs.sites else None
    return record | inputs.record | as_provenance(recipe, inputs.sites)


# --- distance from all records -------------------------------------------------------------------


class Distance(NamedTuple):
    """How far, in nats, a fusion is from the posterior of all records; None if that is unknown.

    ``warnings`` are those of the fusion and of its distance, ``notes`` are remarks.
    """

    nats: float | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()


def distance_of(fusion: Fusion, inputs: Inputs) -> Distance:
    """Return the distance of a fusion of regressions from the posterior of all records.

    A site whose file is not informative is left out when others are compared.
    """
    ledger = fusion.ledger
    recipe = inputs.recipe
    if ledger is None or recipe is None:
        return Distance(None, fusion.warnings)
    if inputs.exact(ledger.sites):
        return Distance(0.0, fusion.warnings)
    from posterity.tabular.one_shot import expected_distance

    known = expected_distance(ledger, inputs.sites)
    heard = fusion.warnings
    if known.silent:
        left = {site: entry for site, entry in ledger.entries.items() if site not in known.silent}
        rest = {site: Ledger(ledger.prior).holding({site: left[site]}) for site in left}
        heard = posterity.fuse(rest, warn=False).warnings if len(rest) > 1 else ()
    unknown = known.distance is None and not known.warnings
    note = (
        "the distance from the posterior of all records together is unknown, since the sites' "
        f"files do not determine it: if the sites can take part again, federate{CHOOSE}"
    )
    return Distance(known.distance, (*heard, *known.warnings), (note,) if unknown else ())


def _columns(personal: "Columns", sites: Sequence[Alone], inputs: Inputs) -> Any:
    """Return the argument ``personal`` of :func:`posterity.fuse`, by names of coefficients."""
    from posterity.inference.federated_effects import is_pooled
    from posterity.tabular.multicentre import personal_of

    laws = [getattr(one.value, "posterior", one.value) for one in sites]
    differ = (inputs.recipe is not None and inputs.recipe.own) or any(map(is_pooled, laws))
    found = "--personal with files whose sites differ already (--own, --personal)"
    UsageError.check((differ, found, "the files of posterity fit, without --own"))
    each = (names_of(law).get("", ()) for law in laws)
    return personal_of(personal, tuple(dict.fromkeys(name for own in each for name in own)))


def distance_of_pooled(fusion: Fusion, inputs: Inputs) -> Distance:
    """Return how far partial pooling of files is from that of all records, which is 0 of linear
    models and else unknown.
    """
    from posterity.tabular.one_shot import silent_in, without_estimates

    ledger = fusion.ledger
    recipe = inputs.recipe
    if ledger is None or recipe is None:
        return Distance(None, fusion.warnings)
    heard = [*fusion.warnings, *without_estimates(silent_in(ledger, inputs.sites))]
    notes = []
    exact = inputs.exact(ledger.sites)
    if not exact:
        again = f": if the sites can take part again, run federate --personal{CHOOSE}"
        again = "" if recipe.model == "multinomial" else again
        notes.append(
            "the distance from partial pooling of all records is unknown, since sites' Gaussians "
            f"replace their records{again}"
        )
    return Distance(0.0 if exact and not heard else None, tuple(heard), tuple(notes))
