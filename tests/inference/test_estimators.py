"""Natural gradients: unbiased, exact where claimed, and as noisy as they should be."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special

from experiments.estimators import BonnetPrice, Reinforce
from posterity.errors import UsageError
from posterity.families import (
    Beta,
    Categorical,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    NormalWishart,
    Product,
)
from posterity.inference.cubature import Cubature
from posterity.inference.estimators import (
    ClosedForm,
    Enumeration,
    Exact,
    PredictorQuadrature,
    Quadrature,
    Reparameterization,
    VariationalOnlineNewton,
)
from posterity.inference.update import best_estimator, check_estimator
from posterity.models import (
    BetaBernoulli,
    BetaExponential,
    DirichletCategorical,
    FunctionModel,
    GammaPoisson,
    GaussianMean,
    GaussianMeanCovariance,
    LogisticRegression,
    NeuralNetwork,
    PredictorModel,
    Records,
)

SAMPLES, KEYS = 12, 1500
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2))
Y = np.where(RNG.uniform(size=12) < scipy.special.expit(X @ [1.0, -1.0]), 1, 0)
WEIGHTS = RNG.uniform(0.5, 2.0, 12)
COUNTS = np.array([0, 3, 1])


class Poisson(PredictorModel):
    """Counts with log rate ``x · z``: under a Gaussian all is known in closed form."""

    def predictor_log_likelihood(self, f, y):
        return y * f - jnp.exp(f)


def interaction(z, x):
    """A block for each of two unknowns, which the record multiplies."""
    return x * z["rate"] * jnp.log(z["chance"])


def weigh(data, *weights):
    return Records(data, np.array(weights, float))


CASES = {
    # A thousand waiting times, of which only the number and the sum matter.
    "Beta": (BetaExponential(), Beta.from_standard(512.0, 534.0), weigh(np.array([0.49]), 1e3)),
    "Gamma": (GammaPoisson(), Gamma.from_standard(3.0, 2.0), weigh(COUNTS, 1, 0.5, 2)),
    "Dirichlet": (
        DirichletCategorical(3),
        Dirichlet.from_standard([3.0, 0.8, 2.0]),
        weigh(np.array([0, 2, 2]), 1, 1, 0.5),
    ),
    "Gaussian": (
        LogisticRegression(),
        Gaussian.from_standard([0.5, -1.0], [[0.6, 0.2], [0.2, 0.3]]),
        Records((X, Y), WEIGHTS),
    ),
    "DiagonalGaussian": (
        LogisticRegression(),
        DiagonalGaussian.from_standard([0.5, -1.0], [0.6, 0.3]),
        Records((X, Y), WEIGHTS),
    ),
    "Product": (
        FunctionModel(interaction),
        Product(rate=Gamma.from_standard(3.0, 2.0), chance=Beta.from_standard(4.0, 2.0)),
        weigh(np.array([0.5, 1.0]), 1, 2),
    ),
}


@eqx.filter_jit
def gradients(estimator, model, q, records, keys):
    one = lambda key: estimator(model, q, records, key=key).natural_parameters
    return jax.vmap(one)(keys)


def evaluate(estimator, model, q, records, keys=1):
    """Natural gradients for as many keys, traced as in a federation."""
    with jax.enable_x64(True):
        q, records = jax.tree.map(jax.device_put, (q, records))
        out = gradients(estimator, model, q, records, jax.random.split(jax.random.key(0), keys))
    assert out.dtype == np.float64
    return np.asarray(out)


@cache
def draws(estimator, name):
    return evaluate(estimator, *CASES[name], keys=KEYS)


@cache
def exact(name):
    """The gradient, by ways that this file (or test_models) checks against formulas."""
    model, q, records = CASES[name]
    if name == "Product":  # E = Σ w x · E[rate] E[log chance], bilinear in the mean parameters
        scale = records.weights @ records.data
        chance, rate = q.chance.mean_parameters, q.rate.mean_parameters
        factor = Product(
            chance=Beta(-scale * rate[1], np.zeros(())),
            rate=Gamma(np.zeros(()), -scale * chance[0]),
        )
        return factor.natural_parameters
    estimator = {"Beta": ClosedForm(), "Gamma": Exact(), "Dirichlet": Exact()}
    return evaluate(estimator.get(name, PredictorQuadrature()), model, q, records)[0]


UNBIASED = [
    *((Reinforce(SAMPLES), name) for name in ("Beta", "DiagonalGaussian")),
    (Reinforce(SAMPLES, baseline=0.0), "Beta"),
    (Reinforce(2), "Gamma"),
    *((Reparameterization(SAMPLES), name) for name in ("Beta", "Dirichlet", "Product")),
    (Reparameterization(SAMPLES), "DiagonalGaussian"),
    (BonnetPrice(4), "Gaussian"),
    (BonnetPrice(3), "DiagonalGaussian"),
    (VariationalOnlineNewton(4), "DiagonalGaussian"),
]


QUICK = {
    *(("Reinforce", "Beta"), ("Reparameterization", "DiagonalGaussian")),
    *(("BonnetPrice", "Gaussian"), ("VariationalOnlineNewton", "DiagonalGaussian")),
}
"""Those that compile in a second; draws of gamma variates and their derivatives do not."""


@pytest.mark.parametrize(
    "estimator, name",
    [
        pytest.param(
            *case, marks=() if (type(case[0]).__name__, case[1]) in QUICK else pytest.mark.slow
        )
        for case in UNBIASED
    ],
    ids=[f"{type(e).__name__}-{n}" for e, n in UNBIASED],
)
def test_unbiased(estimator, name):
    values = draws(estimator, name)
    error = values.std(0, ddof=1) / np.sqrt(KEYS)
    assert (error > 0).all()
    assert np.abs((values.mean(0) - exact(name)) / error).max() < 4


def log_deviation(values):
    """Log of the standard deviation, and the standard error of that."""
    centred = values - values.mean()
    variance = (centred**2).mean()
    kurtosis = (centred**4).mean() / variance**2
    return np.log(variance) / 2, np.sqrt((kurtosis - 1) / (4 * values.size))


@pytest.mark.slow
def test_noise_is_ordered():
    """Deviations of the first component at Beta(512, 534), and what a baseline is worth."""
    estimators = [
        Reparameterization(SAMPLES),
        Reinforce(SAMPLES),
        Reinforce(SAMPLES, baseline=0.0),
    ]
    logs, errors = np.transpose([log_deviation(draws(e, "Beta")[:, 0]) for e in estimators])
    gaps, gap_errors = np.diff(logs), np.hypot(errors[1:], errors[:-1])
    assert (gaps > 4 * gap_errors).all()
    assert gaps[-1] - 4 * gap_errors[-1] > np.log(10)  # the baseline is worth a factor of ten
    model, q, records = CASES["Beta"]
    for estimator in (ClosedForm(), Quadrature()):
        values = evaluate(estimator, model, q, records, keys=2)
        np.testing.assert_array_equal(values[0], values[1])


CONJUGATE = {
    "Beta": (BetaBernoulli(), weigh(np.array([0, 1, 1]), 1, 2, 0.5)),
    "Gamma": (GammaPoisson(), weigh(COUNTS, 1, 2, 0.5)),
    "Gaussian": (GaussianMean([[2.0]]), Records(X[:, :1], WEIGHTS)),
}
MEMBERS = {
    "Beta": [(2.0, 2.0), (0.3, 2.0), (500.0, 500.0), (0.5, 300.0)],
    "Gamma": [(0.3, 1.0), (2.0, 3.0), (500.0, 0.1)],
    "Gaussian": [([3.0], [[0.01]]), ([-1.0], [[30.0]])],
}
FAMILIES = {"Beta": Beta, "Gamma": Gamma, "Gaussian": Gaussian}


@pytest.mark.parametrize("name, standard", [(n, p) for n, ps in MEMBERS.items() for p in ps])
def test_quadrature_finds_conjugate_factors(name, standard):
    """The gradient is the factor wherever it is taken, also for a user's own function."""
    model, records = CONJUGATE[name]
    q = FAMILIES[name].from_standard(*standard)
    factor = model.factor(records)
    values = evaluate(Quadrature(), LIKELIHOODS[name], q, records)[0]
    # What F loses in digits, its inverse returns.
    condition = np.linalg.cond(q.fisher_information())
    scale = np.abs(factor.natural_parameters).max()
    atol = (1e-9 + 1e-14 * condition) * scale
    np.testing.assert_allclose(values, factor.natural_parameters, rtol=0, atol=atol)


def as_function(model):
    return FunctionModel(lambda z, x: model.log_likelihood(z, x))


LIKELIHOODS = {name: as_function(model) for name, (model, _) in CONJUGATE.items()}


@pytest.mark.parametrize("a, b", [(1.1, 2.0), (2.0, 2.0), (3.0, 0.3), (512.0, 534.0)])
def test_closed_form_agrees_with_quadrature(a, b):
    """Down to where the expectation of 1/z all but diverges."""
    model, _, records = CASES["Beta"]
    q = Beta.from_standard(a, b)
    closed, summed = (evaluate(e, model, q, records)[0] for e in (ClosedForm(), Quadrature()))
    condition = np.linalg.cond(q.fisher_information())
    np.testing.assert_allclose(summed, closed, rtol=1e-9 + 1e-14 * condition)


def test_closed_form_is_the_papers_gradient():
    """Against the derivatives of gong2021's expected loss, written out."""
    (a, b), count, total = (3.0, 5.0), 1e3, 490.0
    trigamma = lambda x: scipy.special.polygamma(1, x)
    shared = trigamma(a + b)
    by_a = count * (trigamma(a) - shared) - total * b / (a - 1) ** 2
    by_b = -count * shared + total / (a - 1)
    fisher = np.diag(trigamma(np.array([a, b]))) - shared
    expected = -np.linalg.solve(fisher, [by_a, by_b])
    model, _, records = CASES["Beta"]
    q = Beta.from_standard(a, b)
    ours = evaluate(ClosedForm(), model, q, records)[0]
    np.testing.assert_allclose(ours, expected, rtol=1e-12)
    # Other nodes are asked only of who sums over nodes.
    evaluators = ClosedForm(), Enumeration(), Quadrature(), Cubature()
    asked = [each.by_nodes(model, q, records) for each in evaluators]
    assert asked == [False, False, True, True]


def brute_force(function, mean, deviation):
    """``E[g(f)]`` for a normal f, by adaptive quadrature with its breaks near the origin."""
    density = lambda e: np.exp(-(e**2) / 2) / np.sqrt(2 * np.pi)
    breaks = np.clip((np.array([-20, -3, 0, 3, 20]) - mean) / deviation, -37, 37)
    points = np.unique(np.append(breaks, 0.0))
    integrand = lambda e: function(mean + deviation * e) * density(e)
    return scipy.integrate.quad(integrand, -38, 38, points=points, limit=500, epsabs=1e-13)[0]


# Deviations of the predictor up to some 0.4, 2, 6 and 20; all digits, then as documented.
SPREADS = [(0.03, 1e-11), (1.0, 1e-8), (8.0, 1e-5), (80.0, 1e-2)]


@pytest.mark.parametrize("spread, rtol", SPREADS)
@pytest.mark.parametrize("family", ["Gaussian", "DiagonalGaussian"])
def test_predictor_quadrature_against_brute_force(family, spread, rtol):
    mean, covariance = np.array([0.5, -1.0]), spread * np.array([[0.6, 0.2], [0.2, 0.3]])
    x, full = np.vstack([X, np.zeros(2)]), family == "Gaussian"
    records = Records((x, np.append(Y, 1)), np.append(WEIGHTS, 1.0))
    covariance = covariance if full else np.diag(np.diag(covariance))
    deviations = np.sqrt(np.einsum("ni,ij,nj->n", X, covariance, X))
    sigmoid = scipy.special.expit
    slope, bend = lambda f: -sigmoid(f), lambda f: sigmoid(f) * sigmoid(-f)
    slopes = Y + np.array(
        [brute_force(slope, *at) for at in zip(X @ mean, deviations, strict=True)]
    )
    bends = [brute_force(bend, *at) for at in zip(X @ mean, deviations, strict=True)]
    precision = (X.T * (WEIGHTS * bends)) @ X
    gradient = (WEIGHTS * slopes) @ X
    if full:
        q = Gaussian.from_standard(mean, covariance)
        expected = Gaussian(gradient + precision @ mean, precision)
    else:
        q, own = DiagonalGaussian.from_standard(mean, np.diag(covariance)), np.diag(precision)
        expected = DiagonalGaussian(gradient + own * mean, own)
    ours = evaluate(PredictorQuadrature(), LogisticRegression(), q, records)[0]
    expected = expected.natural_parameters
    np.testing.assert_allclose(ours, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


def test_predictor_quadrature_where_all_is_known():
    """``E[exp f] = exp(m + v/2)``, and so are its derivatives' expectations."""
    _, q, _ = CASES["Gaussian"]
    counts = np.arange(12)
    rates = np.exp(X @ q.mean + np.einsum("ni,ij,nj->n", X, q.covariance, X) / 2)
    precision = (X.T * (WEIGHTS * rates)) @ X
    expected = Gaussian((WEIGHTS * (counts - rates)) @ X + precision @ q.mean, precision)
    ours = evaluate(PredictorQuadrature(), Poisson(), q, Records((X, counts), WEIGHTS))[0]
    np.testing.assert_allclose(ours, expected.natural_parameters, rtol=1e-10)


ANY = FunctionModel(lambda z, x: x)
WISHART = NormalWishart.from_standard(np.zeros(2), 1.0, np.eye(2), 4.0)
WIDE = DiagonalGaussian.from_standard(np.zeros(513), np.ones(513))
NET = NeuralNetwork(lambda p, x: x @ p, np.zeros((5, 13)))
ONE = DiagonalGaussian.from_standard([0.0], [1.0])
BEST = [
    (BetaBernoulli(), CASES["Beta"][1], Exact),
    (DirichletCategorical(3), CASES["Dirichlet"][1], Exact),
    (GaussianMeanCovariance(), WISHART, Exact),
    (BetaExponential(), CASES["Beta"][1], ClosedForm),
    (LogisticRegression(), CASES["Gaussian"][1], PredictorQuadrature),
    (LogisticRegression(), CASES["DiagonalGaussian"][1], PredictorQuadrature),
    (ANY, CASES["Beta"][1], Quadrature),
    (ANY, CASES["Gamma"][1], Quadrature),
    (ANY, ONE, Quadrature),
    (ANY, CASES["Gaussian"][1], Cubature),
    (ANY, Product(a=CASES["Gaussian"][1], b=ONE), Cubature),
    (ANY, WIDE[...], VariationalOnlineNewton),
    (NET, NET.prior(), VariationalOnlineNewton),
    (ANY, CASES["Dirichlet"][1], Reparameterization),
    (ANY, WISHART, Reparameterization),
    (ANY, CASES["Product"][1], Reparameterization),
    (ANY, Categorical.from_standard([0.5, 0.5]), Enumeration),
    (ANY, Dirichlet.from_standard(np.ones(65)), Reparameterization),
]


@pytest.mark.parametrize(
    "model, q, kind", BEST, ids=[f"{type(m).__name__}-{type(q).__name__}" for m, q, _ in BEST]
)
def test_the_default_is_the_best_that_fits(model, q, kind):
    best = best_estimator(model, q)
    assert type(best) is kind
    check_estimator(best, model, q)


def test_labels_among_numbers_have_no_estimator():
    with pytest.raises(UsageError, match=r"no derivatives.*Sum the labels out"):
        best_estimator(ANY, Product(a=Categorical.from_standard([0.5, 0.5]), b=ONE))
