"""One block of the posteriors of sites that are not matched in memory, as a table of rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.canonical import canonical_sums, content_hashes, set_hashes
from posterity.arrays.typing import Bool, Float, Int, Num
from posterity.families import ExponentialFamily, stack
from posterity.fusion.blocks import Block, MemberPriors, check_seen
from posterity.fusion.geometry import Divergence, Points, moved
from posterity.fusion.rows import ExactGroupSums, MemoryBudget, RowStore

Array = np.ndarray
HASH = -1  # The column of a row with a 64-bit hash of its original content


class Sample(NamedTuple):
    """Rows of some sites, each site's start and the end, and their ``places`` in the table."""

    rows: Float[Array, "n width"]
    starts: Int[Array, " bounds"]
    places: Int[Array, " n"]


class BlockTable:
    """One block of all sites, like :class:`Block`, with components as rows of a table.

    A row has natural parameters and their log normaliser; for forward KL mean parameters and their
    potential; expected observations; and a 64-bit hash of the original content. ``matched`` are the
    columns that are averaged; the next column is their potential. Components without data have
    rows only with ``every``. ``used`` (N,) marks components with rows, ``seen`` those with data;
    ``keys`` are digests of the sites' contents, and ``sizes`` their numbers of components.
    """

    def __init__(
        self,
        path: str,
        like: Any,
        names: Sequence[str],
        divergence: Divergence,
        budget: MemoryBudget,
        every: bool,
    ):
        self.path = path
        self.like = like
        self.names = names
        self.every = every
        self.template = like.members[:1] if like.is_plate else stack([like])
        self.divergence = divergence
        self.dim = self.template.dimension
        self.forward = divergence is Divergence.FORWARD
        start = (self.dim + 1) * self.forward
        self.matched = slice(start, start + self.dim)
        self.priors = MemberPriors()
        self.origin = None
        self.store = RowStore(self.matched.stop + 3, budget)
        self._parts: list[tuple[Array, Array, Array, Array, Array]] = []

    place = Block.place
    plate = Block.plate
    weighted = Block.weighted

    def natural(self, rows: Float[Array, "n width"]) -> ExponentialFamily:
        """Return the components of these rows."""
        return self.template.with_natural_parameters(rows[:, : self.dim])

    def points(self, rows: Float[Array, "n width"], like: Points | None = None) -> Points:
        """Return the components as points for matching, centred like the points ``like``, so that
        divergences do not depend on the block of rows.
        """
        potential = rows[:, self.matched.stop]
        points = Points(self.template, self.divergence, rows[:, self.matched], potential)
        if like is not None:
            vars(points)["middle"] = like.middle
        return points

    def completed(self, rows: Float[Array, "n width"], origin: object) -> Float[Array, "n width"]:
        """Move rows of natural parameters to another origin, and fill in all other columns."""
        members = moved(self.natural(rows), origin)
        rows = rows.copy()
        if origin is not None:
            rows[:, : self.dim] = members.natural_parameters
        rows[:, self.dim] = members.log_normalizer()
        if self.forward:
            rows[:, self.matched] = members.mean_parameters
            rows[:, self.matched.stop] = members.negative_entropy()
        return rows

    def append(self, block: Block) -> None:
        """Add further sites; raise a UsageError if one has no component with data."""
        used = block.used | self.every
        check_seen(block, used)
        natural = block.members.natural_parameters[used]
        rows = np.zeros((len(natural), self.store.width))
        rows[:, : self.dim] = natural
        rows[:, HASH - 1] = block.counts[used]
        whole = np.column_stack([natural, block.counts[used]]) if self.weighted else natural
        hashes = content_hashes(whole)
        rows[:, HASH] = hashes.view(float)
        sizes = np.bincount(block.site[used], minlength=len(block.sizes))
        self.store.append(rows, sizes)
        self.priors.extend(block.priors)
        # A 64-bit key of each site's content, independent of the order of its rows.
        keys = set_hashes(hashes, np.cumsum(sizes) - sizes)
        own = block.sizes.astype(np.int32)
        self._parts.append((keys, own, used, block.used, block.concentrations))

    def close(self) -> None:
        """Complete the table; nothing can be appended afterwards."""
        self.store.close()
        parts = map(np.concatenate, zip(*self._parts, strict=True))
        self.keys, self.sizes, self.used, self.seen, self.concentrations = parts
        if (self.used == self.seen).all():  # the usual case; saves memory
            self.seen = self.used
        self._parts = []

    @property
    def site(self) -> Int[Array, " n"]:
        """The site of each component."""
        return np.repeat(np.arange(len(self.sizes), dtype=np.int32), self.sizes)

    def keep(self, kept: Bool[Array, " n"]) -> None:
        """Keep only the rows that are marked."""
        for block in self.store.blocks():
            mine = kept[block.span]
            if not mine.all():
                sizes = np.add.reduceat(mine, block.starts[:-1], dtype=int)
                self.store.replace(block, block.rows[mine], sizes)
        self.used = self.used.copy()
        self.used[np.flatnonzero(self.used)[~kept]] = False

    def pieces(self, labels: Array) -> Iterator[tuple[Block, Array]]:
        """Yield the rows as blocks of some sites each, with the labels (from N) of these rows."""
        own = labels if self.used.all() else labels[self.used]
        for block in self.store.blocks():
            yield self.block(block.rows, np.arange(len(self.keys))[block.sites]), own[block.span]

    def block(self, rows: Array, sites: Int[Array, " some"]) -> Block:
        """Return all rows of these sites as a block, site by site."""
        return Block(
            self.path,
            list(map(self.names.__getitem__, sites.tolist())),
            self.like,
            self.natural(rows),
            self.store.sizes[sites],
            rows[:, HASH - 1],
            np.ones(len(rows), bool),
            self.concentrations[sites],
            self.priors.take(sites),
            self.origin,
            int(sites[0]),
        )

    def rows_of(self, sites: Int[Array, " some"], among: Any = True) -> Sample:
        """Return the rows of some sites, or only those ``among`` (N,), in the table's order."""
        wanted = np.zeros(len(self.keys), bool)
        wanted[sites] = True
        mine = np.repeat(wanted, self.store.sizes) & among
        places = np.flatnonzero(mine)
        rows = np.empty((len(places), self.store.width))
        for block in self.store.blocks():
            here = slice(*np.searchsorted(places, [block.row, block.row + len(block.rows)]))
            rows[here] = block.rows[places[here] - block.row]
        sizes = np.add.reduceat(mine, np.cumsum(self.store.sizes) - self.store.sizes, dtype=int)
        return Sample(rows, np.cumsum([0, *sizes[wanted]]), places)

    def ranked(self, limit: int) -> Int[Array, " some"]:
        """Return the sites with the least digests, with up to ``limit`` rows in all, but at least
        two sites: the sample depends only on contents.
        """
        order = np.argsort(self.keys, kind="stable")
        most = int(np.searchsorted(np.cumsum(self.store.sizes[order]), limit, side="right"))
        return order[: max(most, 2)]

    def gather(self, sites: Int[Array, " some"], among: Any = True) -> Sample:
        """Return rows of sites in canonical order: sites by size, then digest; rows by content."""
        rows, starts, places = self.rows_of(sites, among)
        sizes = np.diff(starts)
        order = np.lexsort((self.keys[np.sort(sites)], -sizes))
        rank = np.empty(len(order), int)
        rank[order] = np.arange(len(order))
        hashes = np.ascontiguousarray(rows[:, HASH]).view(np.uint64)
        by_row = np.lexsort((hashes, np.repeat(rank, sizes)))
        return Sample(rows[by_row], np.concatenate([[0], np.cumsum(sizes[order])]), places[by_row])

    def by_site(self, values: Array) -> Mapping[str, Array]:
        """Return the values of the components (N,), by site."""
        return ValuesBySite(self.names, self.sizes, values)


class ValuesBySite(Mapping[str, Array]):
    """A mapping view of one array (N,) of all components: the values of each site's components."""

    def __init__(self, names: Sequence[str], sizes: Int[Array, " sites"], values: Array):
        self.values_of_all = values
        self._names = names
        self._ends = np.cumsum(sizes)
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
    rows: Callable[[Block, Int[Array, " some"]], Float[Array, "some width"]],
) -> Float[Array, "groups width"]:
    """Return sums by label of the ``rows`` of a block's components, without those of label -1;
    independent of the order of sites.
    """
    sums = None
    for piece, every in block.pieces(labels):
        kept = np.flatnonzero(every >= 0)
        own = every[kept]
        values = rows(piece, kept)
        if isinstance(block, Block):
            return canonical_sums(values, own, groups)
        sums = sums or ExactGroupSums(groups, values.shape[1])
        sums.add(values, own)
    assert sums is not None  # there are at least two sites
    return sums.totals


def keys_of_sites(blocks: Mapping[str, Block | BlockTable]) -> Num[Array, " sites"]:
    """Return a 64-bit key of each site's content in the tables of all blocks."""
    keys: Any = np.uint64(0)
    for block in blocks.values():
        keys = keys * np.uint64(3) + block.keys  # pyright: ignore[reportAttributeAccessIssue]
    return keys
