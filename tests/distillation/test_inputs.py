"""Where a student listens: each law of inputs is what it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from posterity.distillation import (
    Box,
    Draws,
    Generated,
    Images,
    Inputs,
    Mixup,
    Perturbed,
    Pool,
    Scaling,
)
from posterity.distillation.distill import set_up
from posterity.distillation.inputs import as_inputs, pixels, usual
from posterity.errors import ParameterError, PosterityError, StructureError, UsageError
from posterity.models import NeuralNetwork
from posterity.networks import Layers

KEY = jax.random.key(0)
N = 20_000


def sampled(inputs, n):
    """In one program, as a run draws them."""
    return np.asarray(jax.jit(lambda key: inputs.sample(n, key=key))(KEY))


X = np.array([[0.0, 1000.0], [1.0, 1010.0], [2.0, 1020.0]])


def test_perturbed_inputs_have_the_noise_that_was_asked_for() -> None:
    found = sampled(Perturbed(X, noise=[0.01, 1.0]), N).astype(float)
    nearest = np.abs(found[:, :1] - X[:, 0]).argmin(1)
    away = found - X[nearest]
    error = away.std(0) / N**0.5
    assert (np.abs(away.mean(0)) < 5 * error).all()
    np.testing.assert_allclose(away.std(0), [0.01, 1.0], rtol=5 / (2 * N) ** 0.5)
    assert scipy.stats.chisquare(np.bincount(nearest)).pvalue > 1e-3


def test_noise_is_a_tenth_of_each_column_by_default() -> None:
    np.testing.assert_allclose(np.asarray(Perturbed(X).noise), 0.1 * X.std(0), rtol=1e-6)


def test_a_share_of_the_inputs_lies_between_two_records() -> None:
    draw = jax.jit(lambda inputs: inputs.sample(400, key=KEY))
    found = np.asarray(draw(Perturbed(X, [0.0, 0.5], mixed=0.25, plain=0.5)))
    other = np.asarray(draw(Perturbed(X, [0.0, 0.5], plain=1.0)))
    assert (other[:, None] == np.float32(X)).all(2).any(1).all() and draw._cache_size() == 1
    kept = (found[:, None, 0] == np.float32(X[:, 0])).any(1)
    assert kept[100:].all() and kept[:100].mean() < 0.6  # some are mixed with themselves
    away = np.abs(found[:, 1] - 1000 - 10 * found[:, 0]) > 1e-2
    assert away[:200].mean() > 0.9 and not away[200:].any()
    with pytest.raises(UsageError, match="plain"):
        Perturbed(X, mixed=0.6, plain=0.6)


def test_a_box_is_filled_evenly() -> None:
    found = sampled(Box([-1.0, 10.0], [1.0, 30.0]), N)
    for column, low, width in ((found[:, 0], -1, 2), (found[:, 1], 10, 20)):
        assert scipy.stats.kstest(column, "uniform", (low, width)).pvalue > 1e-3


def test_mixtures_lie_between_two_records() -> None:
    ends = np.array([[0.0], [1.0]])
    found = sampled(Mixup(ends), N)[:, 0]
    inner = found[(found > 0) & (found < 1)]
    assert abs(len(inner) / N - 0.5) < 4 * 0.5 / N**0.5  # half of the pairs are of one record
    assert scipy.stats.kstest(inner, "uniform").pvalue > 1e-3


def test_a_pool_is_what_it_was() -> None:
    found = sampled(Pool(X), 100)
    assert {tuple(row) for row in found} == {tuple(row) for row in X}


@pytest.mark.parametrize(
    "inputs", [Perturbed(np.zeros((5, 4, 3, 1))), Mixup(np.ones((5, 4, 3, 1)))]
)
def test_images_keep_their_axes(inputs: Inputs) -> None:
    assert sampled(inputs, 7).shape == (7, 4, 3, 1)


@pytest.mark.parametrize("flat", [False, True])
def test_images_are_shuffled_mixed_and_smoothed_between_their_ends(flat: bool) -> None:
    """Of images of one column of light, of which shuffled ones have as much elsewhere."""
    x = np.zeros((5, 8, 8))
    x[:, :, 3] = 1
    images = Images(x.reshape(5, -1), (8, 8)) if flat else Images(x)
    found = sampled(images, 4000).reshape(-1, 8, 8)
    assert found.min() == 0 and found.max() == 1
    shuffled = (np.isclose(found, 0) | np.isclose(found, 1)).all((1, 2))
    moved = shuffled & (found != x[0]).any((1, 2))
    kept = np.isclose(found[moved].sum((1, 2)), 8, atol=0.1)  # others are of another contrast
    assert 0.1 < (moved.mean() * kept.mean()) < 0.25  # an eighth, and some of great contrast
    dark = found[:, :, [0, 7]].mean((1, 2))
    assert (dark[~shuffled] > 0.1).mean() > 0.15
    plain = sampled(Images(x, plain=1.0), 100)
    np.testing.assert_array_equal(plain, np.broadcast_to(x[0], plain.shape))
    with pytest.raises(StructureError, match="as images of shape"):
        Images(x.reshape(5, -1))
    for shape in ((-8, -8), (8.5, 8), "ab", (4, 4)):
        with pytest.raises(StructureError, match="as images of shape"):
            Images(x.reshape(5, -1), shape)  # pyright: ignore[reportArgumentType]
    for grids in ((), (0,), 4):
        with pytest.raises(UsageError, match="grids="):
            Images(x, grids=grids)  # pyright: ignore[reportArgumentType]


def test_columns_that_are_pixels_are_images() -> None:
    """Of smooth images, flattened; not of columns in any order, nor of a common factor."""
    rng = np.random.default_rng(0)
    coarse = rng.normal(size=(50, 4, 4, 3)).repeat(3, 1).repeat(3, 2)
    assert pixels(coarse[..., 0].reshape(50, -1)) == (12, 12, 1)
    assert pixels(coarse.reshape(50, -1)) == (12, 12, 3)
    assert pixels(rng.permuted(coarse[..., 0].reshape(50, -1), axis=1)) == ()
    factor = rng.normal(size=(50, 1)) + 0.1 * rng.normal(size=(50, 144))
    assert pixels(factor) == pixels(factor[:, :7]) == ()
    series = rng.normal(size=(50, 144)).cumsum(1)
    waves = np.sin(rng.uniform(0, 6, (50, 1)) + np.linspace(0, 20, 144))
    assert pixels(series) == pixels(waves) == ()
    assert isinstance(usual(coarse[..., 0].reshape(50, -1), ()), Images)
    assert isinstance(usual(X, ()), Perturbed)


def test_what_is_taken_for_inputs() -> None:
    own = as_inputs(lambda key, n: jnp.zeros((n, 2)))
    assert isinstance(own, Generated)
    assert sampled(own, 3).shape == (3, 2)
    assert isinstance(as_inputs(X), Pool)
    with pytest.raises(UsageError, match="inputs that are a str"):
        as_inputs("x.npz")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Perturbed(X, noise=-1.0), UsageError),
        (lambda: Perturbed(X, noise=[1.0, 1.0, 1.0]), PosterityError),
        (lambda: Perturbed(X * np.nan), ParameterError),
        (lambda: Perturbed(X[:, 0]), StructureError),
        (lambda: Pool(X[:0]), StructureError),
        (lambda: Pool([["a", "b"]]), StructureError),
        (lambda: Box([0.0], [0.0]), ParameterError),
        (lambda: Box(0.0, 1.0), ParameterError),
        (lambda: Box([0.0, 1.0], [2.0]), ParameterError),
    ],
)
def test_inputs_that_make_no_sense(make, error) -> None:
    with pytest.raises(error):
        make()


def test_random_numbers_that_are_not_of_the_key_are_refused() -> None:
    """Compiled, they would be the same at every step."""
    rng = np.random.default_rng(0)
    with pytest.raises(UsageError, match="same key"):
        as_inputs(lambda key, n: rng.normal(size=(n, 2)))


def test_noise_of_no_column() -> None:
    with pytest.raises(UsageError):
        Perturbed(X, noise=np.zeros(0))


@pytest.mark.slow
def test_columns_are_scaled_by_data_without_noise() -> None:
    """Rare and binary pixels, on which noise would hide that they hardly ever differ from zero."""
    rng = np.random.default_rng(0)
    rare = (rng.uniform(size=(4000, 20)) < 1e-3) * rng.uniform(size=(4000, 20))
    x = np.c_[rare, rng.uniform(size=(4000, 20)), rng.uniform(size=4000) < 0.5]
    laws = (Perturbed(x), Perturbed(x, 0.05), Mixup(x))
    for inputs in laws:
        assert Scaling.of_inputs(inputs.data()).x_shift is None
    teacher = Draws(NeuralNetwork.of_layers(Layers.dense(41, 2)), np.zeros((1, 84)), x=x)
    own = jax.jit(lambda key, n: Perturbed(x).sample(n, key=key), static_argnums=1)
    for inputs in (Perturbed(x), own):
        assert set_up(teacher, inputs=inputs).scaling.x_shift is None
    years = set_up(teacher, inputs=Box([1990.0] * 41, [2020.0] * 41)).scaling
    np.testing.assert_array_equal([years.x_shift[0], years.x_scale[0]], [2005, 15])
