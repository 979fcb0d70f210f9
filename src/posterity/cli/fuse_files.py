"""The files of a fusion: read at once or one after the other, and recorded."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterity.cli import files
from posterity.cli.streams import bar
from posterity.errors import UsageError
from posterity.status import Progress

if TYPE_CHECKING:
    from posterity.artifact.many import Alone, Several
    from posterity.fusion import Fusion
    from posterity.status import ProgressCallback

LISTED = 10_000
"""Sites of which digests and matching are told one by one."""


@dataclasses.dataclass
class Inputs:
    """The record of the files that are fused.

    Attributes:
        record: of the prior, and of how all were fitted.
        notes: what was done to put files into one form, and what looks wrong.
        sites: what is known of the sites' records.
        digests: of the first files, by site.
        count: of all files.
        all: a digest of all their names and digests.
    """

    record: dict[str, str]
    notes: list[str] = dataclasses.field(default_factory=list)
    sites: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    digests: dict[str, str] = dataclasses.field(default_factory=dict)
    count: int = 0
    all: Any = dataclasses.field(default_factory=hashlib.sha256)

    def note(self, names: Sequence[str], digests: Sequence[str], about: Mapping[str, str]) -> None:
        """Record some more files of one provenance."""
        from posterity.artifact.recipe import MOST_SITES, RECIPE, sites_in, together

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
                    fix="Leave one out, or rename one: a file goes by the sites of its ledger, "
                    "else by its name.",
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
) -> "tuple[Fusion, Inputs]":
    """The fusion in memory, or file by file where there is more than is matched there."""
    from posterity.fusion import fuse
    from posterity.fusion.networks.options import is_network
    from posterity.fusion.plan import BUDGET, IN_MEMORY, size_of

    before, inputs = None, Inputs({})
    if prior is not None:
        before, about = files.read_prior(prior)
        inputs.record["prior"] = about.digest
    bytes_of: dict[str, Any] = {} if budget is None else {"budget": budget * 2**20}
    bytes_of["checkpoint"] = checkpoint
    large = budget is not None or sum(map(size_of, paths)) > IN_MEMORY
    if large := large and not is_network(paths[0]):  # which are matched in memory, or refused
        bytes_of = {"budget": BUDGET} | bytes_of
    with bar(f"Fusing {len(paths)} files") as moved:
        sites: Any = _read(paths, inputs, moved) if large else _read_singly(paths, inputs)
        return fuse(sites, prior=before, **options, **bytes_of, progress=moved), inputs


def _read(
    paths: Sequence[str], inputs: Inputs, moved: "ProgressCallback"
) -> "Iterator[Several | Alone]":
    """The values of the files, many at a time; each file is recorded."""
    from posterity.artifact.many import Several, read_many
    from posterity.artifact.reconcile import check_same

    first: dict[str, Any] = {}
    for read in read_many(paths):
        several = isinstance(read, Several)
        name = read.names[0] if several else read.name
        first = first or {name: read.provenance}
        check_same({**first, name: read.provenance})
        names, digests = (read.names, read.digests) if several else ([read.name], [read.digest])
        inputs.note(names, digests, read.provenance)
        yield read
        moved(Progress(inputs.count, len(paths)))


def _read_singly(paths: Sequence[str], inputs: Inputs) -> "list[Alone]":
    """The values of the files, put into the units and levels of the first; each is recorded."""
    from posterity.artifact.many import Alone, name_of
    from posterity.artifact.recipe import sites_in
    from posterity.artifact.reconcile import reconciled
    from posterity.ledger import Ledger

    values, about = {}, {}
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
