"""Densities and divergences against NumPyro's distributions."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

from tests.laws.table import some

TWINS: dict[str, Callable[[Any], dist.Distribution]] = {
    "Gaussian": lambda q: dist.MultivariateNormal(q.mean, q.covariance, validate_args=False),
    "DiagonalGaussian": lambda q: dist.Normal(q.mean, q.variance**0.5).to_event(1),
    "Gamma": lambda q: dist.Gamma(q.shape, q.rate),
    "Beta": lambda q: dist.Beta(q.a, q.b),
    "Dirichlet": lambda q: dist.Dirichlet(q.concentration),
    "Categorical": lambda q: dist.Categorical(probs=q.probabilities),
    "Wishart": lambda q: dist.Wishart(q.degrees_of_freedom, q.scale),
}
WITH_KL = ["Gaussian", "DiagonalGaussian", "Gamma", "Beta", "Dirichlet"]

EVENTS: dict[str, Any] = {
    "Gaussian": np.array([[0.3, -1.0, 2.0], [5.0, 0.0, 1.0]]),
    "DiagonalGaussian": np.array([[0.3, -1.0, 2.0], [5.0, 0.0, 1.0]]),
    "Gamma": np.array([0.1, 1.0, 7.0]),
    "Beta": np.array([0.01, 0.4, 0.9]),
    "Dirichlet": np.array([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]]),
    "Categorical": np.arange(4),
    "Wishart": np.array([np.eye(3), 2 * np.eye(3) + 0.5]),
}


@pytest.mark.parametrize("name", TWINS)
def test_log_prob(name: str) -> None:
    theirs = jax.jit(lambda q, z: TWINS[name](q).log_prob(z))
    for q in some(name, count=3, size=3):
        with jax.enable_x64(True):
            expected = np.asarray(theirs(q, EVENTS[name]))
        np.testing.assert_allclose(q.log_prob(EVENTS[name]), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", WITH_KL)
def test_kl(name: str) -> None:
    p, q = some(name, count=2, size=3)
    with jax.enable_x64(True):
        theirs = jax.jit(lambda p, q: dist.kl_divergence(TWINS[name](p), TWINS[name](q)))
        expected = theirs(p, q)
    np.testing.assert_allclose(p.kl(q), np.asarray(expected), rtol=1e-9)
