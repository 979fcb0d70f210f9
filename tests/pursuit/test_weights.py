"""The weight step against exact densities and an optimiser of its own."""

import dataclasses

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from posterity.pursuit import weights as rules
from posterity.pursuit.weights import SampleCache

MEANS, N = np.array([-4.0, 0.0, 4.0, 40.0]), 4000
WANTED = np.array([0.2, 0.5, 0.3])


def cache(target: np.ndarray = WANTED) -> SampleCache:
    """Unit Gaussians of which the target mixes three; the fourth has no part in it."""
    noise = np.random.default_rng(0).normal(size=(4, N))
    z = MEANS[:, None] + noise
    densities = scipy.stats.norm.logpdf(z[None], MEANS[:, None, None])
    log_l = np.log(np.tensordot(target, np.exp(densities[:3]), 1) + 1e-300) + 7.0
    return SampleCache(z[..., None], log_l, densities)


def test_weights_anew_are_the_best_there_are() -> None:
    """Those of the target; no other weights, at these draws, have a greater bound."""
    held = cache()
    weights = rules.corrective(held, np.array([0.9, 0.05, 0.05, 0.0]))
    np.testing.assert_allclose(weights, [*WANTED, 0.0], atol=3 * np.sqrt(0.25 / N))
    found = held.elbo(weights).value
    assert found == pytest.approx(7.0, abs=1e-3)

    def least(logits: np.ndarray) -> float:
        own = np.append(np.exp(logits) / np.exp(logits).sum(), 0.0)
        return -held.elbo(own).value

    best = scipy.optimize.minimize(least, np.zeros(3), method="Nelder-Mead")
    assert found >= -best.fun - 1e-6


def test_a_line_ends_where_a_grid_says() -> None:
    held, before = cache(), np.array([0.5, 0.5, 0.0, 0.0])
    found = rules.best_share(held, before, 2)
    grid = np.linspace(0.001, 0.999, 999)
    bounds = [held.elbo(np.array([*(1 - a) * before[:2], a, 0.0])).value for a in grid]
    assert found[2] == pytest.approx(grid[np.argmax(bounds)], abs=0.02)
    assert found.sum() == pytest.approx(1)


def test_a_component_that_is_nowhere_gets_nothing() -> None:
    held = cache()
    far = dataclasses.replace(held, log_l=np.where(np.arange(4)[:, None] == 3, -1e4, held.log_l))
    np.testing.assert_array_equal(rules.best_share(far, np.append(WANTED, 0.0), 3), [*WANTED, 0.0])
    one = cache(np.array([0.0, 1.0, 0.0]))
    assert rules.best_share(one, np.array([1.0, 0.0, 0.0, 0.0]), 1)[1] > 0.999


def test_dead_components_go() -> None:
    np.testing.assert_array_equal(rules.pruned(np.array([0.5, 1e-9, 0.5])), [0.5, 0.0, 0.5])


def test_standard_errors_are_honest() -> None:
    """Of a mixture that is not the target, over other draws: the spread that is claimed."""
    values, claimed = [], []
    weights = np.array([0.3, 0.4, 0.3, 0.0])
    for seed in range(60):
        z = MEANS[:, None] + np.random.default_rng(seed + 1).normal(size=(4, 200))
        densities = scipy.stats.norm.logpdf(z[None], MEANS[:, None, None])
        log_l = np.log(np.tensordot(WANTED, np.exp(densities[:3]), 1) + 1e-300)
        found = SampleCache(z[..., None], log_l, densities).elbo(weights)
        values.append(found.value)
        claimed.append(found.standard_error)
    # A standard deviation of 60 values is known to about 9 %.
    assert np.std(values) == pytest.approx(np.mean(claimed), rel=0.3)


def test_importance_weights_know_the_divergence() -> None:
    held, wrong = cache(), np.array([0.98, 0.01, 0.01, 0.0])
    gap, share = held.importance(np.append(WANTED, 0.0))
    assert gap.value == pytest.approx(0.0, abs=1e-9)
    assert gap.standard_error == pytest.approx(0.0, abs=1e-9)
    assert share == pytest.approx(1.0)
    gap, share = held.importance(wrong)
    x = np.linspace(-15, 15, 20_001)
    q, p = (w @ scipy.stats.norm.pdf(x, MEANS[:3, None]) for w in (wrong[:3], WANTED))
    expected = (q * np.log(q / p)).sum() * (x[1] - x[0])
    assert abs(gap.value - expected) < 5 * gap.standard_error
    assert share < 0.1
