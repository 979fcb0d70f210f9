"""What sites tell together of the population, beside grids and sums of an independent making."""

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp
from scipy.stats import multivariate_normal

from posterity.families import DiagonalGaussian, Gaussian
from posterity.federation import federate
from posterity.inference.expectation_propagation import Normal
from posterity.inference.population import message_of
from posterity.models import LinearRegression, LogisticRegression, PredictorModel, hierarchical

ONE = Gaussian.from_standard([0.0], [[4.0]])
S, M = np.linspace(-9, 4, 209), np.linspace(-6, 6, 241)


def moments_on_grid(log):
    """Mean and deviation of the log spread and of the coefficient, of a log density (s, m)."""
    weights = np.exp(log - logsumexp(log))
    found = []
    for line, marginal in ((S, weights.sum(1)), (M, weights.sum(0))):
        mean = marginal @ line
        found.append((mean, np.sqrt(marginal @ (line - mean) ** 2)))
    return found


def beside(run, exact):
    """Means and deviations within 3 % of a deviation."""
    law = run.population.law
    for q, (mean, deviation) in zip((law.log_spread, law.coefficients), exact, strict=True):
        assert abs(q.mean[0] - mean) < 0.03 * deviation
        assert np.sqrt(q.covariance[0, 0]) == pytest.approx(deviation, rel=0.03)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("own", [[0, 1, 2], [2]])
def test_a_sites_message_is_had_from_its_factor(rank, own):
    rng = np.random.default_rng(rank)
    half = rng.normal(size=(3, rank)) * np.array([[1.0], [10.0], [0.1]])
    precision = half @ half.T
    linear = precision @ rng.normal(size=3)
    variance, chances = np.zeros((50, 3)), rng.dirichlet(np.ones(50))
    variance[:, own] = np.exp(2 * rng.normal(-1, 0.8, size=(50, len(own))))
    shrunk = np.linalg.inv(np.eye(3) + precision * variance[:, None, :])
    factor = Normal(
        np.tensordot(chances, shrunk @ linear, 1), np.tensordot(chances, shrunk @ precision, 1)
    )
    message = message_of(factor, variance, chances)
    scale = np.abs(precision).max()
    np.testing.assert_allclose(message.precision, precision, atol=1e-7 * scale)
    np.testing.assert_allclose(message.linear, linear, atol=1e-7 * np.abs(linear).max())


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 29])
def test_the_doubt_of_one_spread_is_that_of_the_exact_posterior(count, spread):
    """Means of sites that are known well or hardly at all."""
    rng = np.random.default_rng([count, round(10 * spread)])
    sites = {
        f"site {k}": (np.ones((n, 1)), 0.5 + spread * rng.normal() + rng.normal(size=n))
        for k, n in enumerate(rng.integers(2, 60, count))
    }
    run = federate(sites, LinearRegression(1.0), ONE, personal=True)
    _, prior = hierarchical(LinearRegression(1.0), ONE, True)
    log = prior.log_spread.log_prob(S[:, None])[:, None] + ONE.log_prob(M[:, None])
    for _, y in sites.values():
        variance = np.exp(2 * S)[:, None] + 1 / len(y)
        log = log - (y.mean() - M) ** 2 / variance / 2 - np.log(variance) / 2
    assert run.status.converged
    beside(run, moments_on_grid(log))
    assert run.population.effects is not None


class Poisson(PredictorModel):
    """Counts, as a user would write it in JAX."""

    families = (Gaussian, DiagonalGaussian)

    def predictor_log_likelihood(self, f, y):
        import jax.numpy as jnp

        return y * f - jnp.exp(f)


def exactly(log_likelihood, sites):
    """By sums over a site's own intercept, at every spread and every mean.

    Nodes are equidistant where the likelihoods are narrower than the law of the intercepts, and
    Gauss's where these are hardly spread.
    """
    _, prior = hierarchical(LogisticRegression(), ONE, True)
    log = prior.log_spread.log_prob(S[:, None])[:, None] + ONE.log_prob(M[:, None])
    u, chances = np.polynomial.hermite_e.hermegauss(60)
    line = np.linspace(-12, 8, 4001)
    every = np.stack([log_likelihood(line, y) for _, y in sites.values()], -1)
    likelihoods = np.exp(every - every.max(0))
    for i, spread in enumerate(np.exp(S)):
        if spread > 0.05:
            law = np.exp(-(((line - M[:, None]) / spread) ** 2) / 2) / spread
            log[i] += np.log(law @ likelihoods * (line[1] - line[0]) + 1e-300).sum(-1)
            continue
        law = chances / chances.sum() * np.sqrt(2 * np.pi)
        for k, (_, y) in enumerate(sites.values()):
            values = log_likelihood(M[:, None] + spread * u, y) - every[:, k].max()
            log[i] += logsumexp(values, -1, b=law)
    return moments_on_grid(log)


@pytest.mark.parametrize(
    "count", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 5, 8))]
)
@pytest.mark.parametrize("counts", [False, True])
def test_the_doubt_of_few_intercepts_of_binary_records_and_of_counts(counts, count):
    rng = np.random.default_rng([count, counts])
    sites = {}
    for k, n in enumerate(rng.integers(20, 80, count)):
        f = 0.3 + 0.7 * rng.normal()
        y = rng.poisson(np.exp(f), n) if counts else rng.random(n) < 1 / (1 + np.exp(-f))
        sites[f"site {k}"] = np.ones((n, 1)), y.astype(float)
    binary = lambda f, y: y.sum() * f - len(y) * np.logaddexp(0, f)
    poisson = lambda f, y: y.sum() * f - len(y) * np.exp(f) - gammaln(y + 1).sum()
    exact = exactly(poisson if counts else binary, sites)
    model = Poisson() if counts else LogisticRegression()
    run = federate(sites, model, ONE, personal=True)
    assert run.status.converged
    beside(run, exact)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_the_doubt_of_four_spreads_is_that_of_the_exact_posterior(count):
    rng = np.random.default_rng(count)
    prior, sites, blocks = Gaussian.from_standard(np.zeros(4), np.eye(4)), {}, []
    for k in range(count):
        x = np.column_stack([np.ones(20), rng.normal(size=(20, 3))])
        sites[f"site {k}"] = x, x @ (0.5 + 0.6 * rng.normal(size=4)) + rng.normal(size=20)
        blocks.append(x)
    run = federate(sites, LinearRegression(1.0), prior, personal=True)
    _, joint = hierarchical(LinearRegression(1.0), prior, True)
    population, q = run.population, run.population.law.log_spread
    # All records at once are Gaussian, given the spreads: draws are weighted by their density.
    draws = rng.multivariate_normal(q.mean, 1.4 * q.covariance, 6000)
    together, y = np.concatenate(blocks), np.concatenate([y for _, y in sites.values()])
    log = joint.log_spread.log_prob(draws)
    log = log - multivariate_normal(q.mean, 1.4 * q.covariance).logpdf(draws)
    for i, s in enumerate(draws):
        covariance = together @ together.T + np.eye(len(y))
        for k, x in enumerate(blocks):
            own = slice(20 * k, 20 * (k + 1))
            covariance[own, own] += (x * np.exp(2 * s)) @ x.T
        root = np.linalg.cholesky(covariance)
        log[i] -= (np.linalg.solve(root, y) ** 2).sum() / 2 + np.log(np.diag(root)).sum()
    weights = np.exp(log - logsumexp(log))
    mean = weights @ draws
    deviation = np.sqrt(weights @ (draws - mean) ** 2)
    assert run.status.converged
    assert population.effects is not None
    assert np.abs(q.mean - mean).max() < 0.1 * deviation.min()
    np.testing.assert_allclose(np.sqrt(np.diag(q.covariance)), deviation, rtol=0.07)


def test_what_a_forgotten_site_told_is_out_of_it():
    rng = np.random.default_rng(4)
    sites = {k: (np.ones((30, 1)), rng.normal() + rng.normal(size=30)) for k in "abcd"}
    run = federate(sites, LinearRegression(1.0), ONE, personal=True)
    left = run.forget("d").converge().population.law
    del sites["d"]
    never = federate(sites, LinearRegression(1.0), ONE, personal=True).population.law
    assert float(never.kl(left)) < 1e-3
    assert float(never.kl(run.population.law)) > 1e-2


def test_names_are_kept_and_a_posterior_without_records_is_the_prior():
    prior = Gaussian.from_standard([0.0, 0.0], np.eye(2)).named(["one", "age"])
    empty = {"a": (np.ones((0, 2)), np.ones(0))}
    law = federate(empty, LinearRegression(1.0), prior, personal=["age"]).population.law
    assert law.coefficients.names == ("one", "age")
    assert law.log_spread.names == ("age",)
    np.testing.assert_allclose(law.coefficients.covariance, np.eye(2))
    own = Gaussian.from_standard(np.zeros(3), 4 * np.eye(3))
    none = federate({"a": (np.ones((0, 3)), np.ones(0))}, LinearRegression(1.0), own, personal=True)
    for block in ("coefficients", "log_spread"):
        known, before = getattr(none.population.law, block), getattr(none.posterior, block)
        np.testing.assert_array_equal(known.mean, before.mean)
        np.testing.assert_allclose(known.covariance, before.covariance, rtol=1e-14)
