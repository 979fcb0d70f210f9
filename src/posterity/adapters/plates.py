"""Plates in the parameterisation of libraries of mixtures, hidden Markov models and topic models.

For the conjugate posterior of a Gaussian component, libraries hold the mean ``m``, its pseudo-count
``κ``, the degrees of freedom ``ν`` and an *inverse* scale ``S⁻¹``. Diagonal types share ``κ`` and
``ν`` among the features; each feature is read as ``Gamma(ν/2, rate s/2)`` with that same ``ν``.
Then the expected precision is the library's, the law is proper for every ``ν > 0``, and posterior
minus prior is exactly a component's expected count, sum and sum of squares.
"""

from typing import Any, NamedTuple

import numpy as np

from posterity.arguments import Constraint
from posterity.arrays.linear_algebra import symmetric
from posterity.arrays.tree import leaves
from posterity.arrays.typing import Float, Real
from posterity.errors import StructureError
from posterity.families import ExponentialFamily, NormalGamma, NormalWishart, Plate

Array = np.ndarray
MEMBERS = "members"
"""Part of a plate whose coordinates are columns or words."""


class Gaussians(NamedTuple):
    """Parameters of ``K`` components: ``m`` (K, d), ``κ`` and ``ν`` (K,), and ``S⁻¹`` as (K, d, d),
    as its diagonal (K, d), or as one number for all features (K,).
    """

    mean: Float[Array, "*k d"]
    mean_precision: Float[Array, "*k"]
    degrees_of_freedom: Float[Array, "*k"]
    inverse_scale: Float[Array, "..."]

    @property
    def law(self) -> NormalWishart | NormalGamma:
        """Return the conjugate law of each component."""
        mean, kappa, nu, inverse = self
        if inverse.ndim > mean.ndim:
            return NormalWishart.from_inverse_scale(mean, kappa, symmetric(inverse), nu)
        wide = np.ones_like(mean)
        inverse = inverse[:, None] * wide if inverse.ndim < mean.ndim else inverse
        return NormalGamma.from_standard(mean, kappa[:, None] * wide, inverse, nu[:, None] * wide)

    @property
    def covariance(self) -> Float[Array, "..."]:
        """Return the inverse of the expected precision, ``S⁻¹/ν``."""
        inverse = self.inverse_scale
        return inverse / self.degrees_of_freedom.reshape(-1, *[1] * (inverse.ndim - 1))

    @classmethod
    def of(cls, members: NormalWishart | NormalGamma, library: str) -> "Gaussians":
        """Return the parameters of a law with any batch shape; a StructureError unless
        features share the parameters that ``library`` stores once.
        """
        kappa = members.mean_precision
        nu = members.degrees_of_freedom
        inverse: Any = members.inverse_scale
        if members.whole:
            inverse = symmetric(inverse)
        else:
            names = ("mean_precision", "degrees_of_freedom")
            kappa, nu = shared = [shared_value(np.moveaxis(v, -1, 0)) for v in (kappa, nu)]
            unshared = [name for name, v in zip(names, shared, strict=True) if v is None]
            if unshared:
                raise StructureError(
                    found=f"a NormalGamma whose {unshared[0]} differs between features",
                    expected=f"one value for each component, as in {library}'s diagonal type",
                )
        return cls(*(np.asarray(part, np.float64) for part in (members.mean, kappa, nu, inverse)))


def shared_member(prior: Plate) -> ExponentialFamily:
    """Return the common prior of all components; a StructureError if members differ by more than
    rounding.
    """
    if not all(shared_value(leaf) is not None for leaf in leaves(prior.members)):
        raise unequal("whose components differ", "exchangeable components: one prior for all")
    return prior.members[0]


def conjugate(*kinds: str) -> Constraint:
    """Return the constraint on a type of covariances, which is to be one of these ``kinds``."""
    expected = f"one of {kinds}, which have a conjugate posterior for each component"
    return Constraint(expected, lambda kind: kind in kinds, StructureError)


def unequal(found: str, expected: str) -> StructureError:
    """Return the error for a prior that differs between components."""
    fix = "Pass the posterior without its ledger; the estimator then has no prior."
    return StructureError(found=f"a prior {found}", expected=expected, fix=fix)


def shared_value(values: Real) -> Real | None:
    """Return the first of ``values`` if all others equal it up to rounding, else None."""
    values = np.asarray(values)
    return values[0] if np.allclose(values, values[:1], rtol=1e-10, atol=1e-12) else None
