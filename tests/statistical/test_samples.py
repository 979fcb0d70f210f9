"""Samples agree with the closed forms, within their Monte Carlo standard errors."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.laws.table import DEAR, NAMES, close, some, to_jax

COUNT = 20_000
STANDARD_ERRORS = 5.0


def typical(name: str, seed: int = 0) -> Any:
    """A member with no extreme parameter: the mean of several (any family's is a member)."""
    several = some(name, count=8, seed=seed)
    return sum(several[1:], start=several[0]) / len(several)


def within(values: np.ndarray, expected: Any, what: str) -> None:
    """Fail unless the mean over the first axis is as expected, by its own standard error."""
    error = values.mean(0) - expected
    standard_error = values.std(0, ddof=1) / len(values) ** 0.5
    worst = np.max(np.abs(error) / standard_error)
    assert worst <= STANDARD_ERRORS, f"{what} is {worst:.1f} standard errors off"


SLOW = ("NormalWishart", "Network", "Plate")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in DEAR.union(SLOW) else n for n in NAMES]
)
def test_samples_have_the_moments_and_the_entropy(name: str) -> None:
    """One compiled sampler a family, and all that must hold of what it draws."""
    p, q = typical(name), typical(name, seed=1)
    with jax.enable_x64(True):
        both = jax.jit(lambda p, key: (z := p.sample(key, (COUNT,)), p.log_prob(z)))
        z, log_prob = jax.tree.map(np.asarray, both(p, jax.random.key(7)))

    close(p.log_prob(z), log_prob, rtol=1e-9, atol=1e-9)
    statistics = p.sufficient_statistics(z)
    generic = (p.natural_parameters * statistics).sum(-1)
    close(generic + p.log_base_measure() - p.log_normalizer(), log_prob, rtol=1e-9, atol=1e-9)

    within(statistics, p.mean_parameters, "the mean of the sufficient statistics")
    within(-log_prob, p.entropy(), "the entropy")
    within(log_prob - q.log_prob(z), p.kl(q), "the divergence")
    centred = statistics - p.mean_parameters
    for row, expected in zip(centred.T, p.fisher_information(), strict=True):
        within(row[:, None] * centred, expected, "the covariance of the sufficient statistics")


@pytest.mark.parametrize("name", ["Gaussian", "Gamma"])
def test_members_of_a_batch_are_drawn_independently(name: str) -> None:
    """And so are draws by different keys; equal keys give equal draws."""
    (batch,) = some(name, batch=(2,))
    with jax.enable_x64(True):
        sample = jax.jit(lambda key: to_jax(batch).sample(key, (2000,)))
        first, again, other = (sample(jax.random.key(seed)) for seed in (0, 0, 1))
    draws = [jax.tree.map(np.asarray, z) for z in (first, again, other)]
    flat = [batch.sufficient_statistics(z) for z in draws]
    assert np.array_equal(flat[0], flat[1])
    for left, right in [(flat[0][:, 0], flat[0][:, 1]), (flat[0][:, 0], flat[2][:, 0])]:
        within((left - left.mean(0)) * (right - right.mean(0)), 0.0, "the covariance")
