"""Densities, entropies and means against SciPy."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from posterity.families import (
    Beta,
    Categorical,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    NormalGamma,
    NormalWishart,
    Wishart,
)
from tests.laws.table import some

SEEDS = range(5)
close = np.testing.assert_allclose


def one(name: str, seed: int, size: int = 3) -> Any:
    return some(name, size=size, seed=seed)[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_gaussian(seed: int) -> None:
    q: Gaussian = one("Gaussian", seed)
    reference = stats.multivariate_normal(q.mean, q.covariance)
    z = reference.rvs(10, random_state=seed)
    close(q.log_prob(z), reference.logpdf(z), rtol=1e-10)
    close(q.entropy(), reference.entropy(), rtol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_diagonal_gaussian(seed: int) -> None:
    q: DiagonalGaussian = one("DiagonalGaussian", seed)
    reference = stats.norm(q.mean, np.sqrt(q.variance))
    z = reference.rvs((10, 3), random_state=seed)
    close(q.log_prob(z), reference.logpdf(z).sum(-1), rtol=1e-10)
    close(q.entropy(), reference.entropy().sum(), rtol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_gamma(seed: int) -> None:
    q: Gamma = one("Gamma", seed)
    reference = stats.gamma(q.shape, scale=1 / q.rate)
    z = reference.rvs(10, random_state=seed)
    close(q.log_prob(z), reference.logpdf(z), rtol=1e-10)
    close(q.entropy(), reference.entropy(), rtol=1e-8, atol=1e-10)
    close(q.mean, reference.mean(), rtol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_beta(seed: int) -> None:
    q: Beta = one("Beta", seed)
    reference = stats.beta(q.a, q.b)
    z = np.linspace(0.05, 0.95, 10)
    close(q.log_prob(z), reference.logpdf(z), rtol=1e-9, atol=1e-10)
    close(q.entropy(), reference.entropy(), rtol=1e-8, atol=1e-10)
    close(q.mean, reference.mean(), rtol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_dirichlet(seed: int) -> None:
    q: Dirichlet = one("Dirichlet", seed)
    reference = stats.dirichlet(q.concentration)
    z = np.random.default_rng(seed).dirichlet(np.full(4, 3.0), 10)
    close(q.log_prob(z), [reference.logpdf(row / row.sum()) for row in z], rtol=1e-9, atol=1e-9)
    close(q.entropy(), reference.entropy(), rtol=1e-9)
    close(q.mean, reference.mean(), rtol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_categorical(seed: int) -> None:
    q: Categorical = one("Categorical", seed)
    reference = stats.multinomial(1, q.probabilities)
    close(q.log_prob(np.arange(4)), reference.logpmf(np.eye(4)), rtol=1e-9)
    close(q.entropy(), reference.entropy(), rtol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_wishart(seed: int) -> None:
    q: Wishart = one("Wishart", seed)
    reference = stats.wishart(q.degrees_of_freedom, q.scale)
    z = stats.wishart(8, np.eye(3)).rvs(10, random_state=seed)
    close(q.log_prob(z), reference.logpdf(np.moveaxis(z, 0, -1)), rtol=1e-9)
    close(q.entropy(), reference.entropy(), rtol=1e-9)
    close(q.mean, reference.mean(), rtol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_normal_wishart(seed: int) -> None:
    q: NormalWishart = one("NormalWishart", seed)
    precision = stats.wishart(8, np.eye(3)).rvs(10, random_state=seed)
    mean = np.random.default_rng(seed).normal(size=(10, 3))
    marginal = stats.wishart(q.degrees_of_freedom, q.wishart.scale)
    covariances = np.linalg.inv(q.mean_precision * precision)
    conditional = [
        stats.multivariate_normal(q.mean, c).logpdf(m)
        for m, c in zip(mean, covariances, strict=True)
    ]
    expected = marginal.logpdf(np.moveaxis(precision, 0, -1)) + conditional
    close(q.log_prob((mean, precision)), expected, rtol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_normal_gamma(seed: int) -> None:
    q: NormalGamma = one("NormalGamma", seed)
    rng = np.random.default_rng(seed)
    mean, precision = rng.normal(size=(10, 3)), rng.gamma(3.0, size=(10, 3))
    marginal = stats.gamma(q.degrees_of_freedom / 2, scale=2 / q.inverse_scale)
    conditional = stats.norm(q.mean, 1 / np.sqrt(q.mean_precision * precision))
    expected = (marginal.logpdf(precision) + conditional.logpdf(mean)).sum(-1)
    close(q.log_prob((mean, precision)), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_wishart_in_one_dimension_is_a_gamma(seed: int) -> None:
    """``W(s, ν)`` is ``Gamma(ν/2, rate 1/(2 s))``, and KL does not depend on the name."""
    pair = some("Wishart", count=2, size=1, seed=seed)
    p, q = (Gamma.from_standard(w.degrees_of_freedom / 2, w.inverse_scale[0, 0] / 2) for w in pair)
    close(p.kl(q), pair[0].kl(pair[1]), rtol=1e-10)
    close(p.entropy(), pair[0].entropy(), rtol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_beta_is_a_dirichlet(seed: int) -> None:
    pair = some("Beta", count=2, seed=seed)
    p, q = (Dirichlet.from_standard(np.stack([b.a, b.b])) for b in pair)
    close(p.kl(q), pair[0].kl(pair[1]), rtol=1e-10)
    close(p.entropy(), pair[0].entropy(), rtol=1e-10, atol=1e-12)
