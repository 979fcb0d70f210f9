import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from posterity.arrays.jax_namespace import log_gamma
from posterity.families import Beta

DRAWS = 40_000


@jax.jit
def many(shape):
    """Draws all at once, and a few at a time; compiled once for all shapes."""
    keys = jax.random.split(jax.random.key(1), DRAWS // 7)
    few = jax.vmap(lambda key: log_gamma(key, shape, (7,)))
    return log_gamma(jax.random.key(0), shape, (DRAWS,)), few(keys).ravel()


@jax.jit
def moved(shape):
    """Draws, and their derivatives by the shape."""
    draw = lambda a: log_gamma(jax.random.key(3), a, (50,))
    return jax.jvp(draw, (shape,), (jnp.ones_like(shape),))


@jax.jit
def betas(law):
    """Compiled once, too."""
    return law.sample(jax.random.key(2), (DRAWS,))


@pytest.mark.parametrize("shape", [0.01, 0.4, 1.0, 1.3, 7.0, 1e4])
def test_draws_have_the_law_of_a_gamma(shape):
    with jax.enable_x64(True):
        drawn = many(np.asarray(shape))
    for found in drawn:
        assert stats.kstest(np.asarray(found), stats.loggamma(shape).cdf).pvalue > 1e-4


@pytest.mark.parametrize("a, b", [(0.3, 0.5), (0.4, 2.0), (1.0, 1.0), (30.0, 40.0)])
def test_draws_have_the_law_of_a_beta(a, b):
    with jax.enable_x64(True):
        drawn = betas(Beta(np.asarray(a - 1), np.asarray(b - 1)))
    assert stats.kstest(np.asarray(drawn), stats.beta(a, b).cdf).pvalue > 1e-4


@pytest.mark.parametrize("shape", [0.4, 3.0])
def test_draws_are_differentiated_along_their_quantiles(shape):
    with jax.enable_x64(True):
        drawn, slope = moved(np.asarray(shape))
    drawn, step = np.asarray(drawn), 1e-5
    level = stats.gamma.cdf(np.exp(drawn), shape)
    ends = [np.log(stats.gamma.ppf(level, shape + h)) for h in (-step, step)]
    np.testing.assert_allclose(slope, (ends[1] - ends[0]) / (2 * step), rtol=1e-4, atol=1e-5)


def test_draws_of_no_gamma_are_nan_and_all_others_as_ever():
    shapes = np.array([np.nan, -0.5, -3.0, 2.0, np.inf, 0.0, 0.3], np.float32)
    drawn = np.asarray(jax.jit(lambda own: log_gamma(jax.random.key(4), own, (7,)))(shapes))
    assert np.isnan(drawn).tolist() == [True, True, True, False, False, False, False]
    assert drawn[4] == np.inf and drawn[5] == -np.inf
    assert np.isfinite(drawn[[3, 6]]).all()


def test_no_draws_are_an_empty_array():
    assert log_gamma(jax.random.key(5), jnp.array(2.0), (0,)).shape == (0,)
    assert Beta(jnp.ones(3), jnp.ones(3)).sample(jax.random.key(5), (2, 0)).shape == (2, 0, 3)
