"""Inputs that are held sparse give what dense ones give."""

import numpy as np
import pytest
from scipy.sparse import issparse

from posterity import DiagonalGaussian, Gaussian
from posterity.federation.federate import start
from posterity.inference import LocalUpdate
from posterity.inference.estimators import PredictorQuadrature
from posterity.models import (
    Adjusted,
    GammaRegression,
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    PoissonRegression,
    Records,
)

RNG = np.random.default_rng(0)
RECORDS, LEVELS = 200, 40
X = np.column_stack([RNG.normal(size=RECORDS), np.eye(LEVELS)[RNG.integers(0, LEVELS, RECORDS)]])
COUNTS = RNG.poisson(2.0, RECORDS).astype(float)
SIZE = X.shape[1]
MODELS = {
    "logistic": (LogisticRegression(), COUNTS > 1),
    "counts": (PoissonRegression(), COUNTS),
    "overdispersed": (NegativeBinomialRegression(0.5), COUNTS),
    "gamma": (GammaRegression(0.5), COUNTS + 1),
    "weights and offsets": (
        Adjusted(LogisticRegression()),
        np.column_stack([COUNTS > 1, RNG.normal(size=RECORDS), 1 + COUNTS]),
    ),
    "linear": (LinearRegression(), COUNTS),
}
PRIORS = {
    "full": Gaussian.from_standard(np.zeros(SIZE), 4 * np.eye(SIZE)),
    "diagonal": DiagonalGaussian.from_standard(np.zeros(SIZE), 4 * np.ones(SIZE)),
}


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", PRIORS)
@pytest.mark.parametrize("name", MODELS)
def test_expectations_and_curvatures_are_those_of_dense_inputs(name, family):
    model, y = MODELS[name]
    q, dense = PRIORS[family], Records.of((X, np.asarray(y, float)))
    sparse = dense.held_sparse(most=1.0, least=0)
    assert issparse(sparse.data[0])
    for each in ("evaluate", "curved"):
        one, other = (
            getattr(PredictorQuadrature(), each)(model, q, own) for own in (sparse, dense)
        )
        if each == "curved":
            close(one.slope, other.slope)
            close(one.curvature, other.curvature)
            one, other = one.expected, other.expected
        close(one.value, other.value)
        close(one.gradient.natural_parameters, other.gradient.natural_parameters)
    rough = [model.rough_factor(q, own) for own in (sparse, dense)]
    if rough[1] is not None:
        close(rough[0].natural_parameters, rough[1].natural_parameters)


def test_a_category_of_many_levels_is_held_sparse_and_a_full_matrix_is_not():
    levels, records = 100, 4000
    x = np.eye(levels)[np.arange(records) % levels]
    y = (np.arange(records) % 3 > 0).astype(float)
    prior = Gaussian.from_standard(np.zeros(levels), np.eye(levels))

    def held(x):
        run = start({"a": (x, y)}, LogisticRegression(), prior, update=LocalUpdate())
        site = run.federation.sites["a"]
        return run.advance(1), issparse(site._in_numpy.data[0]), issparse(site.records.data[0])

    assert held(x)[1:] == (True, False)
    assert held(x + 1e-300)[1:] == (False, False)
    close(held(x)[0].posterior.mean, held(x + 1e-300)[0].posterior.mean)
