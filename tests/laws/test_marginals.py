"""Marginals, moments and resampled factors that laws say themselves, against their own draws."""

import pickle
from typing import Any

import jax
import numpy as np
import pytest

from posterity.families import DiagonalGaussian, NormalGamma, NormalWishart
from posterity.families.distribution import Distribution
from posterity.families.supports import PositiveDefiniteMatrices
from tests.laws.table import NAMES, TABLE, some

DRAWS = 4000
LEAVES = [
    name
    for name, row in TABLE.items()
    if name not in ("Network", "Transformed", "Mixture") and not some(name)[0].named_parts()
]
"""Rows without parts."""


def of_event(law: Any, draws: Any) -> list[np.ndarray]:
    """The draws of the numbers that ``marginals`` speaks of, one array (n, k) a quantity."""
    if law.over_labels:
        return [np.eye(law.own_size + 1)[np.asarray(draws)]]
    if isinstance(draws, tuple):  # a mean and a precision, of which the variance is told
        mean, precision = (np.asarray(part) for part in draws)
        inverse = np.linalg.inv(precision) if precision.ndim == 3 else 1 / precision
        variance = np.diagonal(inverse, axis1=1, axis2=2) if precision.ndim == 3 else inverse
        return [mean, variance]
    if isinstance(law.support, PositiveDefiniteMatrices):
        rows, columns = np.triu_indices(law.own_size)
        return [np.asarray(draws)[:, rows, columns]]
    return [np.asarray(draws).reshape(len(draws), -1)]


@pytest.mark.parametrize("name", LEAVES)
def test_quantiles_and_means_are_those_of_draws(name: str) -> None:
    (law,) = some(name, size=2, seed=3)
    if isinstance(law, NormalWishart | NormalGamma):  # of enough degrees of freedom
        x = np.random.default_rng(1).normal(size=(30, law.own_size))
        law = law + law.observed(x, np.ones((30, 1)))[0]
    with jax.enable_x64(True):
        draws = jax.jit(lambda law, key: law.sample(key, (DRAWS,)))(law, jax.random.key(0))
        draws = jax.tree.map(np.asarray, draws)
    if isinstance(law, NormalWishart | NormalGamma):
        means, precisions = draws
        inverse = np.linalg.inv(precisions) if precisions.ndim == 3 else 1 / precisions
        mean, covariance = law.expected_moments()
        np.testing.assert_allclose(mean, means.mean(0), atol=5 * means.std() / np.sqrt(DRAWS))
        np.testing.assert_allclose(covariance, inverse.mean(0), rtol=0.1, atol=0.02)
    found = law.marginals()
    assert len(found) == len(law.quantities)
    again = pickle.loads(pickle.dumps(found))
    assert repr(again) == repr(found) and " at 0x" not in repr(found)
    if name == "Dirichlet":  # without a closed form there are draws
        (drawn,) = Distribution.marginals(law)
        gap = abs(drawn.quantile(0.9) - found[0].quantile(0.9))
        assert gap.max() < 0.02
    for marginal, values in zip(again, of_event(law, draws), strict=True):
        assert marginal.shape == values.shape[1:] == (len(law.labels(())),)
        error = values.std(0) / np.sqrt(DRAWS)
        finite = np.isfinite(marginal.sd)
        assert (abs(values.mean(0) - marginal.mean) < 5 * error + 1e-12)[finite].all()
        for p in (0.1, 0.5, 0.9):
            at = marginal.quantile(p)
            if law.over_labels:
                assert np.isnan(at).all()  # quantiles of an indicator say nothing
                continue
            assert abs((values <= at).mean(0) - p).max() < 5 * np.sqrt(p * (1 - p) / DRAWS)
            np.testing.assert_allclose(marginal.cdf(at), p, rtol=1e-9)


@pytest.mark.parametrize("name", ["Gaussian", "DiagonalGaussian", "Mixture"])
def test_draws_without_jax_have_the_moments(name: str) -> None:
    (law,) = some(name, size=3)
    draws = law.numpy_draws(np.random.default_rng(0), 20_000)
    (marginal,) = law.marginals()
    error = marginal.sd / np.sqrt(20_000)
    assert (abs(draws.mean(0) - marginal.mean) < 5 * error).all()
    assert (abs(draws.std(0) / marginal.sd - 1) < 0.05).all()


def test_resampled_factors_are_about_the_truth() -> None:
    """Their posterior means scatter about the pooled one, as far as factors are precise."""
    prior = DiagonalGaussian.from_standard([0.0], [100.0])
    factors = DiagonalGaussian(np.array([[4.0], [40.0]]), np.array([[4.0], [40.0]]))
    pooled = prior + DiagonalGaussian(np.array([44.0]), np.array([44.0]))
    drawn = prior.resampled(np.random.default_rng(0), factors, pooled, 4000)
    assert drawn is not None and drawn.batch_shape == (4000, 2)
    np.testing.assert_allclose(drawn.mean.mean(0)[:, 0], pooled.mean[0], atol=0.05)
    spread = np.sqrt(1 / factors.precision[:, 0] + pooled.variance[0])
    np.testing.assert_allclose(drawn.mean.std(0)[:, 0], spread, rtol=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_a_law_of_which_nobody_says_how_factors_scatter_says_none(name: str) -> None:
    (prior,) = some(name)
    rng = np.random.default_rng(0)
    found = prior.resampled(rng, prior.zero()[None], prior, 3)  # a site without records
    assert found is None or (found.batch_shape == (3, 1) and np.all(found.is_proper()))
