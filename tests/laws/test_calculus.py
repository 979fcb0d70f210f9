"""Mean parameters are the gradient of the log normalizer; Fisher information its Hessian."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import scipy

from posterity.arrays.linear_algebra import half_vectorize, unhalf_vectorize
from posterity.families import Gamma, Plate, Product, base
from tests.laws.table import NAMES, dear_ones_slow, some, to_jax

EPS = np.finfo(np.float64).eps
families = pytest.mark.parametrize("name", dear_ones_slow(NAMES))


def along(member: Any, function: Callable[[Any], Any]) -> Callable[[jax.Array], Any]:
    """``function`` of a member, as one of its flat natural parameters."""
    return lambda eta: function(member.with_natural_parameters(eta))


class Derivatives(NamedTuple):
    """Of some members, by JAX, in one program a family."""

    batch: Any
    vector: np.ndarray
    gradients: np.ndarray
    jacobians: np.ndarray
    solved: np.ndarray


@functools.cache
def derivatives(name: str) -> Derivatives:
    (batch,) = some(name, batch=(6,), size=3)
    vector = np.random.default_rng(0).normal(size=(6, batch.dimension))
    with jax.enable_x64(True):
        one = to_jax(batch[0])
        gradient = jax.grad(along(one, lambda q: q.log_normalizer()))
        jacobian = jax.jacfwd(along(one, lambda q: q.mean_parameters))

        @jax.jit
        def all_of(batch: Any, vector: Any) -> Any:
            etas = batch.natural_parameters
            solved = batch.inverse_fisher_product(vector)
            return jax.vmap(gradient)(etas), jax.vmap(jacobian)(etas), solved

        return Derivatives(batch, vector, *map(np.asarray, all_of(batch, vector)))


@families
def test_mean_parameters_are_the_gradient_of_the_log_normalizer(name: str) -> None:
    batch, gradients = derivatives(name).batch, derivatives(name).gradients
    scale = np.abs(batch.mean_parameters).max(-1, keepdims=True) + 1
    assert np.all(np.abs(gradients - batch.mean_parameters) <= 1e4 * EPS * scale)
    potential, gradient = batch.evaluated(batch.natural_parameters)
    np.testing.assert_allclose(potential, batch.log_normalizer(), rtol=1e-12, atol=1e-12)
    assert np.all(np.abs(gradient() - gradients) <= 1e4 * EPS * scale)


@families
def test_fisher_information_is_the_jacobian_of_mean_parameters(name: str) -> None:
    batch, jacobians = derivatives(name).batch, derivatives(name).jacobians
    fisher = batch.fisher_information()
    assert isinstance(fisher, np.ndarray)
    assert fisher.shape == (6, batch.dimension, batch.dimension)
    scale = np.abs(fisher).max((-2, -1), keepdims=True)
    assert np.all(np.abs(fisher - jacobians) <= 1e5 * EPS * scale)
    assert np.all(np.abs(fisher - np.swapaxes(fisher, -1, -2)) <= 1e4 * EPS * scale)
    # Positive definite by far more than rounding: the representation is minimal.
    assert np.all(np.linalg.eigvalsh(fisher)[:, 0] > 1e4 * EPS * scale[:, 0, 0])


def test_parts_of_a_product_have_programs_of_their_own(monkeypatch) -> None:
    sizes = []

    def jacobians(like: Any, vectors: Any) -> Any:
        sizes.append(like.dimension)
        return each(like, vectors)

    each = base._jacobians
    monkeypatch.setattr(base, "_jacobians", jacobians)
    gamma = Gamma.from_standard([2.0, 3.0], [1.0, 5.0])
    fisher = Product(one=gamma[0], two=Plate(gamma)).fisher_information()
    blocks = [gamma[0], gamma[0], gamma[1]]
    expected = scipy.linalg.block_diag(*(block.fisher_information() for block in blocks))
    np.testing.assert_array_equal(fisher, expected)
    assert set(sizes) == {2}


def test_half_vectorization_keeps_inner_products() -> None:
    rng = np.random.default_rng(0)
    a, b = (m + np.swapaxes(m, -1, -2) for m in rng.normal(size=(2, 5, 4, 4)))
    inner = (half_vectorize(a) * half_vectorize(b)).sum(-1)
    np.testing.assert_allclose(inner, (a * b).sum((-2, -1)), rtol=1e-13)
    np.testing.assert_allclose(unhalf_vectorize(half_vectorize(a), 4), a, rtol=4 * EPS)


@families
def test_inverse_fisher_product_inverts_the_fisher_information(name: str) -> None:
    batch, vector, *_, traced = derivatives(name)
    fisher = batch.fisher_information()
    condition = np.linalg.cond(fisher)[:, None]
    for solved in (batch.inverse_fisher_product(vector), traced):
        back = (fisher @ solved[..., None])[..., 0]
        assert np.all(np.abs(back - vector) <= 1e3 * EPS * condition * np.abs(vector).max())
