"""Groups of components that are rematched, site by site, by an evidence for groups."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Self

import numpy as np

from posterity.arrays.typing import Bool, Float, Int
from posterity.fusion.clustering import assign

Array = np.ndarray
SWEEPS = 10  # Largest number of sweeps: rematching all sites, then refitting the scale


@dataclasses.dataclass(frozen=True)
class Grouping:
    """Components of sites, which begin at ``starts``, in groups (``labels``) without two of one
    site; subclasses define the evidence.
    """

    starts: Int[Array, " bounds"]
    labels: Int[Array, " n"]

    @functools.cached_property
    def worth(self) -> float:
        """Nats by which these groups are better than groups of one component each."""
        raise NotImplementedError

    def gains(self, site: int) -> tuple[Float[Array, "k g"], Int[Array, " n"]]:
        """Return the nats that each component of a site gains by joining each group of the other
        sites, and these groups' labels (n,), -1 for the site itself.
        """
        raise NotImplementedError

    @functools.cached_property
    def levels(self) -> dict[int, float]:
        """Nats by which other numbers of groups are worse, for those that were tried."""
        return {}

    def with_scale(self) -> Self:
        """Return the same groups with the scale of the evidence at its maximum."""
        raise NotImplementedError

    def improved(self) -> Self:
        """Rematch site by site, and refit the scale, until the evidence does not rise."""
        current = self
        for _ in range(SWEEPS):
            before = current
            for site in range(len(self.starts) - 1):
                current = current._matched(site)
            current = current.with_scale()
            if current.worth <= before.worth:
                break
        return current

    def without(
        self, site: int
    ) -> tuple[slice, Bool[Array, " n"], Int[Array, " others"], Int[Array, " n"]]:
        """Return a site's rows, a mask of the other rows, their labels without gaps, and the same
        labels for all rows, -1 for the site's.
        """
        own, rest = slice(*self.starts[site : site + 2]), np.ones(len(self.labels), bool)
        rest[own] = False
        labels, out = np.unique(self.labels[rest], return_inverse=True)[1], np.full(len(rest), -1)
        out[rest] = labels
        return own, rest, labels, out

    def _matched(self, site: int) -> Self:
        gains, labels = self.gains(site)
        own = assign(-gains, np.array([0, len(gains)]), 0.0)
        groups = gains.shape[1]
        own = np.where(own == groups, groups + np.arange(len(own)), own)
        labels[labels < 0] = own
        return dataclasses.replace(self, labels=np.unique(labels, return_inverse=True)[1])

    @functools.cached_property
    def margins(self) -> Float[Array, " n"]:
        """Nats lost if each component is ungrouped, or moved to another group, with exchange."""
        return np.concatenate([*self._margins()])

    def _margins(self) -> Iterator[Float[Array, " k"]]:
        for site in range(len(self.starts) - 1):
            gains, labels = self.gains(site)
            (k, g), rows = gains.shape, np.arange(len(gains))
            gains = np.pad(gains, (0, 1))
            own = self.labels[slice(*self.starts[site : site + 2])]
            same = own[:, None] == self.labels[labels >= 0]
            here = np.where(same.any(1), labels[labels >= 0][same.argmax(1)], g)
            owner = np.full(g, k)
            owner[here[here < g]] = rows[here < g]
            now, there = gains[rows, here], gains[owner, np.arange(g)]
            # If row i moves to group j, the owner of j moves to the group of i.
            rise = now[:, None] + there - gains[:k, :g] - gains[owner][:, here].T
            rise[rows[here < g], here[here < g]] = np.inf
            yield np.minimum(rise.min(1, initial=np.inf), np.where(here < g, now, np.inf))
