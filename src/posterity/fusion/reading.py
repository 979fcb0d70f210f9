"""Reading of sites: in memory, in the order of their names, or as rows of tables."""

import functools
import itertools
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from posterity.arrays.tree import leaves
from posterity.artifact import provenance as provenances
from posterity.artifact.many import Several
from posterity.errors import UsageError
from posterity.fusion.block_table import BlockTable, keys_of_sites
from posterity.fusion.blocks import Block
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching
from posterity.fusion.plan import (
    SHARE,
    TOGETHER,
    Item,
    Plan,
    check_no_units,
    items,
    one_by_one,
    together,
    within,
)
from posterity.fusion.rows import MemoryBudget
from posterity.fusion.sites import Sites


def read_sites(posteriors: Any, plan: Plan) -> Sites:
    """Read all sites: in memory if an eighth of the budget suffices for them, else as tables."""
    come, fits = within(items(posteriors), plan.bytes // SHARE)
    if not fits:
        first = next(come)
        come = itertools.chain([first], come)
        what = plan.in_memory_only(first[1])
        if what and plan.budget is not None:
            raise UsageError(
                found=f"{what} of sites that take more than an eighth of budget={plan.budget}",
                expected="a larger budget, or regions of fewer sites, whose ledgers are fused",
            )
        fits = bool(what)
    sites = SitesInMemory(plan) if fits else SitesInTables(plan)
    sites.read(come)
    if plan.matching is not Matching.IDENTITY:
        check_no_units(sites.like, sites.coordinates)
    return sites


class SitesInMemory(Sites):
    """Sites that are matched in memory, in the order of their names."""

    in_memory = True

    def read(self, posteriors: Iterable[Item]) -> None:
        """Read all sites together; convert files to the units and levels of the first."""
        opened: dict[str, Any] = {}
        about: dict[str, Mapping[str, str]] = {}
        for alone in one_by_one(posteriors):
            own = self._enrol(alone.name, alone.value, {})
            opened[own] = alone.value
            about[own] = alone.provenance
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
        for site in self.loaded.values():
            yield b"".join(np.asarray(leaf).tobytes() for leaf in leaves(site.posterior))


class SitesInTables(Sites):
    """Sites that are written as rows of tables, in the order in which they are read."""

    in_memory = False

    def read(self, posteriors: Iterable[Item]) -> None:
        """Read sites, single ones many at a time and batches whole, into the tables."""
        waiting: dict[str, Any] = {}
        for read in together(posteriors):
            several = isinstance(read, Several)
            if several or len(waiting) == TOGETHER:
                self._take(waiting)
                waiting = {}
            if several:
                names = [self._enrol(own, None, read.provenance) for own in read.names]
                self._take_batch(names, read.posterior, read.prior)
            else:
                waiting[self._enrol(read.name, read.value, read.provenance)] = read.value
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
