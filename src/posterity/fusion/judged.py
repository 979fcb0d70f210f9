"""The statistics by which groups of components are judged."""

import functools
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.typing import Float
from posterity.fusion.criterion import Criterion

Array = np.ndarray


class Evidence(NamedTuple):
    """Evidence on groups from the averages of their members: the log normaliser, minus a term that
    makes misfits of location quadratic; that of the average shape; the average's divergence from
    the population; and ``KL(typical shape || average shape)``, zero without a location.
    """

    potential: Float[Array, " g"]
    shape: Float[Array, " g"]
    surprise: Float[Array, " g"]
    typical: Float[Array, " g"]

    def take(self, groups: Any) -> "Evidence":
        """Return the evidence on some of the groups."""
        return Evidence(*(values[groups] for values in self))


class Judged(NamedTuple):
    """Statistics by which the number of groups is judged: averages, their evidence, and the summed
    divergence of components, and of their shapes, to them; and the shares of scatter within groups
    ``along`` principal directions, if these are told apart.
    """

    centres: Float[Array, "g traits"]
    evidence: Evidence
    misfit: float
    shape: float
    along: Array | None = None

    @classmethod
    def of(
        cls,
        centres: Array,
        evidence: Evidence,
        counts: Array,
        total: float,
        shape: float,
        along: Array | None = None,
    ) -> "Judged":
        """Make it from the summed potentials of all components (``total``) and of their shapes
        (``shape``).
        """
        misfit = max(float(total - counts @ evidence.potential), 0.0)
        shape = max(float(shape - counts @ evidence.shape), 0.0)
        return cls(centres, evidence, misfit, shape, along)

    def prices(self, criterion: Criterion, counts: Array) -> tuple[float, float]:
        """Return the least sum of the prices of all groups, and the spread that attains it."""
        _, _, surprise, typical = (values[:, None] for values in self.evidence)
        prices = criterion.prices(surprise, typical, counts[:, None], criterion.spreads)
        total, spread = criterion.shortest(prices.sum(0))
        return float(total), float(spread)

    def length(self, criterion: Criterion, counts: Array) -> float:
        """Return the description length, in nats."""
        price, _ = self.prices(criterion, counts)
        sums = self.misfit, self.shape, price, len(counts)
        return float(criterion.length_of_sums(*sums, self.along))

    def rise(
        self, criterion: Criterion, misfit: Any, shape: Any, price: Any = 0.0, groups: Any = 0
    ) -> Any:
        """Return the rise of the description length, in nats, if the two misfits, the price and the
        number of groups rise by so much. Directions keep their shares of the misfit.
        """
        number = len(self.centres)
        length = functools.partial(criterion.length_of_sums, along=self.along)
        after = length(self.misfit + misfit, self.shape + shape, price, number + groups)
        return after - length(self.misfit, self.shape, 0.0, number)


def shares(scatter: Float[Array, "*levels located located"]) -> Float[Array, "*levels located"]:
    """Return the shares of a scatter along its principal directions, the largest first; equal ones
    where nothing scatters.
    """
    tiny = np.finfo(float).tiny
    own = np.maximum(np.linalg.eigvalsh(scatter)[..., ::-1], tiny)
    return own / own.sum(-1, keepdims=True)
