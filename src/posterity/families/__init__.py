"""Exponential families as vector spaces, and what is built from them."""

from posterity.families.base import ExponentialFamily, at_rest, concatenate, stack
from posterity.families.beta import Beta
from posterity.families.categorical import Categorical
from posterity.families.dirichlet import Dirichlet
from posterity.families.distribution import Distribution
from posterity.families.gamma import Gamma
from posterity.families.gaussian import DiagonalGaussian, Gaussian
from posterity.families.mixture import Mixture
from posterity.families.normal_gamma import NormalGamma
from posterity.families.normal_wishart import NormalWishart
from posterity.families.plate import Plate
from posterity.families.product import Product
from posterity.families.wishart import Wishart

__all__ = [
    "Beta",
    "Categorical",
    "DiagonalGaussian",
    "Dirichlet",
    "Distribution",
    "ExponentialFamily",
    "Gamma",
    "Gaussian",
    "Mixture",
    "NormalGamma",
    "NormalWishart",
    "Plate",
    "Product",
    "Wishart",
    "at_rest",
    "concatenate",
    "stack",
]
