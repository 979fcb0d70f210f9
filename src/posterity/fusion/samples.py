"""A sample of sites that depends on nothing but contents: those whose digests are least."""

from typing import NamedTuple

import numpy as np

from posterity.arrays.typing import Bool, Float, Int, Num
from posterity.fusion.matching import scrambled
from posterity.fusion.tables import Table

Array = np.ndarray
HASH = -1
"""The column of a row that holds 64 bits of its content, as it came."""


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
    """The sites of the least digests with about ``limit`` rows in all, at least two sites."""
    order = np.argsort(keys, kind="stable")
    most = int(np.searchsorted(np.cumsum(sizes[order]), limit, side="right"))
    return order[: max(most, 2)]


def gather(
    table: Table,
    keys: Num[Array, " sites"],
    sites: Int[Array, " some"],
    rows: Bool[Array, " n"] | None = None,
) -> Sample:
    """The rows of these sites, or some of them, in canonical order: by size, then by digest."""
    wanted = np.zeros(len(keys), bool)
    wanted[sites] = True
    found, lengths, places = [], [], []
    for block in table.blocks():
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
