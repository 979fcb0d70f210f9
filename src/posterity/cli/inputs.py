"""Files that are fused: they are read, in memory or some at a time, and recorded."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import posterity
from posterity.artifact.many import Alone, Several, name_of, read_many
from posterity.cli import files
from posterity.cli.streams import bar
from posterity.errors import UsageError
from posterity.fusion import Fusion
from posterity.fusion import plan as plans
from posterity.fusion.networks.options import is_network
from posterity.ledger import Ledger
from posterity.status import Progress, ProgressCallback
from posterity.tabular.recipe import RECIPE
from posterity.tabular.reconcile import check_same, reconciled
from posterity.tabular.sites import MOST_SITES, sites_in, together

LISTED = 10_000
"""Number of sites whose digests and matching are listed one by one."""


@dataclasses.dataclass
class Inputs:
    """Record of the files that are fused.

    Attributes:
        record: provenance of the prior, and of the fits.
        notes: remarks on conversions of files, and on oddities.
        sites: facts about the sites' records.
        digests: digests of the first files, by site.
        count: number of all files.
        all: digest of all their names and digests.
    """

    record: dict[str, str]
    notes: list[str] = dataclasses.field(default_factory=list)
    sites: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    digests: dict[str, str] = dataclasses.field(default_factory=dict)
    count: int = 0
    all: Any = dataclasses.field(default_factory=hashlib.sha256)

    def note(self, names: Sequence[str], digests: Sequence[str], about: Mapping[str, str]) -> None:
        """Record some more files of one provenance."""
        if RECIPE in about:
            self.record.setdefault(RECIPE, about[RECIPE])
            self.sites |= sites_in(about)
            if len(self.sites) > MOST_SITES:
                self.sites = {"": together(self.sites.values())}
        self.count += len(names)
        for name, digest in zip(names, digests, strict=True):
            if name in self.digests:
                raise UsageError(
                    found=f"two files of site {name!r}",
                    expected="each site once",
                    fix="Leave one out, or rename one: a site's name is that in its ledger, or "
                    "else that of its file.",
                )
            self.all.update(f"{name} {digest}\n".encode())
            if len(self.digests) < LISTED:
                self.digests[name] = digest


def fused(
    paths: Sequence[str],
    prior: Path | None,
    options: dict[str, Any],
    budget: int | None,
    checkpoint: Path,
) -> tuple[Fusion, Inputs]:
    """Return the fusion, in memory, or file by file if there are too many to match there."""
    before = None
    inputs = Inputs({})
    if prior is not None:
        before, about = files.read_prior(prior)
        inputs.record["prior"] = about.digest
    bytes_of: dict[str, Any] = {} if budget is None else {"budget": budget * 2**20}
    bytes_of["checkpoint"] = checkpoint
    large = budget is not None or sum(map(plans.size_of, paths)) > plans.IN_MEMORY
    if large := large and not is_network(paths[0]):  # networks need memory, or are refused
        bytes_of = {"budget": plans.BUDGET} | bytes_of
    with bar(f"Fusing {len(paths)} files") as moved:
        sites: Any = _read(paths, inputs, moved) if large else _read_singly(paths, inputs)
        return posterity.fuse(sites, prior=before, **options, **bytes_of, progress=moved), inputs


def _read(
    paths: Sequence[str], inputs: Inputs, moved: ProgressCallback
) -> Iterator[Several | Alone]:
    """Yield the values of the files, many at a time; record each file."""
    one: dict[str, Any] = {}
    for read in read_many(paths):
        several = isinstance(read, Several)
        name = read.names[0] if several else read.name
        one = one or {name: read.provenance}
        check_same({**one, name: read.provenance})
        names, digests = (read.names, read.digests) if several else ([read.name], [read.digest])
        inputs.note(names, digests, read.provenance)
        yield read
        moved(Progress(inputs.count, len(paths)))


def _read_singly(paths: Sequence[str], inputs: Inputs) -> list[Alone]:
    """Return the values of the files in the units and levels of the first; record each file."""
    values = {}
    about = {}
    for path in map(Path, paths):
        value, own = files.read(path)
        name = (name_of(value.sites) if isinstance(value, Ledger) else "") or path.stem
        inputs.note([name], [own.digest], own.provenance)
        values[name], about[name] = value, own
    done = reconciled(values, {name: own.provenance for name, own in about.items()})
    inputs.record |= done.provenance
    inputs.sites = sites_in(done.provenance)
    inputs.notes += done.notes
    return [Alone(name, value, about[name].digest, {}) for name, value in done.values.items()]
