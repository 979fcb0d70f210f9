"""Sites as they come: named, checked, in one order of coordinates, and laid side by side."""

import abc
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from posterity.arrays.stacks import stacked, unstacked
from posterity.arrays.tree import leaves
from posterity.artifact import open_artifact
from posterity.artifact.aligned import aligned, coordinates_in, labels_in, named, ordered, unnamed
from posterity.artifact.many import Alone, Several, read_alone, read_many
from posterity.artifact.provenance import RECIPE, check_same
from posterity.checks import check_adds, check_proper
from posterity.errors import ParameterError
from posterity.families import ExponentialFamily, at_rest
from posterity.families.names import Names
from posterity.fusion.block_table import BlockTable, keys_of_sites
from posterity.fusion.blocks import Block, side_by_side
from posterity.fusion.networks.options import has_units
from posterity.fusion.paths import blocks
from posterity.fusion.refusals import (
    check_enough,
    check_priors_known,
    check_structure,
    counted_twice,
    twice,
    warn_of_copies,
)
from posterity.fusion.sources import Item, is_batch, one_by_one
from posterity.ledger import Ledger

AT_A_TIME = 256
"""Sites that are checked together: many share a call, and few leave the processor's cache."""
TOGETHER = 512
"""Single sites of a table that are checked and laid down at a time."""
SOME = 4
"""Sites without a prior that are remembered: an error names three."""
TableOf = Callable[[str, ExponentialFamily, Sequence[str], bool], BlockTable]
"""Makes the table of a block (its path, that of the first site) of sites with these names; of every
component, or of those that have seen data."""


class Site(NamedTuple):
    """What one site brings: its posterior, and its prior where that is known.

    ``contributors`` are those whose data it holds, where a ``ledger`` names them.
    """

    posterior: ExponentialFamily
    prior: ExponentialFamily | None
    contributors: tuple[str, ...] = ()
    ledger: Ledger | None = None


class Sites(abc.ABC):
    """All sites, checked; without names of coordinates, which all have in one order.

    Attributes:
        names: of the sites, sorted where they are in memory.
        like: the posterior of the first.
        blocks: what all hold, by path of the block; nothing of networks.
        held: the sites themselves, where they are in memory.
        prior: that of sites that bring none.
        coordinates: the names of coordinates.
        labels: the names of members of plates, by site and path, of sites that give some.
    """

    in_memory: ClassVar[bool]
    """Whether all sites are matched in memory."""

    def __init__(self, prior: ExponentialFamily | None = None):
        self.names: list[str] = []
        self.like: Any = None
        self.blocks: dict[str, Block | BlockTable] = {}
        self.held: dict[str, Site] = {}
        self.prior = prior
        self.coordinates: Names = {}
        self.labels: dict[str, dict[str, tuple[str, ...]]] = {}
        self._first = ""
        self._known: set[str] = set()
        self._recipe: dict[str, Mapping[str, str]] = {}
        self._without_prior: list[str] = []
        self._owners: dict[str, str] = {}
        self._shared: tuple[str, str, str] | None = None
        self._ledgers: set[str] = set()

    @property
    def networks(self) -> bool:
        """Whether sites are networks with hidden units, whose layers are matched."""
        return has_units(self.like)

    @abc.abstractmethod
    def read(self, posteriors: Iterable[Item]) -> None:
        """Take all sites as they come.

        Coordinates that have names are put in one order, topics over one vocabulary.

        Raises:
            UsageError, StructureError, ParameterError, ArtifactError: as :func:`posterity.fuse`.
        """

    @abc.abstractmethod
    def _lay(self, names: list[str], found: Mapping[str, Block]) -> None:
        """Append blocks to those of the sites before."""

    @abc.abstractmethod
    def _copies(self) -> Iterator[tuple[str, str]]:
        """Pairs of sites that hold the same, to the last bit."""

    # --- what comes ------------------------------------------------------------------------------

    def enrol(self, name: str | None, value: Any, provenance: Mapping[str, str]) -> str:
        """The name of a further site, whose file was fitted as those before were."""
        own = "+".join(value.sites) if isinstance(value, Ledger) else ""
        name = name if name is not None else own or f"site-{len(self._known):04d}"
        if name in self._known:
            raise twice(name)
        self._known.add(name)
        if RECIPE in provenance:
            self._recipe = self._recipe or {name: provenance}
            check_same({**self._recipe, name: provenance})
        return name

    def take(self, opened: Mapping[str, Any]) -> None:
        """Further sites: posteriors and ledgers, by name."""
        if not opened:
            return
        self.labels |= {n: labels for n, value in opened.items() if (labels := labels_in(value))}
        found = self._checked({n: named(q, {}) for n, q in self._ordered(opened).items()})
        self._begin(found)
        sites = {n: s if s.prior else s._replace(prior=self.prior) for n, s in found.items()}
        self._without_prior += [name for name, site in sites.items() if site.prior is None][:SOME]
        for name, site in sites.items():
            self._own(name, site.contributors)
        self._hold(sites)
        posteriors, priors, *_ = map(list, zip(*sites.values(), strict=True))
        apart = {} if self.networks else side_by_side(list(sites), posteriors, priors)
        self._lay(list(sites), apart)

    def take_batch(
        self, names: list[str], batch: ExponentialFamily, prior: ExponentialFamily | None
    ) -> None:
        """Further sites as one batch (J,), of ledgers if there is the one prior of them all."""
        if labels := labels_in(batch):
            self.labels |= dict.fromkeys(names, labels)
        (batch, *own) = self._ordered(
            {names[0]: batch} if prior is None else {names[0]: batch, "its prior": prior}
        ).values()
        batch = at_rest(named(batch, {}))
        start: Any = named(own[0], {}) if own else self.prior
        self._begin({names[0]: Site(batch[0], start)})
        try:
            check_proper(batch, "these sites")
        except ParameterError:
            for index, name in enumerate(names):  # the error names its site
                check_proper(batch[index], f"site {name!r}")
        self._without_prior += names[:SOME] if start is None else []
        for name in names if own else ():
            self._own(name, (name,))
        known, parts = {} if start is None else blocks(start), blocks(batch)
        self._lay(
            names, {p: Block.of_batch(p, names, part, known.get(p)) for p, part in parts.items()}
        )

    def _ordered(self, opened: Mapping[str, Any]) -> dict[str, Any]:
        """Coordinates in the order of the first that names them; topics over one vocabulary.

        Warns:
            UserWarning: of sites that name none, where others do.
        """
        if self.like is None or not self.coordinates:
            found, names = aligned(opened)
            self._first = self._first or repr(next(iter(opened)))
            before = self.prior
            self.prior = ordered(before, names, "the prior", "the sites")
            self.coordinates = names or coordinates_in(self.prior)
            self.prior = None if before is None else named(at_rest(self.prior), {})
            opened = opened if before is None else {**opened, "the prior": before}
        else:
            wanted = self.coordinates
            own = {n: named(value, coordinates_in(value)) for n, value in opened.items()}
            found = {n: ordered(value, wanted, repr(n), self._first) for n, value in own.items()}
        for line in unnamed(opened, self.coordinates):
            warnings.warn(line, stacklevel=6)
        return found

    def _checked(self, opened: Mapping[str, Any]) -> dict[str, Site]:
        """What each brings, proper and at rest."""
        sums = {n: q.total if isinstance(q, Ledger) else q for n, q in opened.items()}
        alike: dict[Any, list[str]] = {}
        for name, value in sums.items():
            check_adds(value, f"site {name!r}")
            alike.setdefault((value.outline(), value.batch_shape), []).append(name)
        rested: dict[str, ExponentialFamily] = {}
        for names in alike.values():
            for start in range(0, len(names), AT_A_TIME):
                some = {name: sums[name] for name in names[start : start + AT_A_TIME]}
                rested |= zip(some, _together(some), strict=True)
        sites = {name: Site(q, None) for name, q in rested.items()}
        ledgers = [(name, value) for name, value in opened.items() if isinstance(value, Ledger)]
        sites |= {n: Site(rested[n], value.prior, value.sites, value) for n, value in ledgers}
        return {name: sites[name] for name in opened}

    def _begin(self, sites: Mapping[str, Site]) -> None:
        """Compare the structure of sites, and of the prior, with that of the first of all."""
        name, site = next(iter(sites.items()))
        prior = self.prior if self.like is None else None
        if self.like is None:
            self.like, self._like = site.posterior, (name, site.posterior)
        check_structure(*self._like, {n: s.posterior for n, s in sites.items()}, prior)

    def _own(self, name: str, contributors: Iterable[str]) -> None:
        """Note whose data a ledger holds."""
        for contributor in contributors:
            self._ledgers.add(name)
            owner = self._owners.setdefault(contributor, name)
            if owner != name and self._shared is None:
                self._shared = contributor, owner, name

    def _hold(self, sites: Mapping[str, Site]) -> None:
        """Keep the sites themselves, where there is room; else nothing."""
        del sites

    # --- when all have come ----------------------------------------------------------------------

    def close(self) -> None:
        """Nothing more will come: a UsageError for fewer than two sites."""
        check_enough(len(self._known))
        for block in self.blocks.values():
            if isinstance(block, BlockTable):
                block.close()

    def check_counted_once(self) -> None:
        """Refuse sites without a prior, and data that a product would count twice.

        Warns:
            UserWarning: of two sites that agree to the last bit, where a ledger tells them apart.
        """
        check_priors_known(self._without_prior)
        if self._shared is not None:
            contributor, first, second = self._shared
            raise counted_twice(f"data of site {contributor!r}", first, second)
        for first, second in self._copies():
            if not {first, second} & self._ledgers:
                raise counted_twice("the same posterior", first, second)
            warn_of_copies(first, second)


class SitesInMemory(Sites):
    """Sites that are matched all at once; in the order of their names."""

    in_memory = True

    def read(self, posteriors: Iterable[Item]) -> None:
        """Take all sites together."""
        opened: dict[str, Any] = {}
        for name, value in one_by_one(posteriors):
            provenance: Mapping[str, str] = {}
            if isinstance(value, str | os.PathLike):
                stem, (value, told) = Path(value).stem, open_artifact(value)
                provenance = told.provenance
                single = not (isinstance(value, Ledger) and value.sites)
                name = stem if name is None and single else name
            elif isinstance(value, Alone):
                name, value, _, provenance = value
            opened[self.enrol(name, value, provenance)] = value
        self.take(dict(sorted(opened.items())))
        self.close()

    def _hold(self, sites: Mapping[str, Site]) -> None:
        self.held = dict(sites)

    def _lay(self, names: list[str], found: Mapping[str, Block]) -> None:
        self.blocks |= found
        self.names += names

    def _copies(self) -> Iterator[tuple[str, str]]:
        seen: dict[bytes, str] = {}
        for name, site in self.held.items():
            content = b"".join(np.asarray(leaf).tobytes() for leaf in leaves(site.posterior))
            if (twin := seen.setdefault(content, name)) != name:
                yield twin, name


class SitesInTables(Sites):
    """Sites that are laid down as rows of tables, in the order in which they come."""

    in_memory = False

    def __init__(self, prior: ExponentialFamily | None, table: TableOf):
        super().__init__(prior)
        self._table = table

    def read(self, posteriors: Iterable[Item]) -> None:
        """Take single sites many at a time, those that come as a batch as they are."""
        waiting: dict[str, Any] = {}
        for name, value in _opened_together(posteriors):
            batch = isinstance(value, Several) or (name is None and is_batch(value))
            if batch or len(waiting) == TOGETHER:
                self.take(waiting)
                waiting = {}
            if isinstance(value, Several):
                names = [self.enrol(own, None, value.provenance) for own in value.names]
                self.take_batch(names, value.posterior, value.prior)
            elif batch:
                names = [self.enrol(None, None, {}) for _ in range(value.batch_shape[0])]
                self.take_batch(names, value, None)
            elif isinstance(value, Alone):
                waiting[self.enrol(value.name, value.value, value.provenance)] = value.value
            else:
                waiting[self.enrol(name, value, {})] = value
        self.take(waiting)
        self.close()

    def _lay(self, names: list[str], found: Mapping[str, Block]) -> None:
        for path, block in found.items():
            if path not in self.blocks:
                self.blocks[path] = self._table(path, block.like, self.names, bool(self.labels))
            table: Any = self.blocks[path]
            table.append(block)
        self.names += names

    def _copies(self) -> Iterator[tuple[str, str]]:
        keys = keys_of_sites(self.blocks)
        order = np.argsort(keys, kind="stable")
        for at in np.flatnonzero(keys[order][1:] == keys[order][:-1]).tolist():
            first, second = sorted((self.names[order[at]], self.names[order[at + 1]]))
            yield first, second


def _opened_together(posteriors: Iterable[Item]) -> Iterator[Item]:
    """The same, with files read; those without names of their own many at a time."""
    by_path = lambda item: item[0] is None and isinstance(item[1], str | os.PathLike)
    for paths, some in itertools.groupby(posteriors, by_path):
        while paths and (few := [os.fspath(p) for _, p in itertools.islice(some, TOGETHER)]):
            yield from ((None, found) for found in read_many(few))
        for name, value in () if paths else some:
            path = isinstance(value, str | os.PathLike)
            yield name, read_alone(os.fspath(value), name) if path else value


def _together(some: Mapping[str, ExponentialFamily]) -> list[ExponentialFamily]:
    """Posteriors of one shape, proper and at rest."""
    like = next(iter(some.values()))
    together = at_rest(stacked(like, list(some.values())))
    try:
        check_proper(together, "all sites")
    except ParameterError:
        for name, posterior in some.items():  # it says whose it is
            check_proper(posterior, f"site {name!r}")
    return unstacked(together)
