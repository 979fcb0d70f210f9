"""Scaling of columns of all sorts: what is rescaled, what is left alone, what keeps its digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity.distillation.scaling import Scaling
from posterity.errors import ParameterError, StructureError

RNG = np.random.default_rng(0)
N = 400


@pytest.mark.parametrize(
    "column",
    [RNG.normal(size=N), RNG.uniform(size=N), np.zeros(N), RNG.integers(0, 2, N),
     (RNG.uniform(size=N) < 0.01) * 1.0, RNG.poisson(3, N), 0.05 * (np.arange(N) == 7),
     9 * RNG.normal(size=N)],
    ids=["standard", "pixel", "never", "indicator", "rare", "counts", "dim pixel", "broad"],
)  # fmt: skip
def test_columns_of_order_one_are_left_alone(column: np.ndarray) -> None:
    x = np.stack([column, RNG.normal(size=N)], 1)
    scaling = Scaling.of_inputs(x)
    assert scaling.x_shift is None and scaling.x_scale is None
    np.testing.assert_array_equal(scaling.inputs(x), x.astype(np.float32))


@pytest.mark.parametrize(
    "column",
    [RNG.integers(1900, 2020, N), 1.7e9 + 10 * RNG.normal(size=N), 1e-9 * RNG.normal(size=N),
     1e-9 * (5 + RNG.normal(size=N)), 1e5 * RNG.exponential(size=N) ** 3,
     255.0 * RNG.uniform(size=N), 5000.0 * (np.arange(N) == 7), 1e150 * RNG.normal(size=N)],
    ids=["years", "seconds", "nanometres", "off nanometres", "incomes", "bytes", "rare", "huge"],
)  # fmt: skip
def test_columns_that_are_off_come_to_order_one(column: np.ndarray) -> None:
    found = Scaling.of_inputs(column[:, None]).inputs(column[:, None])
    assert abs(found.mean()) < 1e-5 and np.abs(found).max() <= 10.001
    assert np.abs(found).max() > 0.3
    # No digits are lost: the order and the spacing of the values is what it was.
    centred = column - column.mean()
    np.testing.assert_allclose(found[:, 0] / found.std(), centred / centred.std(), atol=1e-5)


def test_constant_columns() -> None:
    x = np.stack([np.full(N, value) for value in (1.0, 2000.0, 1.7e9)], 1)
    scaling = Scaling.of_inputs(x)
    assert (scaling.inputs(x) == 0).all()
    # A year later, and a day.
    later = scaling.inputs(x[:1] + np.array([1, 1, 86400]))
    np.testing.assert_allclose(later, [[1, 0.005, 86400 / 1.7e8]], rtol=1e-6)


def test_images_have_one_scale_a_channel() -> None:
    images = 255 * RNG.uniform(size=(N, 4, 4, 2)) * (np.arange(4) > 0)[:, None, None]
    images[..., 1] /= 255
    scaling = Scaling.of_inputs(images)
    assert scaling.x_scale is not None and scaling.x_scale.shape == (32,)
    assert len(np.unique(scaling.x_scale[::2])) == 1 and (scaling.x_scale[1::2] == 1).all()
    found = scaling.inputs(images)
    assert found.shape == images.shape
    flat = scaling.inputs(images.reshape(N, -1))
    np.testing.assert_array_equal(flat, found.reshape(N, -1))


def test_arrays_of_jax_are_scaled_where_they_are() -> None:
    x = RNG.integers(1900, 2020, (N, 2)).astype(np.float32)
    scaling = Scaling.of_inputs(x)
    with jax.enable_x64(False):
        found = jax.jit(scaling.inputs)(jnp.asarray(x))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, scaling.inputs(x), atol=1e-5)


def test_what_cannot_be_scaled() -> None:
    for x in (np.ones(3), np.ones((0, 2)), np.array([["a"]])):
        with pytest.raises(StructureError):
            Scaling.of_inputs(x)
    with pytest.raises(ParameterError, match="NaN"):
        Scaling.of_inputs(np.array([[np.nan]]))
    with pytest.raises(StructureError, match=r"x_shift of shape \(2,\)"):
        Scaling(np.zeros(2), np.ones(3))
    with pytest.raises(StructureError, match="both"):
        Scaling(x_shift=np.ones(2))
    for scale in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ParameterError, match="positive"):
            Scaling(np.zeros(1), np.full(1, scale))
