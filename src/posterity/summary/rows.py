"""Rows of numbers by name, and the same numbers with a site and without it."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from posterity.families.marginals import Table


def label_of(block: str, member: str, quantity: str, name: str) -> str:
    """The label that tells a number from others, in one line."""
    inner = f"{quantity} of {name}" if quantity else name
    return ": ".join(part for part in (block, member, inner) if part) or "value"


class Row(NamedTuple):
    """The mean, deviation and interval of one number of a posterior.

    Attributes:
        block: path of the block of a product that it is in, ``""`` without blocks.
        member: of a plate, by its name or number; ``""`` elsewhere.
        quantity: what of it: ``mean``, ``variance``, ``precision``, ``probability``, ``weight``;
            ``""`` is the coordinate itself.
        name: of the coordinate, or its number; ``""`` where there is but one and it has no name.
        mean: expected value; NaN where there is none.
        sd: standard deviation; infinite or NaN where there is none.
        low: where the equal-tailed interval begins; NaN where there is none.
        high: where it ends.
    """

    block: str
    member: str
    quantity: str
    name: str
    mean: float
    sd: float
    low: float
    high: float

    @property
    def label(self) -> str:
        """The label that tells it from other rows, in one line."""
        return label_of(*self[:4])


class Influence(NamedTuple):
    """One number with a site and without it.

    Attributes:
        block: path of the block.
        member: of a plate, by name or number.
        quantity: as of :class:`Row`.
        name: of the coordinate.
        mean: with all sites.
        without: the mean without this one.
        by: ``mean - without`` in standard deviations of the posterior of all (belsley1980).
    """

    block: str
    member: str
    quantity: str
    name: str
    mean: float
    without: float
    by: float

    @property
    def label(self) -> str:
        """The label, as that of a :class:`Row`."""
        return label_of(*self[:4])


def rows_of(table: Table, level: float, start: int = 0, stop: int | None = None) -> Iterator[Row]:
    """Some of the rows of a table; quantiles are found of these alone."""
    stop = table.size if stop is None else min(stop, table.size)
    with np.errstate(all="ignore"):
        some = table.law.reshaped((table.size,)).picked(slice(start, stop))
        columns = [some.mean, some.sd, *some.interval(level)]
    for index, values in enumerate(zip(*(c.tolist() for c in columns), strict=True), start):
        member, name = table.labels(index)
        yield Row(table.block, member, table.quantity, name, *values)
