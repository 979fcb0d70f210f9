"""One block of the posteriors of more sites than are matched in memory, as a table of rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from posterity.arrays.canonical import canonical_sums, content_hashes
from posterity.arrays.typing import Bool, Float, Int, Num
from posterity.families import ExponentialFamily, stack
from posterity.fusion.blocks import Block, MemberPriors
from posterity.fusion.geometry import Divergence, Points, moved
from posterity.fusion.group_sums import ExactGroupSums
from posterity.fusion.matching import scrambled
from posterity.fusion.refusals import check_held
from posterity.fusion.rows import MemoryBudget, RowStore

Array = np.ndarray
HASH = -1
"""The column of a row that holds 64 bits of its content, as it came."""


class Layout(NamedTuple):
    """What is in which column of a row: natural parameters, their log normaliser, and more.

    Mean parameters with their potential follow if components are matched on these, then expected
    observations, and at the end 64 bits of the content, as it came.
    """

    template: ExponentialFamily
    divergence: Divergence

    @property
    def dim(self) -> int:
        """Number of parameters of a component."""
        return self.template.dimension

    @property
    def width(self) -> int:
        """Number of columns."""
        return (self.dim + 1) * (1 + self.forward) + 2

    @property
    def forward(self) -> bool:
        """Whether components are matched on mean parameters."""
        return self.divergence is Divergence.FORWARD

    @property
    def matched(self) -> slice:
        """The columns that are averaged; their potential is in the next one."""
        start = (self.dim + 1) * self.forward
        return slice(start, start + self.dim)

    def natural(self, rows: Float[Array, "n width"]) -> ExponentialFamily:
        """The components themselves."""
        return self.template.with_natural_parameters(rows[:, : self.dim])

    def points(self, rows: Float[Array, "n width"], like: Points | None = None) -> Points:
        """The components as they are matched, centred about the same middle as those they are like.

        So no divergence depends on which components are in one block of rows.
        """
        potential = rows[:, self.matched.stop]
        found = Points(self.template, self.divergence, rows[:, self.matched], potential)
        if like is not None:
            found.__dict__["middle"] = like.middle
        return found

    def completed(self, rows: Float[Array, "n width"], origin: object) -> Float[Array, "n width"]:
        """Rows of natural parameters, seen from another origin, and with all other columns."""
        members, rows = moved(self.natural(rows), origin), rows.copy()
        if origin is not None:
            rows[:, : self.dim] = members.natural_parameters
        rows[:, self.dim] = members.log_normalizer()
        if self.forward:
            rows[:, self.matched] = members.mean_parameters
            rows[:, self.matched.stop] = members.negative_entropy()
        return rows


class BlockTable:
    """One block of all sites; what :class:`Block` is in memory, for components that are rows.

    Attributes:
        store: the rows of the components that have seen data and are not absorbed.
        layout: what is in which column of a row.
        keys: (J,) digests of what the sites hold.
        sizes: (J,) components of each site, with those that have no row.
        used: (N,) which of them have a row.
        concentrations, priors: as of a :class:`Block`.
        origin: the place from which the rows are seen.
    """

    in_memory: ClassVar[bool] = False

    def __init__(
        self,
        path: str,
        like: Any,
        names: Sequence[str],
        divergence: Divergence,
        budget: MemoryBudget,
        every: bool,
    ):
        self.path, self.like, self.names, self._every = path, like, names, every
        template = like.members[:1] if like.is_plate else stack([like])
        self.layout, self.priors = Layout(template, divergence), MemberPriors()
        self.origin: Any = None
        self.store = RowStore(self.layout.width, budget)
        self._parts: list[tuple[Array, Array, Array, Array]] = []

    place, plate, weighted = Block.place, Block.plate, Block.weighted

    def append(self, block: Block) -> None:
        """Add further sites; a UsageError unless each has a component that has seen data."""
        used = block.used | self._every
        held = np.bincount(block.site[used], minlength=len(block.sizes))
        check_held([block.names[index] for index in np.flatnonzero(held == 0).tolist()], self.place)
        natural = block.members.natural_parameters[used]
        rows = np.zeros((len(natural), self.layout.width))
        rows[:, : self.layout.dim], rows[:, HASH - 1] = natural, block.counts[used]
        whole = np.column_stack([natural, block.counts[used]]) if self.weighted else natural
        hashes = content_hashes(whole)
        rows[:, HASH] = hashes.view(float)
        self.store.append(rows, held)
        self.priors.extend(block.priors)
        keys, sizes = site_digests(hashes, held), block.sizes.astype(np.int32)
        self._parts.append((keys, sizes, used, block.concentrations))

    def close(self) -> None:
        """Nothing more will be appended."""
        self.store.close()
        parts = map(np.concatenate, zip(*self._parts, strict=True))
        self.keys, self.sizes, self.used, self.concentrations = parts
        self._parts = []

    def keep(self, kept: Bool[Array, " n"], block_rows: Mapping[int, Array] | None = None) -> None:
        """Drop rows; of those that stay, put others in place of some, by their index."""
        changed = block_rows or {}
        for block in self.store.blocks():
            mine, rows = kept[block.span], block.rows
            here = [index for index in changed if block.row <= index < block.row + len(rows)]
            if mine.all() and not here:
                continue
            rows = rows.copy()
            for index in here:
                rows[index - block.row] = changed[index]
            sizes = np.add.reduceat(mine, block.starts[:-1], dtype=int)
            self.store.replace(block, rows[mine], sizes)
        self.used = self.used.copy()
        self.used[np.flatnonzero(self.used)[~kept]] = False

    def pieces(self, labels: Array) -> Iterator[tuple[Block, Array]]:
        """The rows as blocks of some sites each, with what a label of each component says.

        ``labels`` (N,) are of all components; those without a row are left out.
        """
        own = labels[self.used]
        for block in self.store.blocks():
            yield self.block(block.rows, np.arange(len(self.keys))[block.sites]), own[block.span]

    def block(self, rows: Array, sites: Int[Array, " some"]) -> Block:
        """All rows of these sites, one site after the other."""
        return Block(
            self.path,
            list(map(self.names.__getitem__, sites.tolist())),
            self.like,
            self.layout.natural(rows),
            self.store.sizes[sites],
            rows[:, HASH - 1],
            np.ones(len(rows), bool),
            self.concentrations[sites],
            self.priors.take(sites),
            self.origin,
            int(sites[0]),
        )

    def rows_of(self, sites: Int[Array, " some"]) -> tuple[Array, Int[Array, " n"]]:
        """The rows of some sites, in ascending order, and their places in the table."""
        wanted = np.zeros(len(self.keys), bool)
        wanted[sites] = True
        places = np.flatnonzero(np.repeat(wanted, self.store.sizes))
        rows = np.empty((len(places), self.layout.width))
        for block in self.store.blocks():
            if wanted[block.sites].any():
                here = (places >= block.row) & (places < block.row + len(block.rows))
                rows[here] = block.rows[places[here] - block.row]
        return rows, places

    def by_site(self, values: Array) -> Mapping[str, Array]:
        """What belongs to the components (N,) of each site."""
        return ValuesBySite(self.names, self.sizes, values)


class ValuesBySite(Mapping[str, Array]):
    """For each site a number of each of its components, out of one array (N,) for all."""

    def __init__(self, names: Sequence[str], sizes: Int[Array, " sites"], values: Array):
        self.values_of_all, self._names, self._ends = values, names, np.cumsum(sizes)
        self._index: dict[str, int] = {}

    def __getitem__(self, site: str) -> Array:
        if not self._index:
            self._index = {name: index for index, name in enumerate(self._names)}
        index = self._index[site]
        return self.values_of_all[self._ends[index - 1] if index else 0 : self._ends[index]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def group_totals(
    block: Block | BlockTable,
    labels: Int[Array, " n"],
    groups: int,
    rows: Callable[[Block], Float[Array, "some width"]],
) -> Float[Array, "groups width"]:
    """Sums of the rows of each label, whatever the order of sites; those labelled -1 are left out.

    ``rows`` gives those of the components of some of the sites.
    """
    if isinstance(block, Block):
        kept = labels >= 0
        return canonical_sums(rows(block)[kept], labels[kept], groups)
    sums = None
    for piece, own in block.pieces(labels):
        found = rows(piece)
        sums = sums or ExactGroupSums(groups, found.shape[1])
        sums.add(found, own)
    assert sums is not None  # there are at least two sites
    return sums.totals


def keys_of_sites(blocks: Mapping[str, Block | BlockTable]) -> Num[Array, " sites"]:
    """64 bits of all that each site holds in the tables of its blocks."""
    keys: Any = np.uint64(0)
    for block in blocks.values():
        keys = keys * np.uint64(3) + block.keys  # pyright: ignore[reportAttributeAccessIssue]
    return keys


# --- samples of sites ----------------------------------------------------------------------------


class Sample(NamedTuple):
    """Rows of some sites, largest sites first, where each site's begin and end, and where the rows
    are in the table (``places``).
    """

    rows: Float[Array, "n width"]
    starts: Int[Array, " bounds"]
    places: Int[Array, " n"]


def site_digests(hashes: Num[Array, " n"], sizes: Int[Array, " sites"]) -> Num[Array, " sites"]:
    """64 bits of each site's content, whatever the order of its rows; every site has some."""
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return np.add.reduceat(scrambled(hashes), starts)


def ranked(keys: Num[Array, " sites"], sizes: Int[Array, " sites"], limit: int) -> Array:
    """The sites of the least digests with about ``limit`` rows in all, at least two sites.

    So a sample depends on nothing but contents.
    """
    order = np.argsort(keys, kind="stable")
    most = int(np.searchsorted(np.cumsum(sizes[order]), limit, side="right"))
    return order[: max(most, 2)]


def gather(
    store: RowStore,
    keys: Num[Array, " sites"],
    sites: Int[Array, " some"],
    rows: Bool[Array, " n"] | None = None,
) -> Sample:
    """The rows of these sites, or some of them, in canonical order: by size, then by digest."""
    wanted = np.zeros(len(keys), bool)
    wanted[sites] = True
    found, lengths, places = [], [], []
    for block in store.blocks():
        if wanted[block.sites].any():
            here = np.repeat(wanted[block.sites], np.diff(block.starts))
            here &= True if rows is None else rows[block.span]
            found.append(block.rows[here])
            places.append(block.row + np.flatnonzero(here))
            lengths.append(np.add.reduceat(here, block.starts[:-1], dtype=int)[wanted[block.sites]])
    kept, sizes = np.concatenate(found), np.concatenate(lengths)
    order = np.lexsort((keys[wanted], -sizes))
    rank = np.empty(len(order), int)
    rank[order] = np.arange(len(order))
    by_row = np.lexsort((hashes_of(kept), np.repeat(rank, sizes)))
    starts = np.concatenate([[0], np.cumsum(sizes[order])])
    return Sample(kept[by_row], starts, np.concatenate(places)[by_row])


def hashes_of(rows: Float[Array, "n width"]) -> Num[Array, " n"]:
    """The bits that are kept among the numbers of a table."""
    return np.ascontiguousarray(rows[:, HASH]).view(np.uint64)
