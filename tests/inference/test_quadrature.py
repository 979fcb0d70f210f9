"""Nodes against expectations that are known in closed form, for posteriors of every shape."""

from functools import partial

import jax
import numpy as np
import pytest
import scipy.integrate
import scipy.special

from posterity.families import Beta, DiagonalGaussian, Gamma, Gaussian
from posterity.models.nodes import expectation_nodes, normal_nodes

NODES = 128


@partial(jax.jit, static_argnums=1)
def summary(q, count):
    """Nodes, and the moments of the statistics that they give."""
    nodes = expectation_nodes(q, count)
    mean = nodes.chances @ nodes.statistics
    centred = nodes.statistics - mean
    return nodes, mean, (centred.T * nodes.chances) @ centred


def summarize(q, count=NODES):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, summary(jax.tree.map(jax.device_put, q), count))


BETAS = [(0.05, 0.05), (0.3, 0.3), (0.3, 2), (0.3, 500), (500, 0.3), (2, 2), (20, 7), (500, 500)]
GAMMAS = [(0.3, 1), (0.3, 1e-4), (2, 3), (500, 0.1), (1e5, 1e5)]
MEMBERS = {
    **{f"Beta{p}": Beta.from_standard(*map(float, p)) for p in BETAS},
    **{f"Gamma{p}": Gamma.from_standard(*map(float, p)) for p in GAMMAS},
    "Gaussian": Gaussian.from_standard([3.0], [[0.01]]),
    "DiagonalGaussian": DiagonalGaussian.from_standard([-2.0], [25.0]),
}


@pytest.mark.parametrize("q", MEMBERS.values(), ids=list(MEMBERS))
def test_moments_of_statistics(q):
    nodes, mean, covariance = summarize(q)
    assert nodes.chances.dtype == np.float64
    assert nodes.chances.sum() == pytest.approx(1, rel=1e-13)
    np.testing.assert_allclose(mean, q.mean_parameters, rtol=1e-9)
    np.testing.assert_allclose(covariance, q.fisher_information(), rtol=1e-8)


@pytest.mark.parametrize("q", MEMBERS.values(), ids=list(MEMBERS))
def test_nodes_lie_inside_the_support(q):
    nodes, _, _ = summarize(q)
    assert np.isfinite(nodes.z).all() and np.isfinite(nodes.statistics).all()
    if isinstance(q, Beta | Gamma):
        assert (nodes.z > 0).all()
    if isinstance(q, Beta):
        assert (nodes.z < 1).all()


POWERS = [
    (a, b, power)
    for a, b in [(0.3, 2.0), (1.2, 0.3), (2.0, 2.0), (500.0, 500.0), (0.3, 500.0)]
    for power in (-1.0, -0.2, 0.5, 3.0)
    if power > -a
]


@pytest.mark.parametrize("a, b, power", POWERS)
def test_powers_under_the_beta(a, b, power):
    """``E[z^p] = B(a + p, b) / B(a, b)``, finite for ``p > -a``: also where ``z^p`` explodes."""
    nodes, _, _ = summarize(Beta.from_standard(a, b))
    log_truth = scipy.special.betaln(a + power, b) - scipy.special.betaln(a, b)
    assert nodes.chances @ nodes.z**power == pytest.approx(np.exp(log_truth), rel=1e-9)


@pytest.mark.parametrize("shape, rate", [(0.3, 1.0), (2.0, 3.0), (500.0, 0.1)])
@pytest.mark.parametrize("power", [-0.2, 0.5, 3.0])
def test_powers_under_the_gamma(shape, rate, power):
    nodes, _, _ = summarize(Gamma.from_standard(shape, rate))
    log_truth = scipy.special.gammaln(shape + power) - scipy.special.gammaln(shape)
    truth = np.exp(log_truth - power * np.log(rate))
    assert nodes.chances @ nodes.z**power == pytest.approx(truth, rel=1e-8)


@pytest.mark.parametrize("a, b", [(0.3, 0.3), (2.0, 2.0), (512.0, 534.0)])
def test_a_function_without_closed_form_against_scipy(a, b):
    """The entropy of a coin of chance z, integrated over the logit by adaptive quadrature."""
    f = lambda z: scipy.special.entr(z) + scipy.special.entr(1 - z)

    def integrand(x):
        z, density = scipy.special.expit(x), a * np.log(scipy.special.expit(x))
        return f(z) * np.exp(density + b * np.log(scipy.special.expit(-x)) - log_normalizer)

    log_normalizer = scipy.special.betaln(a, b)
    truth, error = scipy.integrate.quad(integrand, -60, 60, points=[0], limit=500, epsabs=1e-12)
    nodes, _, _ = summarize(Beta.from_standard(a, b))
    assert error < 1e-9
    assert nodes.chances @ f(nodes.z) == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("mean, variance", [(0.0, 1.0), (3.0, 0.01), (-2.0, 4.0)])
def test_gaussian_nodes(mean, variance):
    nodes, _, _ = summarize(Gaussian.from_standard([mean], [[variance]]))
    z, chances = nodes.z[:, 0], nodes.chances
    assert nodes.z.shape == (NODES, 1)
    assert chances @ np.exp(z) == pytest.approx(np.exp(mean + variance / 2), rel=1e-12)
    truth = np.exp(-variance / 2) * np.cos(mean)
    assert chances @ np.cos(z) == pytest.approx(truth, abs=1e-13)


def test_more_nodes_are_better_until_all_digits_are_there():
    """Exponential convergence, at a density that piles up at both ends."""
    q, errors = Beta.from_standard(0.3, 0.3), []
    for count in (16, 32, 64):
        _, _, covariance = summarize(q, count)
        errors.append(np.abs(covariance / q.fisher_information() - 1).max())
    assert errors == sorted(errors, reverse=True)
    assert errors[1] < 1e-4 and errors[2] < 1e-10


def test_nodes_of_the_standard_normal():
    with jax.enable_x64(True):
        x, chances = map(np.asarray, normal_nodes(64, np.float64))
    moments = [chances @ x**power for power in range(7)]
    np.testing.assert_allclose(moments, [1, 0, 1, 0, 3, 0, 15], rtol=1e-12, atol=1e-12)
    assert chances @ np.exp(2 * x) == pytest.approx(np.exp(2), rel=1e-11)
