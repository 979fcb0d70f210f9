"""Reading of sites: they are named, checked, put in one order of coordinates, and stacked."""

import abc
import dataclasses
import functools
import itertools
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from posterity.arrays.stacks import stacked, unstacked
from posterity.arrays.tree import leaves
from posterity.artifact import provenance as provenances
from posterity.artifact.aligned import (
    aligned,
    coordinates_in,
    labels_in,
    listed,
    named,
    names_in,
    ordered,
    unnamed_parts,
)
from posterity.artifact.many import Alone, Several, name_of
from posterity.entries import Entry, merge_entries
from posterity.errors import ParameterError, UsageError
from posterity.families import ExponentialFamily, at_rest
from posterity.families.checks import check_adds, check_proper
from posterity.families.names import Names, has_names, some
from posterity.fusion.block_table import BlockTable, keys_of_sites
from posterity.fusion.blocks import Block, blocks, side_by_side
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching
from posterity.fusion.networks.options import has_units
from posterity.fusion.plan import (
    SHARE,
    TOGETHER,
    Item,
    Plan,
    check_no_units,
    check_structure,
    is_batch,
    items,
    one_by_one,
    together,
    within,
)
from posterity.fusion.rows import MemoryBudget
from posterity.ledger import Ledger


class Site(NamedTuple):
    """A site: its posterior, its prior (None if unknown), and, for a ``ledger``, the
    ``contributors`` whose data it has.
    """

    posterior: ExponentialFamily
    prior: ExponentialFamily | None
    contributors: tuple[str, ...] = ()
    ledger: Ledger | None = None


def read_sites(posteriors: Any, plan: Plan) -> "Sites":
    """Read all sites: in memory if an eighth of the budget suffices for them, else as tables."""
    come, fits = within(items(posteriors), plan.bytes // SHARE)
    if not fits:
        first = next(come)
        come = itertools.chain([first], come)
        what = plan.in_memory_only(first[1])
        if what and plan.budget is not None:
            raise UsageError(
                found=f"{what} of sites whose parameters take more than an eighth of "
                f"budget={plan.budget}",
                expected="parameters that fit: sums of them, all that passes keep, do not suffice",
                fix="Pass a larger budget, or none; or fuse regions of fewer sites, and their "
                "ledgers.",
            )
        fits = bool(what)
    sites = SitesInMemory(plan) if fits else SitesInTables(plan)
    sites.read(come)
    if plan.matching is not Matching.IDENTITY:
        check_no_units(sites.like, sites.coordinates)
    return sites


class Sites(abc.ABC):
    """All sites, checked, with their coordinates in one order and without names.

    ``blocks`` has the blocks of all sites by path (empty for networks); ``loaded`` the sites, if
    they are in memory; ``prior`` the prior of sites without their own; ``labels`` the names of
    members of plates, by site and path; ``shared`` a contributor in two ledgers, and these two;
    ``dependent`` the ledgers in which factors depend on other sites' records; ``tombstones`` of
    sites that ledgers have forgotten.
    """

    in_memory: ClassVar[bool]
    """True if all sites are matched in memory."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.prior = plan.prior
        self.names: list[str] = []
        self.like: Any = None
        self.blocks: dict[str, Block | BlockTable] = {}
        self.loaded: dict[str, Site] = {}
        self.coordinates: Names = {}
        self.labels: dict[str, dict[str, tuple[str, ...]]] = {}
        self._first = self._first_named = ""
        self._known: set[str] = set()
        self._unnamed: dict[frozenset[str], list[str]] = {}
        self._recipe: dict[str, Mapping[str, str]] = {}
        self.without_prior: list[str] = []
        self._owners: dict[str, str] = {}
        self.shared: tuple[str, str, str] | None = None
        self.ledgers: set[str] = set()
        self.dependent: set[str] = set()
        self.tombstones: dict[str, Entry] = {}
        self._epochs: dict[str, int] = {}
        self._batch: Any = None  # all sites, if they are in memory as one batch

    @property
    def networks(self) -> bool:
        """True if sites are networks with hidden units, whose layers are matched."""
        return has_units(self.like)

    @abc.abstractmethod
    def read(self, posteriors: Iterable[Item]) -> None:
        """Read all sites, with named coordinates in one order, and topics over one vocabulary.

        Raises the errors of :func:`posterity.fuse`, and warns about sites without names of
        coordinates if other sites name theirs.
        """

    @abc.abstractmethod
    def _lay(self, names: list[str], laid: Mapping[str, Block]) -> None:
        """Append blocks to those of the previous sites."""

    @abc.abstractmethod
    def contents(self) -> Iterable[Any]:
        """Return a key of each site's parameters, to the last bit."""

    def _enrol(self, name: str | None, value: Any, provenance: Mapping[str, str]) -> str:
        """Return a further site's name, after checking that its file has the others' recipe."""
        own = name_of(value.sites) if isinstance(value, Ledger) else ""
        if isinstance(value, Ledger) and not value.prior.additive:
            raise UsageError(
                found=f"a ledger of a population, of {some(value.sites)}",
                expected="posteriors of sites: what a population makes of them is no sum",
                fix="Fuse the sites' own posteriors together by fuse(..., personal=True).",
            )
        name = name if name is not None else own or f"site-{len(self._known):04d}"
        if name in self._known:
            raise given_twice(name)
        self._known.add(name)
        if isinstance(value, Ledger):
            self._remember(name, value)
        reader = provenances.reader_of([provenance])
        if reader is not None:
            self._recipe = self._recipe or {name: provenance}
            reader.check_same({**self._recipe, name: provenance})
        return name

    def _take(self, opened: Mapping[str, Any]) -> None:
        """Add sites: posteriors and ledgers, by name."""
        if not opened:
            return
        batch = _as_batch(list(opened.values()))
        if batch is not None:
            return self._take_batch(list(opened), batch, None)
        ordered = self._ordered(opened)
        if any(map(names_in, opened.values())):
            self.labels |= {n: found for n, q in opened.items() if (found := labels_in(q))}
            for name, value in opened.items():
                self._unnamed.setdefault(unnamed_parts(value), []).append(name)
            ordered = {name: named(q, {}) for name, q in ordered.items()}
        else:  # all have the same parts, as is checked below
            self._unnamed.setdefault(unnamed_parts(next(iter(opened.values()))), []).extend(opened)
        checked = _checked(ordered)
        self._compare({name: site.posterior for name, site in checked.items()})
        sites = {n: s if s.prior else s._replace(prior=self.prior) for n, s in checked.items()}
        self.without_prior += [name for name, site in sites.items() if site.prior is None]
        for name, site in sites.items():
            self._own(name, site.contributors)
        posteriors, priors, *_ = map(list, zip(*sites.values(), strict=True))
        self.loaded |= sites if self.in_memory else {}
        laid = {} if self.networks else side_by_side(list(sites), posteriors, priors)
        several = [site.ledger if len(site.contributors) > 1 else None for site in sites.values()]
        regions = {at: own for at, own in enumerate(several) if own is not None}
        if regions:
            laid = {p: dataclasses.replace(b, regions=regions) for p, b in laid.items()}
        self._lay(list(sites), laid)

    def _take_batch(
        self, names: list[str], batch: ExponentialFamily, prior: ExponentialFamily | None
    ) -> None:
        """Add sites as one batch (J,); with their common ``prior`` they are ledgers."""
        labels = labels_in(batch)
        if labels:
            self.labels |= dict.fromkeys(names, labels)
        self._unnamed.setdefault(unnamed_parts(batch), []).extend(names)
        (batch, *own) = self._ordered(
            {names[0]: batch} if prior is None else {names[0]: batch, "its prior": prior}
        ).values()
        batch = at_rest(named(batch, {}))
        self._batch = batch if self.in_memory else None
        start: Any = named(own[0], {}) if own else self.prior
        self._compare({names[0]: batch[0]})
        _check_each(batch, names)
        self.without_prior += names if start is None else []
        for name in names if own else ():
            self._own(name, (name,))
        known = {} if start is None else blocks(start)
        parts = blocks(batch)
        self._lay(
            names, {p: Block.of_batch(p, names, part, known.get(p)) for p, part in parts.items()}
        )

    def _ordered(self, opened: Mapping[str, Any]) -> dict[str, Any]:
        """Put coordinates in the order of the first site with names, and topics over the words of
        all sites that are read with it.
        """
        if self.coordinates and self.like is not None:
            wanted = self.coordinates
            own = {n: named(value, coordinates_in(value)) for n, value in opened.items()}
            return {n: ordered(q, wanted, repr(n), self._first_named) for n, q in own.items()}
        result, names = aligned(opened)
        self._first_named = self._first_named or repr(next(iter(opened)))
        prior = ordered(self.prior, names, "the prior", "the sites")
        self.coordinates = names or coordinates_in(prior)
        if self.prior is not None:
            self.prior = named(at_rest(prior), {})
        return result

    def _close(self) -> None:
        """Check that there are two sites or more; warn if some have no names of coordinates."""
        count = len(self._known)
        self._check_forgotten(self._known, self._owners)
        self._known = set()  # frees memory: there may be millions
        if count < 2:
            raise UsageError(
                found=f"{count} site" + ("s" if not count else ""),
                expected="at least two sites to fuse",
                fix="Pass all sites together; for those of a ledger that differ, personal=True.",
            )
        wanted = set(self.coordinates)
        without = sorted(n for parts, own in self._unnamed.items() if parts & wanted for n in own)
        if self.plan.prior is not None and unnamed_parts(self.plan.prior) & wanted:
            without.append("the prior")
        for line in provenances.unnamed(dict.fromkeys(without, ()), listed(self.coordinates)):
            warnings.warn(line, stacklevel=5)

    def _compare(self, posteriors: Mapping[str, ExponentialFamily]) -> None:
        """Compare the structure of sites, and of the prior, with that of the first site."""
        prior = None
        if self.like is None:
            (self._first, self.like), prior = next(iter(posteriors.items())), self.prior
        check_structure(self._first, self.like, posteriors, prior)

    def _remember(self, name: str, ledger: Ledger) -> None:
        """Record whether a ledger's factors depend on other sites, and whom it has forgotten."""
        if not ledger.independent:
            self.dependent.add(name)
        forgotten = {site: ledger.entries[site] for site in ledger.forgotten}
        if forgotten:
            self.tombstones = merge_entries(self.tombstones, forgotten)
        for site in ledger.sites:
            if ledger.entries[site].epoch > 0:
                self._epochs[site] = ledger.entries[site].epoch

    def _check_forgotten(self, *present: Container[str]) -> None:
        """Raise a UsageError if a site is ``present`` that a ledger has forgotten, unless it was
        readmitted under a later epoch.
        """
        back = [
            site
            for site, entry in self.tombstones.items()
            if any(site in names for names in present) and self._epochs.get(site, 0) <= entry.epoch
        ]
        if back:
            raise UsageError(
                found=f"factors of {some(back)}, whom a ledger among them has forgotten",
                expected="sites that none has forgotten, or that were readmitted",
                fix="Leave their files out; if they come back, fuse all sites' own files.",
            )

    def remembered(self, ledger: Ledger) -> Ledger:
        """Return a ledger of the sites with the tombstones of all whom their ledgers forgot."""
        left = {site: own for site, own in self.tombstones.items() if site not in ledger.entries}
        return ledger.holding({**ledger.entries, **left}) if left else ledger

    def _own(self, name: str, contributors: Iterable[str]) -> None:
        """Record the contributors of a ledger."""
        for contributor in contributors:
            self.ledgers.add(name)
            owner = self._owners.setdefault(contributor, name)
            if owner != name and self.shared is None:
                self.shared = contributor, owner, name


class SitesInMemory(Sites):
    """Sites that are matched in memory, in the order of their names."""

    in_memory = True

    def read(self, posteriors: Iterable[Item]) -> None:
        """Read all sites together; convert files to the units and levels of the first."""
        several = list(posteriors)
        if len(several) == 1 and several[0][0] is None and is_batch(several[0][1]):
            batch = several[0][1]
            names = [self._enrol(None, None, {}) for _ in range(batch.batch_shape[0])]
            if len(names) > 1:
                self._take_batch(sorted(names), batch[np.argsort(names)], None)
            return self._close()
        opened: dict[str, Any] = {}
        about: dict[str, Mapping[str, str]] = {}
        for name, value in one_by_one(several):
            alone = value if isinstance(value, Alone) else Alone(name or "", value, "", {})
            own = self._enrol(name if alone is not value else alone.name, alone.value, {})
            opened[own], about[own] = alone.value, alone.provenance
        reader = provenances.reader_of(about.values())
        if reader is not None:
            done = reader.reconciled(opened, about)
            opened = done.values
            for line in done.notes:
                warnings.warn(line, stacklevel=4)
        self._take(dict(sorted(opened.items())))
        self._close()

    def _lay(self, names: list[str], laid: Mapping[str, Block]) -> None:
        self.blocks |= laid
        self.names += names

    def contents(self) -> Iterable[Any]:
        """Yield the parameters of each site as bytes."""
        if not self.loaded:
            parts = [np.asarray(leaf) for leaf in leaves(self._batch)]
            yield from (
                b"".join(part[j].tobytes() for part in parts) for j in range(len(self.names))
            )
        for site in self.loaded.values():
            yield b"".join(np.asarray(leaf).tobytes() for leaf in leaves(site.posterior))


class SitesInTables(Sites):
    """Sites that are written as rows of tables, in the order in which they are read."""

    in_memory = False

    def read(self, posteriors: Iterable[Item]) -> None:
        """Read sites, single ones many at a time and batches whole, into the tables."""
        waiting: dict[str, Any] = {}
        for name, value in together(posteriors):
            batch = isinstance(value, Several) or (name is None and is_batch(value))
            if batch or len(waiting) == TOGETHER:
                self._take(waiting)
                waiting = {}
            if isinstance(value, Several):
                names = [self._enrol(own, None, value.provenance) for own in value.names]
                self._take_batch(names, value.posterior, value.prior)
            elif batch:
                names = [self._enrol(None, None, {}) for _ in range(value.batch_shape[0])]
                self._take_batch(names, value, None)
            elif isinstance(value, Alone):
                waiting[self._enrol(value.name, value.value, value.provenance)] = value.value
            else:
                waiting[self._enrol(name, value, {})] = value
        self._take(waiting)
        self._close()
        for table in self.blocks.values():
            table.close()  # pyright: ignore[reportAttributeAccessIssue]

    def _lay(self, names: list[str], laid: Mapping[str, Block]) -> None:
        side = self.plan.divergence
        budget = self._budget
        assert isinstance(side, Divergence)  # others are matched in memory
        # Matching by name includes components without data.
        every = bool(self.labels) or self.plan.matching is Matching.IDENTITY
        for path, block in laid.items():
            if path not in self.blocks:
                self.blocks[path] = BlockTable(path, block.like, self.names, side, budget, every)
            table: Any = self.blocks[path]
            table.append(block)
        self.names += names

    @functools.cached_property
    def _budget(self) -> MemoryBudget:
        return MemoryBudget(self.plan.bytes // 4)

    def contents(self) -> Iterable[Any]:
        """Return a 64-bit hash of each site."""
        return keys_of_sites(self.blocks).tolist()


def given_twice(name: str) -> UsageError:
    """Return the error for two posteriors of one site."""
    return UsageError(
        found=f"two posteriors of site {name!r}",
        expected="each site once",
        fix="Leave one out, or pass a mapping that names each site differently.",
    )


def _as_batch(sites: Sequence[Any]) -> Any:
    """Return posteriors without names as one batch (J,) if they have one outline; None for others,
    and for ledgers, networks and blocks that share labels.
    """
    like, *others = sites
    kind = type(like)
    if not issubclass(kind, ExponentialFamily) or not {kind}.issuperset(map(type, others)):
        return None
    single = like.network_layers is None and not any(b.is_tied for b in blocks(like).values())
    outline = like.outline()
    if not single or any(q.batch_shape or q.outline() != outline or has_names(q) for q in sites):
        return None
    return stacked(like, sites)


def _checked(opened: Mapping[str, Any]) -> dict[str, Site]:
    """Return the sites, checked for proper parameters, and in NumPy float64."""
    sums = {n: q.total if isinstance(q, Ledger) else q for n, q in opened.items()}
    alike: dict[Any, list[str]] = {}
    for name, value in sums.items():
        check_adds(value, f"site {name!r}")
        alike.setdefault((value.outline(), value.batch_shape), []).append(name)
    rested: dict[str, ExponentialFamily] = {}
    for names in alike.values():
        batch = at_rest(stacked(sums[names[0]], [sums[name] for name in names]))
        _check_each(batch, names)
        rested |= zip(names, unstacked(batch), strict=True)
    return {
        n: Site(rested[n], q.prior, q.sites, q) if isinstance(q, Ledger) else Site(rested[n], None)
        for n, q in opened.items()
    }


def _check_each(batch: ExponentialFamily, names: list[str]) -> None:
    """Raise a ParameterError that names the site whose posterior is improper."""
    try:
        check_proper(batch, "these sites")
    except ParameterError:
        for index, name in enumerate(names):
            check_proper(batch[index], f"site {name!r}")
