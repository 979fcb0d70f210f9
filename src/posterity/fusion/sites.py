"""Sites: they are named, checked, put in one order of coordinates, and stacked."""

import abc
import dataclasses
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from posterity.arrays.stacks import stacked, unstacked
from posterity.artifact import provenance as provenances
from posterity.artifact.aligned import (
    aligned,
    coordinates_in,
    labels_in,
    listed,
    named,
    ordered,
    unnamed_parts,
)
from posterity.artifact.many import name_of
from posterity.entries import Entry, merge_entries
from posterity.errors import ParameterError, UsageError
from posterity.families import ExponentialFamily, at_rest
from posterity.families.checks import check_adds, check_proper
from posterity.families.names import Names, has_names, some
from posterity.fusion.block_table import BlockTable
from posterity.fusion.blocks import Block, blocks, side_by_side
from posterity.fusion.networks.options import has_units
from posterity.fusion.plan import (
    Item,
    Plan,
    check_structure,
)
from posterity.ledger import Ledger


class Site(NamedTuple):
    """A site: its posterior, its prior (None if unknown), and, for a ``ledger``, the
    ``contributors`` whose data it has.
    """

    posterior: ExponentialFamily
    prior: ExponentialFamily | None
    contributors: tuple[str, ...] = ()
    ledger: Ledger | None = None


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
                expected="the sites' own posteriors, together by fuse(..., personal=True)",
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
        self.labels |= {n: found for n, q in opened.items() if (found := labels_in(q))}
        for name, value in opened.items():
            self._unnamed.setdefault(unnamed_parts(value), []).append(name)
        checked = _checked({name: named(q, {}) for name, q in ordered.items()})
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
        laid = {path: dataclasses.replace(b, regions=regions) for path, b in laid.items()}
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
        start: Any = named(own[0], {}) if own else self.prior
        if self.in_memory:
            self.loaded |= {n: Site(q, start) for n, q in zip(names, unstacked(batch), strict=True)}
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
            of_one = "; for those of a ledger that differ, personal=True" if count else ""
            raise UsageError(
                found=f"{count} site" + ("s" if not count else ""),
                expected="at least two sites to fuse, of which a ledger is one",
                fix=f"Pass all sites together{of_one}.",
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
            self._first, self.like = next(iter(posteriors.items()))
            prior = self.prior
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


def given_twice(name: str) -> UsageError:
    """Return the error for two posteriors of one site."""
    return UsageError(
        found=f"two posteriors of site {name!r}",
        expected="each site once, or a mapping that names each differently",
    )


def _as_batch(sites: Sequence[Any]) -> Any:
    """Return posteriors without names as one batch (J,) if they have one outline; None for others,
    and for ledgers, networks and blocks that share labels.
    """
    like = sites[0]
    for q in sites:
        if not isinstance(q, ExponentialFamily) or q.batch_shape or has_names(q):
            return None
    tied = any(block.is_tied for block in blocks(like).values())
    if tied or like.network_layers is not None or len({q.outline() for q in sites}) > 1:
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
