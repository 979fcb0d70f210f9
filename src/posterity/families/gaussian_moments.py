"""Families that have the moments of a Gaussian, so that distances between Gaussians serve them."""

import abc
from typing import NamedTuple, Self

from posterity.arrays.typing import Float, Real
from posterity.families.base import ExponentialFamily


class Moments(NamedTuple):
    """Gaussians: ``mean`` (..., d); ``spread``, covariances (..., d, d) or variances (..., d)."""

    mean: Float[Real, "*batch d"]
    spread: Float[Real, "..."]

    @property
    def diagonal(self) -> bool:
        """True if coordinates are independent."""
        return self.spread.ndim == self.mean.ndim


class HasGaussianMoments(ExponentialFamily):
    """A Gaussian itself, or a posterior over the mean and precision of one.

    What a family holds beside its Gaussian, such as how many observations it was learnt from, is
    averaged where members are.
    """

    @property
    @abc.abstractmethod
    def moments(self) -> Moments:
        """The Gaussian itself; of posteriors over mean and precision, that of expectations."""

    @property
    def beside_moments(self) -> tuple[Real, ...]:
        """The other parameters of a member, each (...) or (..., d): ``κ`` and ``ν``, or none."""
        return ()

    @abc.abstractmethod
    def with_moments(self, moments: Moments, beside: tuple[Real, ...] = ()) -> Self:
        """The members of this family that are about these Gaussians and have this beside."""
