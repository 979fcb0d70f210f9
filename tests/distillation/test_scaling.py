"""Scaling of columns of all sorts, and where a student was asked and where it was not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posterity
from posterity.distillation import Head, Student
from posterity.distillation.scaling import LEVEL, Domain, Scaling
from posterity.errors import ParameterError, StructureError
from posterity.networks import Layers

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


# --- the domain ----------------------------------------------------------------------------------


def test_new_inputs_of_the_same_law_are_within() -> None:
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(40, 40)) * 0.5 ** np.arange(40)[:, None]
    domain = Domain.of_inputs(rng.normal(size=(4000, 40)) @ mixing)
    outside = domain.outside(rng.normal(size=(4000, 40)) @ mixing).mean()
    assert abs(outside - (1 - LEVEL)) < 0.01
    # As long, but along a direction that hardly varied.
    assert domain.outside(3 * mixing[:1] / np.linalg.norm(mixing[0])).sum() == 0
    thin = np.linalg.svd(mixing)[2][-1:]
    assert domain.outside(3 * thin).all()


def test_boxes_constants_and_rare_columns() -> None:
    rng = np.random.default_rng(0)
    box = Domain.of_inputs(rng.uniform(-6, 6, (2000, 2)))
    np.testing.assert_array_equal(
        box.outside(np.array([[0, 7.5], [-6.5, 0], [0, 1e9]])), [True, False, True]
    )
    assert not box.outside(rng.uniform(-6, 6, (100, 2))).all()
    still = Domain.of_inputs(np.c_[np.ones(50), rng.normal(size=50)])
    np.testing.assert_array_equal(still.outside(np.array([[1.0, 0], [2.0, 0]])), [False, True])
    alike = Domain.of_inputs(np.ones((50, 30)))
    assert len(alike.directions)  # files hold no empty arrays
    np.testing.assert_array_equal(
        alike.outside(np.ones((2, 1)) * [[1.0], [2.0]] * np.ones(30)), [False, True]
    )
    rare = Domain.of_inputs((rng.uniform(size=(2000, 30)) < 0.002) * 1.0)
    assert rare.outside(np.ones((1, 30))).all() and not rare.outside(np.zeros((1, 30))).any()


def test_a_student_says_where_it_was_never_asked(tmp_path) -> None:
    rng = np.random.default_rng(0)
    layers, path = Layers.dense(2, 3), tmp_path / "student.safetensors"
    domain = Domain.of_inputs(rng.normal(size=(500, 2)))
    student = Student(layers, np.zeros(layers.size), Head("categorical", 3), domain=domain)
    posterity.save(student, path)
    x = np.array([[0.0, 0.0], [9.0, 9.0]])
    for own in (student, posterity.load(path)):
        np.testing.assert_array_equal(own.predict(x).extrapolates, [False, True])
    assert (
        Student(layers, np.zeros(layers.size), Head("categorical", 3)).predict(x).extrapolates
        is None
    )
