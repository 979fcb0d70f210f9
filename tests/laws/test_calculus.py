"""Mean parameters are the gradient of the log normalizer; Fisher information its Hessian."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from posterity.arrays.linear_algebra import half_vectorize, unhalf_vectorize
from tests.laws.table import NAMES, dear_ones_slow, some, to_jax

EPS = np.finfo(np.float64).eps
families = pytest.mark.parametrize("name", dear_ones_slow(NAMES))


def along(member: Any, function: Callable[[Any], Any]) -> Callable[[jax.Array], Any]:
    """``function`` of a member, as one of its flat natural parameters."""
    return lambda eta: function(member.with_natural_parameters(eta))


@families
def test_mean_parameters_are_the_gradient_of_the_log_normalizer(name: str) -> None:
    (batch,) = some(name, batch=(16,), size=3)
    with jax.enable_x64(True):
        gradient = jax.grad(along(to_jax(batch[0]), lambda q: q.log_normalizer()))
        gradients = np.asarray(jax.jit(jax.vmap(gradient))(batch.natural_parameters))
    scale = np.abs(batch.mean_parameters).max(-1, keepdims=True) + 1
    assert np.all(np.abs(gradients - batch.mean_parameters) <= 1e4 * EPS * scale)


@families
def test_fisher_information_is_the_jacobian_of_mean_parameters(name: str) -> None:
    (batch,) = some(name, batch=(3,))
    fisher = batch.fisher_information()
    assert isinstance(fisher, np.ndarray)
    assert fisher.shape == (3, batch.dimension, batch.dimension)
    with jax.enable_x64(True):
        jacobian = jax.jacfwd(along(to_jax(batch[0]), lambda q: q.mean_parameters))
        jacobians = np.asarray(jax.jit(jax.vmap(jacobian))(batch.natural_parameters))
    scale = np.abs(fisher).max((-2, -1), keepdims=True)
    assert np.all(np.abs(fisher - jacobians) <= 1e5 * EPS * scale)
    assert np.all(np.abs(fisher - np.swapaxes(fisher, -1, -2)) <= 1e4 * EPS * scale)
    # Positive definite by far more than rounding: the representation is minimal.
    assert np.all(np.linalg.eigvalsh(fisher)[:, 0] > 1e-9 * scale[:, 0, 0])


def test_fisher_information_keeps_the_kind_of_array() -> None:
    with jax.enable_x64(True):
        (p,) = some("NormalWishart")
        fisher = to_jax(p).fisher_information()
        assert isinstance(fisher, jax.Array)
        np.testing.assert_allclose(fisher, p.fisher_information(), rtol=1e-9, atol=1e-9)


def test_half_vectorization_keeps_inner_products() -> None:
    rng = np.random.default_rng(0)
    a, b = (m + np.swapaxes(m, -1, -2) for m in rng.normal(size=(2, 5, 4, 4)))
    inner = (half_vectorize(a) * half_vectorize(b)).sum(-1)
    np.testing.assert_allclose(inner, (a * b).sum((-2, -1)), rtol=1e-13)
    np.testing.assert_allclose(unhalf_vectorize(half_vectorize(a), 4), a, rtol=4 * EPS)


@families
@pytest.mark.parametrize("jitted", [False, True], ids=["numpy", "jit"])
def test_inverse_fisher_product_inverts_the_fisher_information(name: str, jitted: bool) -> None:
    (batch,) = some(name, batch=(3,))
    vector = np.random.default_rng(0).normal(size=(3, batch.dimension))
    with jax.enable_x64(True):
        product = lambda q, v: q.inverse_fisher_product(v)
        member = to_jax(batch) if jitted else batch
        solved = np.asarray((jax.jit(product) if jitted else product)(member, vector))
    fisher = batch.fisher_information()
    back = (fisher @ solved[..., None])[..., 0]
    condition = np.linalg.cond(fisher)[:, None]
    assert np.all(np.abs(back - vector) <= 1e3 * EPS * condition * np.abs(vector).max())
