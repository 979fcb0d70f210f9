import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from posterity.families import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    Mixture,
    NormalGamma,
    NormalWishart,
    Wishart,
)

DRAWS = 40_000


@jax.jit
def betas(law):
    """Compiled once, too."""
    return law.sample(jax.random.key(2), (DRAWS,))


@pytest.mark.parametrize("a, b", [(0.3, 0.5), (0.4, 2.0), (1.0, 1.0), (30.0, 40.0)])
def test_draws_have_the_law_of_a_beta(a, b):
    with jax.enable_x64(True):
        drawn = betas(Beta(np.asarray(a - 1), np.asarray(b - 1)))
    assert stats.kstest(np.asarray(drawn), stats.beta(a, b).cdf).pvalue > 1e-4


def test_no_draws_are_an_empty_array():
    assert Beta(jnp.ones(3), jnp.ones(3)).sample(jax.random.key(5), (2, 0)).shape == (2, 0, 3)


YEARS = np.stack([np.ones(31), np.arange(1990.0, 2021.0), np.arange(1990.0, 2021.0) ** 2], axis=1)
CURVE = np.linalg.inv(np.linalg.qr(YEARS)[1])
"""The inverse of a root of an ill-conditioned precision: of a quadratic in the year."""
TINY = Beta.from_standard([1e-8, 3e-8], [3e-8, 1e-8])
EXTREME = {
    "Beta": (TINY, [0.25, 0.75], [0.433, 0.433]),
    "Dirichlet": (Dirichlet.from_standard([1e-8, 3e-8]), [0.25, 0.75], [0.433, 0.433]),
    "Mixture": (Mixture.from_standard([0.5, 0.5], TINY), 0.5, 0.5),
    "Gamma": (Gamma.from_standard(1e8, 1e8), 1.0, 1e-4),
    "DiagonalGaussian": (
        DiagonalGaussian.from_standard([0.0, 1e20], [1e-40, 1e40]),
        [0.0, 1e20],
        [1e-20, 1e20],
    ),
    "Gaussian": (
        Gaussian(np.zeros(3), YEARS.T @ YEARS),
        np.zeros(3),
        np.sqrt((CURVE**2).sum(1)),
    ),
    "Wishart": (
        Wishart.from_standard(np.diag([1e-12, 1e12]), 1 + 1e-7),
        [[1e-12, 0.0], [0.0, 1e12]],
        [[2**0.5 * 1e-12, 1.0], [1.0, 2**0.5 * 1e12]],
    ),
    "NormalWishart": (NormalWishart.from_standard([0.0], 1.0, [[1e20]], 6.0), [0.0], [0.5e-10]),
    "NormalGamma": (NormalGamma.from_standard([0.0], [1.0], [1e-20], [6.0]), [0.0], [0.5e-10]),
}


@pytest.mark.parametrize("name", EXTREME)
def test_draws_of_extreme_members_have_their_moments_in_float32(name):
    law, mean, deviation = EXTREME[name]
    drawn = law.sample(jax.random.key(6), [4000])
    drawn = np.asarray(drawn[0] if isinstance(drawn, tuple) else drawn, float)
    assert np.all(np.abs(drawn.mean(0) - mean) < 5 * np.array(deviation) / 4000**0.5)
    np.testing.assert_allclose(drawn.std(0), deviation, rtol=0.2)


class ByNumPy(DiagonalGaussian):
    """A user's family, whose draws cannot be traced."""

    def sample(self, key, shape=()):
        if (self.precision <= 0).any():
            raise ValueError("improper")
        return next(iter(self.numpy_draws(np.random.default_rng(0), 1)))


def test_mixtures_of_families_that_cannot_be_traced_are_drawn():
    components = ByNumPy.from_standard([[3.0], [3.0]], [[4.0], [4.0]])
    mixture, key = Mixture.from_standard([0.5, 0.5], components), jax.random.key(7)
    assert mixture.sample(key, (5,)).shape == (5, 1)
    assert mixture.kl(mixture, key=key).value == 0


@pytest.mark.parametrize("shape", [2, [2], np.array([2])])
def test_shapes_are_integers_or_sequences_of_them(shape):
    law = DiagonalGaussian.from_standard([0.0], [1.0])
    assert law.sample(jax.random.key(8), shape).shape == (2, 1)
