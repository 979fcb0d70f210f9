"""Small versions of pursuit's experiments: targets, quadrature, peers, runs; no data folder."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pictures import shows_data

from experiments.harness import Place
from experiments.pursuit import densities, peers, two_modes
from experiments.pursuit.targets import (
    TARGETS,
    Array,
    Gaussians,
    Target,
    divergence,
    mixture,
    straight,
)
from posterity.families import DiagonalGaussian
from posterity.models import FunctionModel

pytestmark = pytest.mark.experiment


def scaled(target: Target, by: float) -> Target:
    """The same in other units: points are ``by`` times as far from zero."""

    def grid(side: int) -> tuple[Array, Array]:
        points, volumes = target.grid(side)
        return by * points, volumes + target.size * math.log(by)

    return dataclasses.replace(
        target,
        name=f"{target.name}, times {by:g}",
        log_density=lambda z: target.log_density(z / by),
        grid=grid,
        reach=by * target.reach,
        box=by * target.box,
    )


# --- targets and quadrature ------------------------------------------------------------------


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_normalised(name: str) -> None:
    """On their own grids, which die out before the edges: with so few points, to six digits."""
    target = TARGETS[name]()
    assert abs(target.log_normaliser({1: 1001, 2: 201}[target.size])) < 1e-6


def plain(size: int) -> Target:
    """One Gaussian with standard deviations 1, 2."""
    deviations = np.arange(1.0, size + 1)[None]
    density = mixture([1.0], np.zeros((1, size)), deviations)
    return Target("plain", size, density, straight(size, -14, 14), 2.0, 3.0)


@pytest.mark.parametrize("size", [1, 2])
def test_divergence_of_gaussians_is_the_closed_form(size: int) -> None:
    rng = np.random.default_rng(size)
    mean = rng.normal(size=size)
    factor = np.tril(0.3 * rng.normal(size=(size, size)), -1) + np.diag(rng.uniform(0.7, 1.5, size))
    target = plain(size)
    found = divergence(target, Gaussians.of([1.0], mean[None], factor[None]))
    first, second = factor @ factor.T, np.diag(np.arange(1.0, size + 1) ** 2)

    def closed(a: np.ndarray, b: np.ndarray) -> float:
        inverse = np.linalg.inv(b)
        volumes = np.log(np.linalg.det(b) / np.linalg.det(a))
        return float((np.trace(inverse @ a) + mean @ inverse @ mean - size + volumes) / 2)

    assert abs(found.reverse - closed(first, second)) < 1e-9
    assert abs(found.forward - closed(second, first)) < 1e-9
    assert found.change < 1e-9


def test_divergence_does_not_depend_on_units() -> None:
    target = TARGETS["skew normal"]()
    law = Gaussians.of([0.4, 0.6], [[-1.0], [1.5]], [[1.0], [2.0]])
    own, other = divergence(target, law), divergence(scaled(target, 50.0), peers.stretched(law, 50))
    assert abs(own.reverse - other.reverse) < 1e-9 and abs(own.forward - other.forward) < 1e-9


def test_laws_that_are_none_are_infinitely_far() -> None:
    target = plain(1)
    assert divergence(target, Gaussians.of([1.0], [[0.0]], [[np.inf]])).reverse == math.inf
    assert divergence(target, Gaussians.of([np.nan], [[0.0]], [[1.0]])).reverse == math.inf


# --- peers -----------------------------------------------------------------------------------


def test_plain_vi_finds_a_gaussian() -> None:
    target = plain(1)
    (found,) = peers.joint(target, components=1, evaluations=16_000, seeds=[0], batch=16)
    assert found.evaluations == 16_000
    # 1,000 steps of Adam whose step falls to nothing: hundredths of a standard deviation are left
    assert divergence(target, found.law).reverse < 1e-3


@pytest.mark.parametrize("rule", ["line", "corrective"])
def test_weights_of_peers_are_the_best(rule: str) -> None:
    """Two components that are the target's own: the weights are, too, up to 256 draws of each."""
    with jax.enable_x64(True):
        law = peers.Mixed(np.array([1.0, 0.0]), np.array([[-3.0], [3.0]]), np.ones((2, 1, 1)))
        density = mixture([0.3, 0.7], [[-3.0], [3.0]], [[1.0], [1.0]])
        noise = np.random.default_rng(0).normal(size=(2, peers.DRAWS, 1))
        weigh = jax.jit(lambda law, z: peers.weighed(density, law, z, jnp.asarray(1), rule))
        found = weigh(law, law.means[:, None] + noise)
    # far apart, log p - log q is log .3/w and log .7/(1 - w) at nearly all draws: no noise
    np.testing.assert_allclose(np.asarray(found), [0.3, 0.7], atol=0.01)


@pytest.mark.parametrize("name", [next(iter(peers.PEERS)), "boosting VI, fully corrective"])
def test_peers_keep_to_their_budget(name: str) -> None:
    target = TARGETS["four modes, 1-d"]()
    found = peers.boost(target, peers.PEERS[name], components=2, evaluations=1000, seeds=[0, 1])
    assert len(found) == 2 and not np.array_equal(found[0].law.means, found[1].law.means)
    for one in found:
        assert 0 < one.evaluations <= 1000
        assert abs(one.law.weights.sum() - 1) < 1e-9 and one.law.finite


# --- runs ------------------------------------------------------------------------------------


def test_densities_quick(tmp_path) -> None:
    found = densities.run(place=Place(tmp_path, tmp_path), quick=True)
    assert json.loads((tmp_path / "densities.json").read_text())["goals"] == found["goals"]
    assert shows_data(tmp_path / "densities.png")
    assert [goal["met"] for goal in found["goals"]] == [True, True]


def test_exact_posterior_and_scores() -> None:
    """A normal mean in the plane: the grid, the score of draws and their closed forms."""
    density = lambda z, data: -((data[0] - z) ** 2).sum(1) / 2 - math.log(2 * math.pi)
    rng = np.random.default_rng(0)
    x, other = rng.normal(1.0, 1.0, (8, 2)), rng.normal(1.0, 1.0, (50, 2))
    prior = DiagonalGaussian.from_standard(np.zeros(2), np.full(2, 4.0))
    nothing = lambda own: (own, np.zeros(len(own)))
    records = nothing(x), nothing(other)
    problem = two_modes.Problem(FunctionModel(density), prior, prior, *records)
    points, weights = two_modes.exact(problem)
    precision = 1 / 4 + len(x)
    np.testing.assert_allclose(weights @ points, x.sum(0) / precision, atol=1e-6)
    variance = 1 + 1 / precision
    away = ((other - x.sum(0) / precision) ** 2).sum(1) / variance
    closed = (-away / 2 - math.log(2 * math.pi * variance)).mean()
    assert abs(two_modes.score(problem, points, weights) - closed) < 1e-6


def test_two_modes_quick(tmp_path) -> None:
    found = two_modes.run(Place(tmp_path, tmp_path), quick=True)
    assert json.loads((tmp_path / "two_modes.json").read_text())["goals"] == found["goals"]
    assert shows_data(tmp_path / "two_modes.png")
    for goal in found["goals"]:
        assert np.isfinite(goal["measured"]["mean"]) and goal["met"] is None  # of one set: no error
