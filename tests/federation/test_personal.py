"""Partial pooling, federated: only what is shared travels, and each site knows its own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, logsumexp

import posterity
from posterity.arrays.tree import structure
from posterity.errors import LedgerError, StructureError, UsageError
from posterity.families import Gaussian, Product
from posterity.federation import Gossip, Synchronous, simulate
from posterity.graphs import ring
from posterity.inference import LocalUpdate
from posterity.models import (
    LinearRegression,
    LogisticRegression,
    PersonalModel,
    hierarchical,
)

NAMES = [f"site {k}" for k in range(8)]
PRIOR = Gaussian.from_standard([0.0], [[4.0]])


def baselines():
    """Sites with an intercept of their own, and the last without records."""
    rng = np.random.default_rng(3)
    rates = expit(0.5 + rng.normal(size=len(NAMES)))
    sites = {n: (np.ones((12, 1)), rng.binomial(1, p, 12).astype(float)) for n, p in zip(NAMES, rates)}
    return sites | {"site 7": (np.zeros((0, 1)), np.zeros(0))}


SITES = baselines()


@functools.cache
def fitted():
    return posterity.federate(SITES, LogisticRegression(), PRIOR, personal=True, steps=STEPS)


STEPS = 6


def exact():
    """Mean and deviation of the population's, of the log spread and of each site's own, on a grid."""
    _, prior = hierarchical(LogisticRegression(), PRIOR, True)
    m, s = np.linspace(-4, 5, 121), np.linspace(-6, 3, 121)
    b = np.linspace(-9, 10, 1201)
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


def of(q):
    return float(q.mean[0]), float(np.sqrt(q.covariance[0, 0]))


def test_it_is_the_full_hierarchical_posterior():
    population, spread, sites = exact()
    run = fitted()
    mean, deviation = of(run.posterior.coefficients)
    assert abs(mean - population[0]) < 0.1 * population[1]
    assert deviation == pytest.approx(population[1], rel=0.12)
    mean, deviation = of(run.posterior.log_spread)
    assert abs(mean - spread[0]) < 0.15 * spread[1]
    assert deviation == pytest.approx(spread[1], rel=0.2)
    for name, (expected, width) in zip(SITES, sites, strict=True):
        mean, deviation = of(run.site(name))
        assert abs(mean - expected) < 0.15 * width
        assert deviation == pytest.approx(width, rel=0.15)
