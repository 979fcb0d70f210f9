"""Groups of components that are matched anew, site by site, by an evidence of groups."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Self

import numpy as np

from posterity.arrays.typing import Bool, Float, Int
from posterity.fusion.clustering import assign

Array = np.ndarray
SWEEPS = 10  # Times that all sites are matched, and the scale of the evidence is found, at most


@dataclasses.dataclass(frozen=True)
class Grouping:
    """Components of sites, which begin at ``starts``, in groups (``labels``), none of which has two
    of one site; a subclass says what is evidence for them.
    """

    starts: Int[Array, " bounds"]
    labels: Int[Array, " n"]

    @functools.cached_property
    def worth(self) -> float:
        """Nats by which these groups are better than every component alone."""
        raise NotImplementedError

    def gains(self, site: int) -> tuple[Float[Array, "k g"], Int[Array, " n"]]:
        """Nats that each component of a site gains in each group of the others', beside being
        alone, and these groups by component, -1 for the site's own.
        """
        raise NotImplementedError

    @functools.cached_property
    def levels(self) -> dict[int, float]:
        """Nats by which other numbers of groups are worse, as far as they are known."""
        return {}

    def with_scale(self) -> Self:
        """The same groups, with what the evidence depends on beside them at its likeliest."""
        raise NotImplementedError

    def improved(self) -> Self:
        """Matched anew, site by site, and with the scale that fits best, until nothing changes."""
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
        """A site's rows, which rows are others', the groups of these without gaps, and the same
        of all rows, -1 for the site's own.
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
        """Nats lost if each component were alone, or in another group, changing places there."""
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
            # If row i goes to group j, the owner of j goes to what i leaves.
            rise = now[:, None] + there - gains[:k, :g] - gains[owner][:, here].T
            rise[rows[here < g], here[here < g]] = np.inf
            yield np.minimum(rise.min(1, initial=np.inf), np.where(here < g, now, np.inf))
