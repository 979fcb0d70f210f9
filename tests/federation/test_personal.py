"""Partial pooling, federated: only what is shared travels, and each site knows its own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, gammaln, logsumexp

from posterity.errors import (
    LedgerError,
    ParameterError,
    StructureError,
    UsageError,
)
from posterity.families import Gaussian, Product
from posterity.federation import Gossip, federate, forget
from posterity.graphs import complete
from posterity.inference import LocalUpdate
from posterity.inference.cubature import Cubature
from posterity.models import LogisticRegression, PersonalModel, hierarchical

NAMES = tuple(f"site {k:02d}" for k in range(8))
PRIOR = Gaussian.from_standard([0.0], [[4.0]])
STEPS = 4
FEW = LocalUpdate(Cubature(32, most=32))  # of two dimensions; the default has more

pytestmark = pytest.mark.filterwarnings("ignore::posterity.errors.ConvergenceWarning")


def baselines():
    """Sites that differ in an intercept, and a last one without records."""
    rng = np.random.default_rng(3)
    sites = {}
    for name, chance in zip(NAMES, expit(0.5 + rng.normal(size=len(NAMES))), strict=True):
        y = rng.binomial(1, chance, 16).astype(float)
        sites[name] = (np.ones((16, 1)), y)
    return sites | {NAMES[-1]: (np.zeros((0, 1)), np.zeros(0))}


SITES = baselines()
SOME = {name: SITES[name] for name in (*NAMES[:2], NAMES[-1])}


@functools.cache
def fitted(**options):
    """A few passes."""
    return federate(SITES, LogisticRegression(), PRIOR, personal=True, steps=STEPS, **options)


@functools.cache
def site(name):
    """Its own parameters, of which every question takes draws."""
    return fitted().site(name)


@functools.cache
def small(steps=1):
    """Of three sites, for what holds however near the end a run is."""
    return federate(SOME, LogisticRegression(), PRIOR, personal=True, steps=steps)


@functools.cache
def small_site(name):
    return small().site(name)


def of(q):
    """Mean and deviation."""
    return float(q.mean[0]), float(np.sqrt(q.covariance[0, 0]))


# --- against the exact posterior -----------------------------------------------------------------


def exact():
    """Mean and deviation, on a grid: of the population, the log spread, and each site's own."""
    _, prior = hierarchical(LogisticRegression(), PRIOR, True)
    m, s, b = np.linspace(-4, 5, 46), np.linspace(-6, 3, 46), np.linspace(-9, 10, 477)
    logs = prior.coefficients.log_prob(m[:, None])[:, None] + prior.log_spread.log_prob(s[:, None])
    given = -(((b - m[:, None, None]) / np.exp(s)[:, None]) ** 2) / 2 - s[:, None]
    own = []
    for _, y in SITES.values():
        at = given + y.sum() * b - len(y) * np.logaddexp(0, b)
        evidence = logsumexp(at, axis=-1)
        logs = logs + evidence
        own.append(np.exp(at - evidence[..., None]))
    weights = np.exp(logs - logsumexp(logs))
    sites = [moments(b, np.tensordot(weights, conditional, 2)) for conditional in own]
    return moments(m, weights.sum(1)), moments(s, weights.sum(0)), sites


def moments(values, weights):
    mean = weights @ values
    return mean, np.sqrt(weights @ (values - mean) ** 2)


def test_it_is_the_posterior_of_the_full_hierarchical_model():
    population, spread, sites = exact()
    shared = fitted().posterior
    assert_alike(of(shared.coefficients), population, mean=0.1, deviation=0.2)
    assert_alike(of(shared.log_spread), spread, mean=0.1, deviation=0.35)
    for name, expected in zip(SITES, sites, strict=True):
        assert_alike(of(site(name)), expected, mean=0.1, deviation=0.1)


def assert_alike(found, expected, *, mean, deviation):
    assert abs(found[0] - expected[0]) < mean * expected[1]
    assert found[1] == pytest.approx(expected[1], rel=deviation)


# --- every way to federate -----------------------------------------------------------------------


def test_a_token_that_walks_comes_to_the_same():
    run = federate(
        SITES,
        LogisticRegression(),
        PRIOR,
        personal=True,
        steps=60,
        schedule=Gossip(complete(list(NAMES))),
    )
    assert run.posterior.kl(fitted().posterior) < 1e-2


@pytest.mark.slow
def test_a_site_can_be_forgotten():
    left = forget(fitted(), NAMES[0]).run
    others = {name: data for name, data in SITES.items() if name != NAMES[0]}
    never = federate(others, LogisticRegression(), PRIOR, personal=True)
    assert left.posterior.kl(never.posterior) < 1e-3
    with pytest.raises(LedgerError, match="forgotten"):
        left.site(NAMES[0])


# --- what a site knows ---------------------------------------------------------------------------


def test_a_site_predicts_for_itself_and_a_new_one_from_the_others():
    run, x = fitted(), np.ones((1, 1))
    rates = {name: np.mean(y) for name, (_, y) in SITES.items() if len(y)}
    chances = {name: float(site(name).predict(x)[0]) for name in rates}
    from_others = run.new_site()
    new = float(from_others.predict(x)[0])
    for name, rate in rates.items():
        assert min(rate, new) - 0.01 < chances[name] < max(rate, new) + 0.01
    assert new == pytest.approx(float(site(NAMES[-1]).predict(x)[0]))
    assert of(from_others)[1] > max(of(site(name))[1] for name in rates)


class Counts(PersonalModel):
    """A user's own: counts about a rate of each site's own."""

    def local_prior(self, z):
        return z["level"], jnp.exp(z["spread"])

    def local_log_likelihood(self, z, b, data):
        return data * b[0] - jnp.exp(b[0])


@pytest.mark.slow
def test_a_users_own_model_has_local_parameters():
    rng = np.random.default_rng(1)
    sites = {"few": rng.poisson(2, 9), "many": rng.poisson(9, 9)}
    normal = Gaussian.from_standard([0.0], [[1.0]])
    run = federate(sites, Counts(), Product(level=normal, spread=normal), update=FEW, steps=3)
    for name, counts in sites.items():
        assert run.site(name).mean[0] == pytest.approx(np.log(counts.mean()), abs=0.15)
        found = run.site(name).log_predictive(np.arange(40)) - gammaln(np.arange(40) + 1)
        assert np.exp(found).sum() == pytest.approx(1, abs=1e-3)
    with pytest.raises(UsageError, match="log_predictive"):
        run.site("few").predict(np.ones((1, 1)))


def test_columns_a_million_times_too_large_have_a_population():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(50), rng.normal(size=50)])
    y = (rng.uniform(size=50) < 0.5).astype(float)
    prior = Gaussian.from_standard(np.zeros(2), np.eye(2))
    sites = {"a": (x * 1e6, y), "b": (x[:30], y[:30])}
    run = federate(sites, LogisticRegression(), prior, personal=True, tolerance=0.01)
    assert run.status.converged and run.population.law.is_proper()


def test_optima_at_the_nodes_are_found_one_after_another():
    problem = small(0).federation.sites[NAMES[0]]
    improve = lambda q: FEW.estimator.evaluate(problem.model, q, problem.records).value
    with jax.enable_x64(True):
        program = jax.jit(improve).lower(small(0).posterior).as_text()
    batched = [line for line in program.splitlines() if "lapack" in line and "32x" in line]
    assert "lapack" in program and not batched


def test_what_has_no_local_parameters_is_refused():
    alone = federate(SITES, LogisticRegression(), PRIOR, steps=0)
    with pytest.raises(UsageError, match="personal=True"):
        alone.site(NAMES[0])
    with pytest.raises(UsageError, match="personal=True"):
        alone.new_site()
    with pytest.raises(LedgerError, match="nowhere"):
        small().site("nowhere")
    with pytest.raises(StructureError):
        small_site(NAMES[0]).predict(np.ones((2, 2)))
    with pytest.raises(ParameterError):
        small_site(NAMES[0]).predict(np.array([[np.nan]]))
    with pytest.raises(StructureError):
        small_site(NAMES[0]).log_predictive((np.ones((1, 1)), np.ones((1, 1))))
