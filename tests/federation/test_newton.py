"""Joint Newton steps: posteriors that hold coordinates apart, on columns that hang together."""

import itertools
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from posterity.families import DiagonalGaussian, Gaussian, Product
from posterity.federation import federate
from posterity.inference import LocalUpdate
from posterity.models import FunctionModel, GammaRegression, LogisticRegression, PoissonRegression

NODES, CHANCES = np.polynomial.hermite_e.hermegauss(40)
CHANCES = CHANCES / CHANCES.sum()


def sites(columns, count=2, records=150, mean=5.0, seed=0):
    rng = np.random.default_rng(seed)
    slopes = rng.normal(size=columns - 1) / np.sqrt(columns)
    data = {}
    for number in range(count):
        x = np.c_[np.ones(records), mean + rng.normal(size=(records, columns - 1))]
        chance = 1 / (1 + np.exp(-(x[:, 1:] - mean) @ slopes))
        data[f"site {number}"] = (x, (rng.random(records) < chance).astype(float))
    return data


def logistic(z, data):
    x, y = data
    f = x @ z
    return y * f - jnp.logaddexp(0.0, f)


def of_predictor(f, data):
    return data[1] * f[:, 0] - jnp.logaddexp(0.0, f[:, 0])


SAID = FunctionModel(of_predictor, predictors=lambda z, data: data[0] @ z[:, None])


def free_energy(data, mean, covariance):
    """Under a standard normal prior, by Gauss-Hermite quadrature; with slope and curvature."""
    x, y = (np.concatenate(parts) for parts in zip(*data.values(), strict=True))
    deviation = np.sqrt(np.einsum("ni,ij,nj->n", x, covariance, x))
    f = (x @ mean)[:, None] + deviation[:, None] * NODES
    chance = 1 / (1 + np.exp(-f))
    fit = (y[:, None] * f - np.logaddexp(0, f)) @ CHANCES
    divergence = np.trace(covariance) + mean @ mean - len(mean) - np.linalg.slogdet(covariance)[1]
    slope, bend = (y[:, None] - chance) @ CHANCES, (chance * (1 - chance)) @ CHANCES
    return divergence / 2 - fit.sum(), mean - x.T @ slope, np.eye(len(mean)) + (x.T * bend) @ x


def optimum(data, sizes):
    """Mean and covariance of the best Gaussian of independent blocks, by SciPy's Newton."""
    size = sum(sizes)
    mean, covariance = np.zeros(size), 1e-4 * np.eye(size)
    for _ in range(100):
        found = scipy.optimize.minimize(
            lambda mean, at=covariance: free_energy(data, mean, at)[0],
            mean,
            jac=lambda mean, at=covariance: free_energy(data, mean, at)[1],
            hess=lambda mean, at=covariance: free_energy(data, mean, at)[2],
            method="trust-exact",
            options={"gtol": 1e-8},
        )
        curvature, ends = free_energy(data, found.x, covariance)[2], np.cumsum([0, *sizes])
        after = np.zeros_like(covariance)
        for start, end in itertools.pairwise(ends):
            after[start:end, start:end] = np.linalg.inv(curvature[start:end, start:end])
        done = np.abs(np.diagonal(after) / np.diagonal(covariance) - 1).max() < 1e-10
        mean, covariance = found.x, after
        if done:
            return mean, covariance
    raise AssertionError("the reference has not converged")


def divergence(mean, covariance, other_mean, other_covariance):
    ratio, away = np.linalg.solve(other_covariance, covariance), mean - other_mean
    terms = np.trace(ratio) - len(mean) - np.linalg.slogdet(ratio)[1]
    return (terms + away @ np.linalg.solve(other_covariance, away)) / 2


def quietly(*args, **options):
    with warnings.catch_warnings(action="ignore"):
        return federate(*args, **options)


@pytest.mark.slow
def test_a_users_own_logistic_of_41_columns_far_from_zero_ends_at_its_optimum():
    data = sites(41)
    run = quietly(data, SAID, DiagonalGaussian.from_standard(np.zeros(41), np.ones(41)))
    mean, covariance = optimum(data, [1] * 41)
    q = run.posterior
    assert run.status.converged and run.state.step < 10
    assert divergence(q.mean, np.diag(q.variance), mean, covariance) < 1e-5


@pytest.mark.parametrize(
    "update",
    [
        pytest.param(None, id=""),
        pytest.param(LocalUpdate(batch_size=40), id="batches", marks=pytest.mark.slow),
    ],
)
def test_blocks_of_a_product_move_together(update):
    data = sites(6, mean=20.0)
    joined = lambda z, data: (data[0] @ jnp.concatenate([z["first"], z["second"]]))[:, None]
    own = FunctionModel(of_predictor, predictors=joined)
    first = Gaussian.from_standard(np.zeros(3), np.eye(3))
    prior = Product(first=first, second=DiagonalGaussian.from_standard(np.zeros(3), np.ones(3)))
    run = quietly(data, own, prior, update=update)
    mean, covariance = optimum(data, [3, 1, 1, 1])
    q = run.posterior
    together = np.r_[q.first.mean, q.second.mean]
    spread = scipy.linalg.block_diag(q.first.covariance, np.diag(q.second.variance))
    assert run.status.converged and run.state.step < 15
    assert divergence(together, spread, mean, covariance) < 1e-4


def test_raw_columns_of_a_regression_end_where_newton_s_step_is_nothing():
    """Means of 1000 and deviations of .02: coordinates one after the other would go to and fro."""
    rng = np.random.default_rng(11)
    mean, data = 1000 * rng.random(6), {}
    for number in range(5):
        z = rng.normal(size=(60, 6))
        y = rng.gamma(2, np.exp(z @ rng.normal(size=6) / 3) / 2)
        data[f"site {number}"] = np.c_[np.ones(60), mean + 0.02 * z], y
    x, y = (np.concatenate(parts) for parts in zip(*data.values(), strict=True))
    prior = DiagonalGaussian.from_standard(np.zeros(7), [1e4] * 7)
    run = federate(data, GammaRegression(0.5), prior, tolerance=1e-8)
    q = run.posterior
    ratio = y * np.exp(x**2 @ q.variance / 2 - x @ q.mean) / 0.5  # E exp(-f) is in closed form
    slope = x.T @ (ratio - 2) - q.mean / 1e4
    step = np.linalg.solve((x.T * ratio) @ x + np.eye(7) / 1e4, slope)
    assert run.status.converged and run.state.step < 5
    assert (q.precision * step**2).sum() / 2 < 1e-3
    assert np.allclose(q.precision, ratio @ x**2 + 1e-4, rtol=1e-6)


@pytest.mark.parametrize("variance", [6.0, 40.0])
def test_a_first_step_that_is_far_too_long_is_shortened(variance):
    """Of few records of columns a thousand deviations from zero, at a twentieth it first gains."""
    rng = np.random.default_rng(0)
    data = {}
    for site in "abcde":
        z = rng.normal(size=(12, 7))
        x = np.c_[np.ones(12), -1000 + z]
        data[site] = x, (rng.random(12) < scipy.special.expit(z.sum(1))).astype(float)
    prior = DiagonalGaussian.from_standard(np.zeros(8), np.full(8, variance))
    run = federate(data, LogisticRegression(), prior)
    assert run.status.converged and run.state.step < 5


def test_counts_that_are_all_zero_converge_under_a_wide_prior():
    """Their likelihood rises for ever; natural gradients alone took a hundred rounds and more."""
    x = np.c_[np.ones(60), np.random.default_rng(2).normal(size=(60, 2))]
    prior = DiagonalGaussian.from_standard(np.zeros(3), np.full(3, 1e4))
    run = federate({"one": (x, np.zeros(60))}, PoissonRegression(), prior)
    assert run.status.converged and run.state.step < 10


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("deviation", [10.0, 100.0])
def test_counts_that_are_zero_wherever_a_column_is_one_end_at_their_optimum(deviation, seed):
    rng = np.random.default_rng(seed)
    data = {}
    for site in ("north", "south"):
        x = 3 * rng.normal(size=(rng.integers(8, 80), 4))
        x[:, 0] = 1
        x[:, 1] = rng.uniform(size=len(x)) < 0.3
        rate = np.exp(np.clip(x @ [0.5, 0.0, -1.0, 0.7], -6, 4))
        data[site] = x, np.where(x[:, 1] == 1, 0, rng.poisson(rate))
    prior = DiagonalGaussian.from_standard(np.zeros(4), np.full(4, deviation**2))
    run = federate(data, PoissonRegression(), prior, tolerance=1e-6)
    assert run.status.converged and run.state.step < 15
    x, y = (np.concatenate(parts) for parts in zip(*data.values(), strict=True))
    q = run.posterior
    rates = np.exp(x @ q.mean + x**2 @ q.variance / 2)
    # Derivatives of the free energy by means and by variances, in units of deviations and shares.
    slope = np.sqrt(q.variance) * ((y - rates) @ x - q.mean / deviation**2)
    bend = 1 - q.variance * (1 / deviation**2 + rates @ x**2)
    assert np.abs([slope, bend]).max() < 0.05
