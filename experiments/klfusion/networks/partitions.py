"""Which site has which images."""

from __future__ import annotations

from itertools import count

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from experiments.data import Integers

LEAST = 50
"""Images of the smallest site: partitions with a smaller one are drawn again."""


def partition(
    labels: Integers, sites: int, concentration: float, rng: Generator, least: int = LEAST
) -> list[Integers]:
    """Rows of each site: the images of each class are dealt out in Dirichlet proportions.

    Args:
        labels: (n,) class of each image.
        sites: how many.
        concentration: of the Dirichlet, the same for every site; .1 gives a site few classes, 100
            all alike.
        rng: of proportions and of the order of images.
        least: see :data:`LEAST`.
    """
    for _ in count():
        found = _drawn(labels, sites, concentration, rng)
        if min(len(rows) for rows in found) >= least:
            return found
    raise AssertionError  # of count() there is no end


def _drawn(
    labels: Integers, sites: int, concentration: float, rng: Generator
) -> list[NDArray[np.int64]]:
    dealt: list[list[Integers]] = [[] for _ in range(sites)]
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(sites, concentration))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(int)
        for site, own in zip(dealt, np.split(rows, cuts), strict=True):
            site.append(own)
    return [np.sort(np.concatenate(own)) for own in dealt]
