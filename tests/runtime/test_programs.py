"""Programs that JAX compiles: whose data they use, and when one serves for another function."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posterity
from posterity.families import DiagonalGaussian
from posterity.models import FunctionModel, Model
from posterity.pursuit.objectives import values
from posterity.runtime import programs
from posterity.runtime.tracing import traced

BASE = DiagonalGaussian.from_standard([0.0], [100.0])
SITES = {"a": np.zeros((4, 1))}
CENTRE = np.array([1.0])


class Holder:
    """An object with the data that functions below read."""

    centre = 1.0

    def density(self, z):
        return -50 * (z[0] - self.centre) ** 2


class Centred(Model):
    def log_likelihood(self, z, data):
        return -50 * (z[0] - HOLDER.centre) ** 2 + 0 * data[:, 0]


HOLDER = Holder()
DENSITIES = {
    "array": lambda z: -50 * (z[0] - CENTRE[0]) ** 2,
    "object": lambda z: -50 * (z[0] - HOLDER.centre) ** 2,
    "method": HOLDER.density,
    "partial": functools.partial(lambda z: -50 * (z[0] - HOLDER.centre) ** 2),
}
MODELS = {
    "function": FunctionModel(lambda z, x: -50 * (z[0] - CENTRE[0]) ** 2 + 0 * x[:, 0]),
    "own model": Centred(),
}


@pytest.fixture
def moved():
    def move():
        CENTRE.fill(2.0)
        HOLDER.centre = 2.0

    yield move
    CENTRE.fill(1.0)
    vars(HOLDER).clear()


@pytest.mark.parametrize("name", DENSITIES)
def test_pursue_uses_the_data_of_today(name, moved):
    found = []
    for _ in range(2):
        pursued = posterity.pursue(DENSITIES[name], BASE, components=1)
        found.append(pursued.posterior.components.mean[0, 0])
        moved()
    np.testing.assert_allclose(found, [1.0, 2.0], atol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_federate_uses_the_data_of_today(name, moved):
    found = []
    for _ in range(2):
        found.append(posterity.federate(SITES, MODELS[name], BASE).posterior.mean[0])
        moved()
    np.testing.assert_allclose(found, [1.0, 2.0], atol=0.01)


def test_programs_serve_all_functions_that_differ_in_their_data_alone():
    def pursued(data):
        before = values.programs
        target = lambda z: -((z[0] - data) ** 2).sum()
        mean = posterity.pursue(target, BASE, components=1).posterior.components.mean[0, 0]
        return values.programs - before, mean

    first, one = pursued(np.array([1.0, 2.0]))
    again, two = pursued(np.array([3.0, 4.0]))
    assert first > again == 0
    np.testing.assert_allclose([one, two], [1.5, 3.5], atol=0.01)


NEXT = np.nextafter(1 / 3, 1)
SAME = np.arange(3.0)


@jax.custom_jvp
def ruled(z):
    return 0.0 * z


ruled.defjvp(lambda points, tangents: (ruled(*points), CENTRE[0] * tangents[0]))
DIFFERENT = {
    "the last digit": (lambda z: z * np.float64(1 / 3), lambda z: z * NEXT),
    "operations": (jnp.sin, jnp.cos),
    "shapes": (lambda z: z + SAME.sum(), lambda z: z + SAME[:2].sum()),
    "what is compiled inside": tuple(jax.jit(lambda z, c=c: (z + SAME + c).sum()) for c in (0, 1)),
    "data that are compiled inside": tuple(
        jax.jit(lambda z, c=c: (z + c).sum()) for c in (SAME, SAME + 1)
    ),
    "JAX's arrays that are compiled inside": tuple(
        jax.jit(lambda z, c=c: (z + c).sum()) for c in (jnp.arange(3.0), jnp.arange(3.0) + 1)
    ),
    "data in a checkpoint": tuple(
        jax.checkpoint(jax.jit(lambda z, c=c: (z + c).sum())) for c in (SAME, SAME + 1)
    ),
    "own derivatives": (lambda z: ruled(z), lambda z: ruled(z)),
    "derivatives through JAX": tuple(
        jax.custom_gradient(lambda z, c=c: (z, lambda slope: c * slope)) for c in (1.0, 2.0)
    ),
    "callbacks": tuple(lambda z, c=c: jax.pure_callback(lambda x: x * c, z, z) for c in (1.0, 2.0)),
    "what is returned": (lambda z: {"a": z}, lambda z: (z,)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_functions_are_different(name):
    with jax.enable_x64(True):
        one, two = (traced(function, jnp.ones(()))[0] for function in DIFFERENT[name])
        again, _ = traced(DIFFERENT[name][0], jnp.ones(()))
    assert one != two
    assert one == again or "derivatives" in name or name == "callbacks"


@pytest.mark.slow
def test_data_have_the_digits_of_the_precision_they_are_used_in():
    data, subtract = np.array([1e9 + 0.25, 3.0]), jax.jit(jax.lax.sub)
    called = lambda z: subtract(z * np.ones(2), data)[0]
    program = jax.jit(called)
    assert program(1e9 + 1) == 0.0  # and is kept, with the data in single precision
    for double, expected in ((True, 0.75), (False, 0.0), (True, 0.75)):
        with jax.enable_x64(double):
            operations, constants = traced(called, 1.0)
            assert operations(constants, jnp.asarray(1e9 + 1)) == expected
    assert program(1e9 + 1) == 0.0


def test_data_in_single_precision_stay_as_they_are():
    data = np.array([0.1, 0.2], np.float32)
    called = lambda z: z + data
    program = jax.jit(called)
    program(1.0)
    with jax.enable_x64(True):
        _, (constant,) = traced(called, 1.0)
    assert constant.dtype == np.float32
    assert program._cache_size() == 1  # nothing of the caller's was released


HOLDING = {
    "compiled": jax.jit,
    "compiled by equinox": eqx.filter_jit,
    "branches": lambda density: lambda z: jax.lax.cond(z[0] > 0, density, density, z),
    "slopes": lambda density: lambda z: jax.value_and_grad(jax.jit(density))(z)[0],
    "in a checkpoint": lambda density: jax.checkpoint(jax.jit(density)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOLDING)
def test_functions_that_hold_data_stay_as_they_were(name):
    data = np.random.default_rng(0).normal(size=3)
    density = lambda z: -0.5 * jnp.sum((data - z[0]) ** 2)
    function = HOLDING[name](density)
    at = jnp.full(1, 0.1)
    before = np.asarray(function(at))
    posterity.pursue(function, BASE, components=1)
    for again in (function(at), jax.jit(function)(at), density(at), jax.jit(density)(at)):
        assert (np.asarray(again).dtype, np.asarray(again)) == (before.dtype, before)


def test_errors_of_callers_release_nothing():
    kept = jax.jit(lambda z: z + 1)
    kept(1.0)
    for wrong in (lambda z: np.sin(z), lambda z: z + "a"):
        with pytest.raises(TypeError):
            traced(wrong, jnp.ones(()))
    assert kept._cache_size() == 1


def test_what_is_returned_and_static_comes_through():
    both = programs.program(lambda x, label: {"sum": x.sum(), "label": label, "none": None})
    assert both(np.ones(3), "a") == {"sum": 3.0, "label": "a", "none": None}
