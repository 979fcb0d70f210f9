"""Exponential families as vector spaces, and laws built from them."""

from posterity.families.base import ExponentialFamily as ExponentialFamily
from posterity.families.beta import Beta as Beta
from posterity.families.categorical import Categorical as Categorical
from posterity.families.composite import Product as Product
from posterity.families.diagonal_gaussian import DiagonalGaussian as DiagonalGaussian
from posterity.families.dirichlet import Dirichlet as Dirichlet
from posterity.families.distribution import Distribution as Distribution
from posterity.families.gamma import Gamma as Gamma
from posterity.families.gaussian import Gaussian as Gaussian
from posterity.families.hidden_markov import HiddenMarkov as HiddenMarkov
from posterity.families.mixture import Mixture as Mixture
from posterity.families.network import Network as Network
from posterity.families.normal_gamma import NormalGamma as NormalGamma
from posterity.families.normal_wishart import NormalWishart as NormalWishart
from posterity.families.plate import Plate as Plate
from posterity.families.transformed import Transformed as Transformed
from posterity.families.vector_space import at_rest as at_rest
from posterity.families.vector_space import concatenate as concatenate
from posterity.families.vector_space import stack as stack
from posterity.families.wishart import Wishart as Wishart


def exported() -> dict[str, type[Distribution]]:
    """Return every concrete law that is exported here, by its name."""
    laws = {n: law for n, law in globals().items() if isinstance(law, type)}
    return {n: law for n, law in laws.items() if not law.__abstractmethods__}
