"""All divergences as one matrix product, against the families' own closed forms."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posterity import DiagonalGaussian, Dirichlet, Gaussian, NormalWishart, kl_matrix
from posterity.families import ExponentialFamily
from posterity.fusion.geometry import Points, chunks
from tests.laws.table import NAMES, TABLE

DIRECTIONS = ["reverse", "forward"]


def pairwise(globals_: ExponentialFamily, locals_: ExponentialFamily, direction: str) -> np.ndarray:
    """Every pair by the family's closed form."""
    out = np.empty((locals_.batch_shape[0], globals_.batch_shape[0]))
    for l, g in np.ndindex(out.shape):
        p, q = (globals_[g], locals_[l]) if direction == "reverse" else (locals_[l], globals_[g])
        out[l, g] = p.kl(q)
    return out


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=2)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 4))
def test_one_product_is_every_pair(name: str, direction: str, seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    g, l = TABLE[name].draw(rng, (3,), size), TABLE[name].draw(rng, (5,), size)
    expected = pairwise(g, l, direction)
    np.testing.assert_allclose(kl_matrix(g, l, direction), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
def test_digits_survive_far_from_the_origin(direction: str, offset: float) -> None:
    rng = np.random.default_rng(0)
    mean = rng.normal(size=(6, 2))
    precision = rng.gamma(9.0, size=6) + 10
    here = NormalWishart.from_standard(mean, precision, np.stack([np.eye(2)] * 6), precision)
    there = here.translate(np.full(2, offset))
    near = kl_matrix(here, here, direction)
    # The scatter holds kappa times the squared offset to one part in 2^52, beside an inverse
    # scale of one: what is left of the latter sets the relative precision.
    lost = 16 * np.finfo(float).eps * precision.max() * max(offset, 1.0) ** 2
    np.testing.assert_allclose(
        kl_matrix(there, there, direction), near, rtol=lost, atol=lost * precision.max()
    )


def test_near_equal_pairs_keep_their_digits() -> None:
    alpha = np.random.default_rng(0).gamma(2.0, size=(1, 5000)) * 1e4
    q = Dirichlet.from_standard(alpha)
    p = Dirichlet.from_standard(alpha * (1 + 1e-7))
    g = Gaussian.from_standard(np.full((1, 3), 1e4), 1e-4 * np.eye(3)[None])
    h = g.translate(np.full(3, 1e-8))
    np.testing.assert_allclose(kl_matrix(q, p), q.kl(p)[:, None], rtol=1e-3, atol=1e-8)
    np.testing.assert_allclose(kl_matrix(g, h), g.kl(h)[:, None], rtol=1e-3)


def test_chunks_cover_everything_once_whatever_the_budget() -> None:
    for budget in (1, 100, 10**6):
        rows = np.concatenate([np.arange(1000)[part] for part in chunks(1000, 8, budget)])
        assert (rows == np.arange(1000)).all()


def test_budget_changes_memory_and_not_the_result() -> None:
    rng = np.random.default_rng(0)
    g = DiagonalGaussian.from_standard(rng.normal(size=(4, 50)), rng.gamma(2.0, size=(4, 50)))
    l = DiagonalGaussian.from_standard(rng.normal(size=(10000, 50)), np.ones((10000, 50)))
    whole, small = kl_matrix(g, l), None
    peaks = []
    for budget in (2**18, 2**20, 2**30):
        tracemalloc.start()
        small = kl_matrix(g, l, budget=budget)
        peaks.append(tracemalloc.get_traced_memory()[1] - small.nbytes)
        tracemalloc.stop()
        np.testing.assert_allclose(small, whole, rtol=1e-12)
    assert peaks[0] < 2**20 and peaks[1] < 2**22 < peaks[2]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["DiagonalGaussian", "Gamma", "Dirichlet", "NormalWishart"])
def test_the_average_minimises_the_summed_divergence(name: str, direction: str) -> None:
    rng = np.random.default_rng(1)
    points = Points.of(TABLE[name].draw(rng, (7,), 2), direction)  # type: ignore[arg-type]
    mean = points.coordinates.mean(0, keepdims=True)
    least = points.divergences(points.centroids(mean)).sum()
    gap = points.potential.sum() - 7 * points.centroids(mean).potential[0]
    np.testing.assert_allclose(least, gap, rtol=1e-9)
    for step in rng.normal(size=(20, *mean.shape)) * 0.02 * np.abs(mean):
        assert points.divergences(points.centroids(mean + step)).sum() >= least * (1 - 1e-12)
