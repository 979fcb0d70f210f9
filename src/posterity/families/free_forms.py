"""The form of the Gaussians of a search (:mod:`posterity.families.gaussian_forms`)."""

from posterity.families.distribution import Distribution
from posterity.families.gaussian import AnyGaussian
from posterity.families.gaussian_forms import DiagonalForm, FullForm, GaussianForm


def form_of(law: Distribution) -> GaussianForm | None:
    """Return the form of Gaussians like this one; None if a law is not one."""
    if not isinstance(law, AnyGaussian):
        return None
    return (DiagonalForm if law.diagonal else FullForm)(law.own_size)
