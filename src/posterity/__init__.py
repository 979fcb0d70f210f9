"""posterity: a Bayesian posterior is a file you can send."""

from posterity.artifact import Inspection, inspect, load, save
from posterity.errors import PosterityError
from posterity.families import (
    Beta,
    Categorical,
    DiagonalGaussian,
    Dirichlet,
    ExponentialFamily,
    Gamma,
    Gaussian,
    Mixture,
    NormalGamma,
    NormalWishart,
    Plate,
    Product,
    Wishart,
)
from posterity.fusion import Fusion, fuse, kl_matrix
from posterity.ledger import Ledger

__version__ = "0.1.0"

__all__ = [
    "Beta",
    "Categorical",
    "DiagonalGaussian",
    "Dirichlet",
    "ExponentialFamily",
    "Fusion",
    "Gamma",
    "Gaussian",
    "Inspection",
    "Ledger",
    "Mixture",
    "NormalGamma",
    "NormalWishart",
    "Plate",
    "PosterityError",
    "Product",
    "Wishart",
    "__version__",
    "fuse",
    "inspect",
    "kl_matrix",
    "load",
    "save",
]
