"""Rényi's divergences: between the two directions of KL, by their order."""

import dataclasses

import numpy as np

from posterity.arguments import Constraint
from posterity.arrays.typing import Float, Int, Real
from posterity.families import ExponentialFamily
from posterity.fusion.divergences.descent import Descent
from posterity.fusion.divergences.discrepancy import Discrepancy, shares, sums

Array = np.ndarray
ORDER = Constraint(
    "an order above 0 and up to 1: beyond 1 the divergence is infinite wherever the one is as "
    "wide as the other, and the middle of several need not exist",
    lambda order: 0 < float(order) <= 1,
)


@dataclasses.dataclass(frozen=True)
class Renyi(Discrepancy):
    """``D_α(p || q) = log ∫ p^α q^(1-α) / (α - 1)``, in nats, of an order ``0 < α <= 1``.

    In an exponential family it is a Jensen gap of the log normaliser at mixed natural parameters
    ``α η_p + (1 - α) η_q``, which are proper for such orders. It never falls with the order; order
    1 is ``KL(p || q)``, and ``D_α / α`` tends to ``KL(q || p)`` for order 0. Order 1/2 is
    symmetric, twice the Bhattacharyya distance.

    Attributes:
        order: ``α``.

    Raises:
        UsageError: for an order outside ``(0, 1]``.

    Source: renyi1961; vanerven2014; nielsen2011 (exponential families).

    >>> from posterity.families import DiagonalGaussian
    >>> q = DiagonalGaussian.from_standard(mean=[[0.0], [2.0]], variance=[[1.0], [1.0]])
    >>> float(Renyi(0.5).between(q[0], q[1]))
    1.0
    """

    order: int | float = 0.5

    def __post_init__(self) -> None:
        ORDER.check(order=self.order)

    @property
    def value(self) -> str:
        """``"renyi:0.5"`` for order 0.5."""
        return f"renyi:{self.order:g}"

    def between(self, p: ExponentialFamily, q: ExponentialFamily) -> Float[Real, "*batch"]:
        """``D_α(p || q)``, in nats, never negative; rounding grows as ``1/(1-α)`` towards order 1.

        With ``m`` at the mixed natural parameters it is
        ``α/(1-α) KL(m || p) + KL(m || q)`` (vanerven2014, theorem 30).
        """
        order = self.order
        p._check_alike(q)
        if order == 1:
            return np.maximum(p.kl(q), 0.0)
        m = p.with_natural_parameters(
            order * p.natural_parameters + (1 - order) * q.natural_parameters
        )
        return np.maximum(order / (1 - order) * m.kl(p) + m.kl(q), 0.0)

    def _middle(
        self, members: ExponentialFamily, labels: Int[Array, " n"], weights: Float[Array, " n"]
    ) -> ExponentialFamily:
        """By the concave-convex procedure, taken ``1/(1-α)`` times as far where that is better.

        The procedure sets the barycentre's mean parameters to the average of those of all ``m``; it
        always descends, but slowly near order 1, where its steps are ``1 - α`` of the way.

        Source: nielsen2011, section 3.
        """
        share = shares(labels, weights)
        total = members.with_natural_parameters(
            sums(share[:, None] * members.natural_parameters, labels)
        )
        if self.order == 1:
            return total
        rest = (1 - self.order) * members.natural_parameters

        def objective(c: ExponentialFamily) -> Float[Array, " g"]:
            return sums(share * self.between(c[labels], members), labels)

        def direction(c: ExponentialFamily) -> Float[Array, "g dim"]:
            mixed = members.with_natural_parameters(
                self.order * c.natural_parameters[labels] + rest
            )
            return sums(share[:, None] * mixed.mean_parameters, labels) - c.mean_parameters

        return Descent(objective, direction, rate=1 / (1 - self.order))(total)
