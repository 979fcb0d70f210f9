"""The ledger: a prior and one versioned factor per site, whose sum is the posterior."""

import dataclasses
import functools
import warnings
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Self

from posterity import entries as versions
from posterity.entries import Entry, all_at_rest, among, by_site, check_names, checked, with_factors
from posterity.errors import LedgerError
from posterity.families import ExponentialFamily, at_rest
from posterity.families.checks import check_adds, check_proper, check_same_structure
from posterity.families.names import Names, in_order, names_of, posterior_line, some, with_names
from posterity.runtime.text import cut, listed


@dataclasses.dataclass(frozen=True)
class Ledger:
    """A prior plus one factor per site; ``posterior`` is their sum in natural parameters.

    Immutable. All numbers are stored as NumPy float64. Sums are exact and rounded once, so the
    posterior after forgetting a site equals, to the last bit, that of a ledger that never had it.
    Coordinates are named by the prior; named factors are permuted to the prior's order.
    ``merge`` keeps each site's highest entry. It is commutative, associative and idempotent (a join
    semilattice, shapiro2011), so replayed or reordered messages cannot count data twice.

    >>> from posterity.families import Gamma
    >>> ledger = Ledger(Gamma.from_standard(shape=1.0, rate=1.0))
    >>> ledger = ledger.update("north", Gamma(3.0, 2.0)).update("south", Gamma(5.0, 4.0))
    >>> float(ledger.posterior.rate), float(ledger.forget("south").posterior.rate)
    (7.0, 3.0)
    """

    prior: ExponentialFamily
    entries: Mapping[str, Entry] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_adds(self.prior, "the prior")
        check_proper(self.prior, "the prior")
        object.__setattr__(self, "prior", at_rest(_called(self.prior, self.entries)))
        object.__setattr__(self, "entries", by_site(self._rested(self.entries)))
        check_names(self.entries)

    @classmethod
    def of_site(
        cls, site: str, *, prior: ExponentialFamily, posterior: ExponentialFamily
    ) -> "Ledger":
        """Return the ledger of one site's own posterior; its factor is ``posterior - prior``.

        Raises:
            ParameterError: if either has NaN or infinite parameters, or is improper.
            StructureError: if the two differ in family or shape.

        >>> from posterity import Beta
        >>> prior, own = Beta.from_standard(1.0, 1.0), Beta.from_standard(3.0, 2.0)
        >>> Ledger.of_site("north", prior=prior, posterior=own)
        Ledger(1 site: north; Beta(0.6 ± 0.2))
        """
        place = f"the posterior of site {site!r}"
        check_adds(posterior, place)
        check_proper(posterior, place)
        check_same_structure(prior, posterior, f"site {site!r}")
        factor = at_rest(posterior) - at_rest(prior)
        return cls(prior).update(site, factor, independent=True)

    @functools.cached_property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that have a factor, sorted."""
        return tuple(site for site, entry in self.entries.items() if entry.factor is not None)

    @functools.cached_property
    def forgotten(self) -> tuple[str, ...]:
        """Names of the sites that were forgotten and not readmitted, sorted."""
        return tuple(site for site, entry in self.entries.items() if entry.factor is None)

    @property
    def names(self) -> Any:
        """Names of the prior's coordinates; see :attr:`Distribution.names`."""
        return self.prior.names

    def named(self, names: Any) -> "Ledger":
        """Return the ledger with these names of coordinates. Raises StructureError as
        :meth:`Distribution.named` does.
        """
        return self._under(self.prior.named(names))

    def in_order(self, wanted: Names, place: str, of: str) -> "Ledger":
        """Return the ledger with its coordinates permuted to another order, exactly.

        ``wanted`` are names by path (:func:`posterity.families.names.names_of`); ``place`` and
        ``of`` describe this ledger and the origin of the wanted names in error messages.

        Raises:
            StructureError: if the ledger has other names.
        """
        mine = names_of(self.prior)

        def move(law):
            return in_order(with_names(law, mine), wanted, place, of)

        ledger = self._under(move(self.prior))
        if all(mine.get(path, own) == own for path, own in wanted.items()):
            return ledger
        return ledger._with(with_factors(self.entries, lambda _, factor: _bare(move(factor))))

    @functools.cached_property
    def posterior(self) -> ExponentialFamily:
        """Prior plus all factors, added exactly and rounded to nearest once; of sites that differ
        the population's (:class:`.RandomEffects`). Raises ParameterError if it is improper.
        """
        check_proper(self.total, "the posterior of the ledger")
        return self.total

    @functools.cached_property
    def total(self) -> ExponentialFamily:
        """Prior plus all factors, which may be improper. Raises ParameterError if a sum is beyond
        the range of float64.
        """
        return self._sum(self.sites)

    @property
    def independent(self) -> bool:
        """True if every factor was computed from its own site's data only."""
        return all(self.entries[site].independent for site in self.sites)

    def factor(self, site: str) -> ExponentialFamily:
        """Return the factor of one site, in natural parameters; it may be improper. Raises
        LedgerError if the ledger has no factor of the site.

        >>> from posterity import Beta
        >>> Ledger(Beta.from_standard(1.0, 1.0)).update("north", Beta(2.0, 1.0)).factor("north")
        Beta(0.6 ± 0.2)
        """
        entry = self.entries.get(site)
        if entry is None or entry.factor is None:
            past = " (it was forgotten)" if site in self.forgotten else ""
            raise LedgerError(
                found=f"no factor of site {site!r}{past}",
                expected=f"one of {list(self.sites[:10])}" + " and others" * (len(self.sites) > 10),
            )
        return with_names(entry.factor, names_of(self.prior))

    def cavity(self, site: str) -> ExponentialFamily:
        """Return the prior plus the factors of all other sites; it may be improper. Raises
        LedgerError if the ledger has no factor of the site.

        >>> from posterity import Beta
        >>> ledger = Ledger(Beta.from_standard(1.0, 1.0))
        >>> ledger = ledger.extend({"north": Beta(2.0, 1.0), "south": Beta(1.0, 5.0)})
        >>> ledger.cavity("south")
        Beta(0.6 ± 0.2)
        """
        self.factor(site)
        return self._sum(name for name in self.sites if name != site)

    def update(
        self,
        site: str,
        factor: ExponentialFamily,
        *,
        epoch: int | None = None,
        sequence: int | None = None,
        independent: bool = False,
    ) -> "Ledger":
        """Return a ledger in which ``factor`` replaces the factor of ``site``, if it has one.

        By default the version is the next in the site's epoch; to readmit a forgotten site, pass a
        higher epoch. Pass ``independent=True`` if the computation of the factor did not use other
        sites' factors (:class:`Entry`). For many sites at once, :meth:`extend` is cheaper.

        Raises:
            LedgerError: if the version is not above the site's current one.
            ParameterError: if the factor has NaN or infinite parameters.
            StructureError: if the factor differs from the prior in family or shape.

        >>> from posterity import Beta
        >>> ledger = Ledger(Beta.from_standard(1.0, 1.0)).update("north", Beta(9.0, 9.0))
        >>> ledger.update("north", Beta(2.0, 1.0)).posterior
        Beta(0.6 ± 0.2)
        """
        return self._updated({site: self._next(site, factor, epoch, sequence, independent)})

    def extend(
        self,
        factors: Mapping[str, ExponentialFamily],
        *,
        independent: bool | Collection[str] = False,
    ) -> "Ledger":
        """Return a ledger after :meth:`update` for many sites, at a cost linear in their number.

        ``independent`` tells whether all factors are, or the sites whose are.

        Raises:
            LedgerError, ParameterError, StructureError: as ``update``; no site is updated then.

        >>> from posterity import Beta
        >>> ledger = Ledger(Beta.from_standard(1.0, 1.0))
        >>> ledger.extend({"north": Beta(1.0, 1.0), "south": Beta(1.0, 0.0)})
        Ledger(2 sites: north, south; Beta(0.6 ± 0.2))
        """
        alone = among(factors, independent)
        new = {s: self._next(s, factor, None, None, s in alone) for s, factor in factors.items()}
        return self._updated(new)

    def forget(self, *sites: str) -> "Ledger":
        """Return a ledger without these sites' factors, with a tombstone for each.

        Raises:
            LedgerError: if the ledger has no factor of a site; no site is forgotten then.

        >>> from posterity import Beta
        >>> ledger = Ledger(Beta.from_standard(1.0, 1.0))
        >>> ledger = ledger.extend({"north": Beta(2.0, 1.0), "south": Beta(1.0, 5.0)})
        >>> ledger.forget("south")
        Ledger(1 site: north, 1 forgotten; Beta(0.6 ± 0.2))
        """
        for site in sites:
            self.factor(site)
        left = {s: Entry(self.entries[s].epoch, self.entries[s].sequence, None) for s in sites}
        return self._with({**self.entries, **left})

    def merge(self, other: "Ledger") -> "Ledger":
        """Return a ledger of each site's highest entry in both; also written ``self | other``.

        Raises:
            LedgerError: if the priors differ, or one version of a site has two contents.
            StructureError: if the priors differ in family or shape.

        >>> from posterity import Beta
        >>> start = Ledger(Beta.from_standard(1.0, 1.0))
        >>> north = start.update("north", Beta(1.0, 1.0))
        >>> south = start.update("south", Beta(1.0, 0.0))
        >>> north | south
        Ledger(2 sites: north, south; Beta(0.6 ± 0.2))
        >>> north | south | north == south | north
        True
        """
        check_same_structure(self.prior, other.prior, "the prior of the other ledger")
        if (mine := names_of(self.prior)) != (theirs := names_of(other.prior)):
            wanted = {**theirs, **mine}
            for ledger, names, which in ((self, mine, "this"), (other, theirs, "the other")):
                if ledger.sites and set(wanted) - set(names):
                    warn_of_order(f"{which} ledger", with_names(self.prior, wanted))
            self = self.in_order(wanted, "this ledger", "the other")
            other = other.in_order(wanted, "the other ledger", "this one")
        if self.prior != other.prior:
            raise LedgerError(
                found="two ledgers with different priors",
                expected="one prior, shared by all sites",
                fix="Give both one prior, Ledger(prior, ledger.entries): factors hold none. "
                "posterity.fuse with rule='product' does, and matches components.",
            )
        merged = versions.merge_entries(self.entries, other.entries)
        check_names(other.entries.keys() - self.entries.keys(), self.entries)
        return self._with(merged)

    __or__ = merge

    def renamed(self, site: str) -> "Ledger":
        """Return the ledger with another name of its only site. Raises LedgerError unless it is of
        one site.

        >>> from posterity import Beta
        >>> ledger = Ledger(Beta.from_standard(1.0, 1.0)).update("data", Beta(2.0, 1.0))
        >>> ledger.renamed("north").sites
        ('north',)
        """
        if len(self.entries) != 1:
            raise LedgerError(
                found=f"the name {site!r} for a ledger of {listed(self.entries) or 'no site'}",
                expected="a ledger of one site",
            )
        check_names([site])
        (entry,) = self.entries.values()
        return self._with({site: entry})

    def compact(self) -> "Ledger":
        """Return the ledger without tombstones, equal to one that never had the forgotten sites.

        Use it when no copy with the forgotten factors remains to be merged.

        >>> from posterity import Beta
        >>> north = Ledger(Beta.from_standard(1.0, 1.0)).update("north", Beta(2.0, 1.0))
        >>> north.update("south", Beta(1.0, 5.0)).forget("south").compact() == north
        True
        """
        return self._with({site: self.entries[site] for site in self.sites})

    def holding(self, entries: Mapping[str, Entry]) -> "Ledger":
        """Return a ledger of this prior with entries whose versions and names are already checked.
        Raises ParameterError or StructureError if a factor is not finite, or not like the prior.
        """
        return self._with(self._at_rest(entries))

    def __repr__(self) -> str:
        """Return one line with sites and posterior, fast for any size; never raise."""
        try:
            sites = self.sites
            gone = len(self.forgotten)
            count = f"{len(sites)} site{'' if len(sites) == 1 else 's'}"
            count += f": {listed(sites)}" if sites else ""
            count += f", {gone} forgotten" if gone else ""
            return cut(f"Ledger({count}; {posterior_line(self.prior, sites, lambda: self.total)})")
        except Exception:
            return f"{type(self).__name__}(?)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger) or self.entries.keys() != other.entries.keys():
            return False
        pairs = ((self.entries[site], other.entries[site]) for site in self.entries)
        return self.prior == other.prior and all(mine == theirs for mine, theirs in pairs)

    __hash__ = None  # type: ignore[assignment]  # equality is by content, which has arrays

    def __getstate__(self) -> dict[str, Any]:
        return {"prior": self.prior, "entries": dict(self.entries)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, entries=MappingProxyType(state["entries"]))

    def _next(
        self,
        site: str,
        factor: ExponentialFamily,
        epoch: int | None,
        sequence: int | None,
        independent: bool,
    ) -> Entry:
        last = self.entries.get(site, Entry(0, -1, factor))
        epoch = last.epoch if epoch is None else epoch
        if sequence is None:
            sequence = last.sequence + 1 if epoch == last.epoch else 0
        entry = checked(site, Entry(epoch, sequence, factor, independent))
        if entry.rank <= last.rank:
            raise versions.stale(site, entry, last)
        return entry

    def _updated(self, new: Mapping[str, Entry]) -> "Ledger":
        ledger = self._under(_called(self.prior, new))
        if ledger is not self and (kept := [site for site in self.sites if site not in new]):
            warn_of_order(f"the factors of {some(kept)}", ledger.prior)
        if new.keys() - self.entries.keys():
            check_names(new.keys() - self.entries.keys(), self.entries)
        return ledger._with({**self.entries, **ledger._rested(new)})

    def _under(self, prior: Any) -> "Ledger":
        """Return the ledger with this prior, which differs in names only."""
        if prior is self.prior:
            return self
        ledger = object.__new__(type(self))
        ledger.__dict__.update(prior=prior, entries=self.entries)
        return ledger

    def _with(self, entries: Mapping[str, Entry]) -> Self:
        """Return the ledger with entries already checked by a ledger of the same prior."""
        ledger = object.__new__(type(self))
        ledger.__dict__.update(prior=self.prior, entries=by_site(entries))
        return ledger

    def _rested(self, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        numbered = {site: checked(site, entry) for site, entry in entries.items()}
        return self._at_rest(with_factors(numbered, self._unlabelled))

    def _at_rest(self, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        factors = {s: entry.factor for s, entry in entries.items() if entry.factor is not None}
        rested = dict(zip(factors, all_at_rest(self.prior, factors), strict=True))
        return with_factors(entries, lambda site, _: rested[site])

    def _unlabelled(self, site: str, factor: Any) -> Any:
        """Return a factor in the order of the prior's names, without names of its own."""
        if not isinstance(factor, ExponentialFamily) or not names_of(factor):
            return factor
        place = f"the factor of site {site!r}"
        return _bare(in_order(factor, names_of(self.prior), place, "the prior"))

    def _sum(self, sites: Iterable[str]) -> ExponentialFamily:
        return self.prior.given([self.entries[site].factor for site in sites])  # type: ignore


def _called(prior: Any, entries: Mapping[str, Entry]) -> Any:
    own = names = names_of(prior)
    for entry in entries.values():
        if isinstance(entry.factor, ExponentialFamily):
            names = {**names_of(entry.factor), **names}
    return prior if names == own else with_names(prior, names)


def warn_of_order(who: str, named: Any) -> None:
    """Warn that coordinates without names are assumed to be in the order of those with names."""
    warnings.warn(
        f"{who} came without names of coordinates: taken to be in the order of {named.names}",
        stacklevel=4,
    )


def _bare(law: Any) -> Any:
    return with_names(law, {})
