"""Conjugate models, a prior and some records of each."""

import numpy as np

from posterity.families import Beta, Dirichlet, Gamma, Gaussian
from posterity.models import (
    BetaBernoulli,
    DirichletCategorical,
    GammaPoisson,
    GaussianMean,
    LinearRegression,
)

PLANE = Gaussian.from_standard(np.zeros(2), np.eye(2))
RNG = np.random.default_rng(4)
VECTORS = RNG.normal(size=(9, 2))
CONJUGATE = [
    (BetaBernoulli(), Beta.from_standard(1.0, 1.0), RNG.integers(0, 2, 9)),
    (GammaPoisson(), Gamma.from_standard(1.0, 1.0), RNG.poisson(3.0, 9)),
    (DirichletCategorical(3), Dirichlet.from_standard(np.ones(3)), RNG.integers(0, 3, 9)),
    (GaussianMean(np.eye(2)), PLANE, VECTORS),
    (LinearRegression(0.5), PLANE, (VECTORS, RNG.normal(size=9))),
]
