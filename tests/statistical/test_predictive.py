"""Posterior predictives are averages over the posterior."""

import jax
import numpy as np
import pytest
from scipy import stats

from experiments.klfusion.gmm import predictive_log_prob
from posterity.families import Beta, DiagonalGaussian, Plate
from tests.laws.table import to_jax
from tests.statistical.test_samples import COUNT, typical, within

POINTS = np.array([[0.0, 0.0], [1.0, -0.5], [-2.0, 3.0], [4.0, 4.0]])


def densities(mean: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Gaussian density of each point under each draw: (draws, points)."""
    gap = POINTS[:, None] - mean
    squared = np.einsum("pni,nij,pnj->np", gap, precision, gap)
    logdet = np.linalg.slogdet(precision)[1][:, None]
    return np.exp((logdet - squared) / 2 - np.log(2 * np.pi))


@pytest.mark.slow
def test_predictive_of_a_plate_weighs_its_members() -> None:
    plate: Plate = typical("Plate-Dirichlet")
    with jax.enable_x64(True):
        draw = jax.jit(lambda key: to_jax(plate).sample(key, (COUNT,)))
        (mean, precision), weights = jax.tree.map(np.asarray, draw(jax.random.key(4)))
    parts = [weights[:, [k]] * densities(mean[:, k], precision[:, k]) for k in range(3)]
    within(sum(parts), np.exp(predictive_log_prob(plate, POINTS)), "the plate's predictive")


def test_mean_weights_of_sticks_are_the_stick_breaking_means() -> None:
    """What is left after the last stick is shared among all, in proportion."""
    sticks = Beta.from_standard([2.0, 3.0, 1.5], [4.0, 2.0, 1.0])
    plate = Plate(DiagonalGaussian.from_standard(np.zeros((3, 1)), np.ones((3, 1))), sticks)
    draws = stats.beta(sticks.a, sticks.b).rvs((COUNT, 3), random_state=np.random.default_rng(5))
    left = np.cumprod(np.concatenate([np.ones((COUNT, 1)), 1 - draws], axis=1), axis=1)
    weights = draws * left[:, :-1]
    kept = 1 - np.prod(1 - sticks.mean)
    np.testing.assert_allclose(plate.mean_weights().sum(), 1.0, rtol=1e-15)
    within(weights, plate.mean_weights() * kept, "the stick-breaking weights")


def test_mean_weights_without_a_posterior_are_equal() -> None:
    plate = Plate(DiagonalGaussian.from_standard(np.zeros((4, 1)), np.ones((4, 1))))
    assert plate.mean_weights().tolist() == [0.25] * 4
