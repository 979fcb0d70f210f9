"""Which Gaussian a component is about, for distances that only Gaussians have in closed form."""

from typing import NamedTuple

import numpy as np

from posterity.arrays.linear_algebra import outer
from posterity.arrays.typing import Float, Real
from posterity.errors import StructureError
from posterity.families import (
    DiagonalGaussian,
    ExponentialFamily,
    Gaussian,
    NormalGamma,
    NormalWishart,
)

Array = np.ndarray
KINDS = (Gaussian, DiagonalGaussian, NormalWishart, NormalGamma)


class Law(NamedTuple):
    """Gaussians: ``mean`` (..., d); ``spread``, covariances (..., d, d) or variances (..., d)."""

    mean: Float[Array, "*batch d"]
    spread: Float[Array, "..."]

    @property
    def diagonal(self) -> bool:
        """Whether coordinates are independent."""
        return self.spread.ndim == self.mean.ndim


def check_gaussian(member: ExponentialFamily) -> None:
    """Raise a StructureError for a family that is about no Gaussian."""
    if not isinstance(member, KINDS):
        raise StructureError(
            found=f"a transport distance between members of {type(member).__name__}",
            expected=f"{', '.join(kind.__name__ for kind in KINDS)}, or products of them",
            fix="Choose another divergence: 'reverse', 'forward', 'jeffreys' and 'renyi' serve all "
            "families.",
        )


def law_of(member: ExponentialFamily) -> Law:
    """The Gaussian itself; of posteriors over mean and precision, that of their expectations.

    A Normal-Wishart with ``m``, ``S`` and ``ν`` is about ``N(m, (ν S)⁻¹)``, whatever its ``κ``.
    """
    check_gaussian(member)
    if isinstance(member, Gaussian):
        return Law(member.mean, member.covariance)
    if isinstance(member, DiagonalGaussian):
        return Law(member.mean, member.variance)
    if isinstance(member, NormalWishart):
        return Law(member.mean, member.inverse_scale / member.degrees_of_freedom[..., None, None])
    assert isinstance(member, NormalGamma)
    return Law(member.mean, member.inverse_scale / member.degrees_of_freedom)


def counted(member: ExponentialFamily) -> tuple[Real, ...]:
    """What a family holds beside its Gaussian: ``κ`` and ``ν``, or nothing."""
    if isinstance(member, NormalWishart | NormalGamma):
        return member.mean_precision, member.degrees_of_freedom
    return ()


def about(like: ExponentialFamily, law: Law, counts: tuple[Real, ...]) -> ExponentialFamily:
    """The members of the family of ``like`` that are about these Gaussians."""
    mean, spread = law
    if isinstance(like, Gaussian):
        return type(like)._from_moments(mean, spread)
    if isinstance(like, DiagonalGaussian):
        return like._with(precision_mean=mean / spread, precision=1 / spread)
    kappa, nu = counts
    if isinstance(like, NormalWishart):
        return like._with(
            mean_precision=kappa,
            degrees=nu - mean.shape[-1],
            precision_mean=kappa[..., None] * mean,
            scatter=spread * nu[..., None, None] + kappa[..., None, None] * outer(mean),
        )
    return like._with(
        mean_precision=kappa,
        degrees=nu - 1,
        precision_mean=kappa * mean,
        scatter=spread * nu + kappa * mean**2,
    )
