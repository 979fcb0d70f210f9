"""Digamma and trigamma against SciPy, and the derivatives JAX takes of them."""

import jax
import numpy as np
import pytest
import scipy.special

from posterity.arrays.jax_namespace import digamma, trigamma

X = np.concatenate([np.logspace(-8, 8, 2001), np.linspace(0.5, 12, 2000)])


@pytest.mark.parametrize(
    "function, order", [(digamma, 0), (trigamma, 1), (jax.vmap(jax.grad(trigamma)), 2)]
)
def test_agrees_with_scipy(function: object, order: int) -> None:
    with jax.enable_x64(True):
        ours = np.asarray(jax.jit(function)(X))
    truth = scipy.special.polygamma(order, X) if order else scipy.special.psi(X)
    # Digamma has a root at 1.46, where only the absolute error can be small.
    np.testing.assert_allclose(ours, truth, rtol=2e-14, atol=4e-15 if order == 0 else 0)


def test_is_nan_outside_its_domain() -> None:
    for found in jax.jit(lambda x: (digamma(x), trigamma(x)))(np.array([-1.5, 0.0])):
        assert np.isnan(np.asarray(found)).all()
