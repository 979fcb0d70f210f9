"""Jeffreys' divergence: both directions of KL added up."""

import dataclasses

import numpy as np

from posterity.arrays.typing import Float, Int, Real
from posterity.families import ExponentialFamily
from posterity.fusion.divergences.descent import Descent
from posterity.fusion.divergences.discrepancy import Discrepancy, shares, sums
from posterity.fusion.geometry import kl_matrix

Array = np.ndarray
PROBE = 1e-4
"""How far derivatives look, as a part of the way, for each nat of the way."""


@dataclasses.dataclass(frozen=True)
class Jeffreys(Discrepancy):
    """``J(p, q) = KL(p || q) + KL(q || p)``, in nats: symmetric, and twice a KL of what is near.

    The barycentre lies between that of natural and that of mean parameters.

    Source: nielsen2009, section 3.

    >>> from posterity.families import DiagonalGaussian
    >>> q = DiagonalGaussian.from_standard(mean=[[0.0], [2.0]], variance=[[1.0], [1.0]])
    >>> Jeffreys().between(q[0], q[1])
    4.0
    """

    @property
    def value(self) -> str:
        """``"jeffreys"``."""
        return "jeffreys"

    def between(self, p: ExponentialFamily, q: ExponentialFamily) -> Float[Real, "*batch"]:
        """``KL(p || q) + KL(q || p)``, in nats."""
        return np.maximum(p.kl(q) + q.kl(p), 0.0)

    def costs(
        self, members: ExponentialFamily, centroids: ExponentialFamily
    ) -> Float[Array, "n g"]:
        """All pairs of batches (N,) and (G,): two matrix products."""
        return kl_matrix(centroids, members) + kl_matrix(members, centroids).T

    def _middle(
        self, members: ExponentialFamily, labels: Int[Array, " n"], weights: Float[Array, " n"]
    ) -> ExponentialFamily:
        """The sum of both directions is, but for a constant, that to the two sided barycentres.

        So only these two count: ``KL(c || right) + KL(left || c)``, ``right`` being the average of
        natural parameters and ``left`` that of mean parameters. Its natural gradient is
        ``η_c - η_right + F⁻¹ (μ_c - μ_left)``, and near the minimum its curvature ``2F``.

        Source: nielsen2009, section 3 (the reduction; that the minimum lies on the geodesic between
        the two holds in one dimension, not in several, see ``docs/decisions.md``).
        """
        share = shares(labels, weights)[:, None]
        right = members.with_natural_parameters(sums(share * members.natural_parameters, labels))
        left = members.with_mean_parameters(sums(share * members.mean_parameters, labels))
        eta, mu = right.natural_parameters, left.mean_parameters

        def objective(c: ExponentialFamily) -> Float[Array, " g"]:
            return c.kl(right) + left.kl(c)

        def direction(c: ExponentialFamily) -> Float[Array, "g dim"]:
            return fisher_product(c, right) - (c.mean_parameters - mu)

        start = members.with_natural_parameters((eta + left.natural_parameters) / 2)
        return Descent(objective, direction, rate=0.5)(start)


def fisher_product(member: ExponentialFamily, other: ExponentialFamily) -> Float[Array, "g dim"]:
    """``F(η) (η' - η)``: how mean parameters change along the way to another member.

    By central differences: the larger the divergence, the nearer they look.
    """
    eta = member.natural_parameters
    way = other.natural_parameters - eta
    step = (PROBE / (1 + np.abs(member.kl(other) + other.kl(member))))[:, None]
    ahead, behind = (
        member.with_natural_parameters(eta + sign * step * way).mean_parameters for sign in (1, -1)
    )
    return (ahead - behind) / (2 * step)
