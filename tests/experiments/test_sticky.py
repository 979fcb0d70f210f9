"""Truncated variational inference of a sticky HDP-HMM."""

import jax
import numpy as np
import pytest
from scipy.optimize import check_grad
from sklearn.metrics import adjusted_rand_score

from experiments.klfusion.sticky import Sticks, fit_sticky
from posterity.errors import ConvergenceWarning
from posterity.families import NormalGamma, NormalWishart
from posterity.models import label
from tests.hidden_chains import MEANS, draw

pytestmark = pytest.mark.experiment
ONE = NormalWishart.from_inverse_scale(np.zeros(2), 0.1, np.eye(2), 4.0)


def test_states_are_found_and_the_bound_never_falls() -> None:
    x, z = draw(MEANS[:3], (150, 120), seed=0)
    fit = fit_sticky(x, ONE, states=6, stay=5.0, top=2.0, restarts=3, key=jax.random.key(0))
    steps = np.diff(fit.trace)
    assert (steps >= -1e-9 * abs(fit.trace[-1])).all() and len(steps) > 1
    assert fit.converged and fit.trace[-1] == max(fit.bounds)
    found = np.concatenate(label(fit.posterior, x))
    assert adjusted_rand_score(np.concatenate(z), found) > 0.95
    assert fit.popularity.sum() == pytest.approx(1.0)
    occupied = fit.posterior.occupancy(fit.prior)
    assert (np.diff(occupied) <= 1e-9).all() and occupied.sum() == pytest.approx(270)


def test_empty_states_hold_nothing_but_the_prior() -> None:
    x, _ = draw(MEANS[:2], (80,), seed=1)
    fit = fit_sticky(x, ONE, states=8, stay=5.0, restarts=2, key=jax.random.key(0))
    empty = fit.posterior.occupancy(fit.prior) < 1e-6
    assert empty.any()
    np.testing.assert_allclose(
        fit.posterior.emissions.members[empty].natural_parameters,
        fit.prior.emissions.members[empty].natural_parameters,
        atol=1e-3,
    )


@pytest.mark.parametrize("top", [0.5, 1.0, 3.0])
def test_the_slope_of_popularities_is_that_of_their_density(top: float) -> None:
    rng = np.random.default_rng(0)
    sticks, counts = Sticks(2.0, 1.5, top), rng.gamma(1.0, 5.0, size=(4, 4))
    at = rng.normal(size=3)
    value, slope = (lambda a, i=i: sticks._loss(a, counts)[i] for i in (0, 1))
    assert check_grad(value, slope, at) < 1e-4 * np.abs(slope(at)).max()


def test_diagonal_gaussians_fit_as_well() -> None:
    rng, wide = np.random.default_rng(0), np.ones(2)
    z = np.repeat([0, 1, 0, 1], 30)
    x = 4.0 * z[:, None] + rng.normal(size=(120, 2))
    diagonal = NormalGamma.from_standard(0 * wide, 0.1 * wide, wide, 2 * wide)
    fit = fit_sticky([x], diagonal, states=3, stay=5.0, restarts=2, key=jax.random.key(1))
    assert adjusted_rand_score(z, label(fit.posterior, [x])[0]) > 0.95


@pytest.mark.parametrize(
    "x",
    [np.ones((1, 2)), np.zeros((40, 2)), 1e5 + np.random.default_rng(0).normal(size=(40, 2))],
    ids=["one step", "constant", "far off"],
)
def test_degenerate_sites_still_have_a_posterior(x: np.ndarray) -> None:
    fit = fit_sticky([x], ONE, states=3, restarts=1, key=jax.random.key(0))
    assert bool(fit.posterior.is_proper())
    assert fit.posterior.occupancy(fit.prior).sum() == pytest.approx(len(x), rel=1e-6)
    assert (np.diff(fit.trace) >= -1e-7 * abs(fit.trace[-1])).all()


@pytest.mark.parametrize("rounds", [1, 2])
def test_what_has_not_converged_is_told(rounds: int) -> None:
    x, _ = draw(MEANS[:3], (60,), seed=0)
    with pytest.warns(ConvergenceWarning, match=f"in {rounds} rounds"):
        fit = fit_sticky(x, ONE, states=5, restarts=1, rounds=rounds, key=jax.random.key(0))
    assert not fit.converged and len(fit.trace) == rounds
