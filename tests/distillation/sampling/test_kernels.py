"""Kernels are their formulas; the chain's law is in tests/statistical/test_noise.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from posterity.distillation.sampling import noise
from posterity.distillation.sampling.kernels import SGHMC, SGLD
from posterity.distillation.sampling.schedules import Polynomial
from posterity.errors import StructureError, UsageError

KERNELS = [SGLD, SGHMC]
single = lambda values: np.asarray(values, np.float32)
POSITION = {"a": single(range(6)).reshape(2, 3), "b": single(1)}
GRADIENT = {"a": single(np.full((2, 3), 2)), "b": single(-4)}
SCALE = {"a": single(np.linspace(0.5, 3.0, 6)).reshape(2, 3), "b": single(2)}

# One program each, not one an operation: what is here holds of compiled steps.
init = jax.jit(lambda kernel, position, scale=None: kernel.init(position, scale))
step = jax.jit(lambda kernel, state, gradient, key: kernel.step(state, gradient, key=key))
drawn = jax.jit(noise.normal, static_argnames="kind")


def close(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7), ours, theirs)


@functools.partial(jax.jit, static_argnums=1)
def steps(kernel, count, scale=None):
    state, info = kernel.init(POSITION, scale), None
    for index in range(count):
        state, info = kernel.step(state, GRADIENT, key=jax.random.key(index))
    return state, info


def white(index, kind="binomial"):
    return jax.tree.map(np.asarray, drawn(jax.random.key(index), POSITION, kind=kind))


@pytest.mark.parametrize("kind", ["binomial", "normal"])
@pytest.mark.parametrize("scale", [None, SCALE])
def test_langevin_step_is_the_papers(kind, scale):
    state, _ = steps(SGLD(0.3, noise=kind, temperature=0.5), 1, scale=scale)
    s = jax.tree.map(np.ones_like, SCALE) if scale is None else scale
    move = lambda x, g, z, s: x + 0.3 * s / 2 * g + np.sqrt(0.3 * s * 0.5) * z
    close(state.position, jax.tree.map(move, POSITION, GRADIENT, white(0, kind), s))
    assert int(state.step) == 1 and state.step.dtype == jnp.int32


@pytest.mark.parametrize("scale", [None, SCALE])
def test_momentum_blends_langevin_steps(scale):
    state, _ = steps(SGHMC(0.3, friction=0.25), 2, scale=scale)
    s = jax.tree.map(np.ones_like, SCALE) if scale is None else scale
    lang = lambda g, z, s: 0.3 * s / 2 * g + np.sqrt(0.3 * s) * z
    first = jax.tree.map(lambda *own: 0.25 * lang(*own), GRADIENT, white(0), s)
    second = jax.tree.map(
        lambda v, *own: 0.75 * v + 0.25 * lang(*own), first, GRADIENT, white(1), s
    )
    close(state.momentum, second)
    close(state.position, jax.tree.map(lambda *own: sum(own), POSITION, first, second))


def test_full_friction_is_langevin_exactly():
    kernels = SGHMC(0.3, friction=1), SGLD(0.3)
    ours, theirs = ((init(kernel, POSITION, SCALE), None) for kernel in kernels)
    for key in jax.random.split(jax.random.key(0), 3):
        ours, theirs = (
            step(kernel, state, GRADIENT, key)
            for kernel, (state, _) in zip(kernels, (ours, theirs), strict=True)
        )
    jax.tree.map(np.testing.assert_array_equal, ours[0].position, theirs[0].position)
    close(ours[1], theirs[1])


@pytest.mark.parametrize("make", KERNELS)
def test_no_temperature_is_no_noise(make):
    ours, theirs = (
        steps(make(0.3, noise=kind, temperature=0), 2)[0] for kind in ("binomial", "normal")
    )
    close(ours.position, theirs.position)


def test_scans_jits_and_vmaps_to_the_same():
    kernel = SGHMC(Polynomial(0.1, 5, 0.5))
    keys = jax.random.split(jax.random.key(0), 4)

    def run(position, keys):
        slope = lambda own: jax.tree.map(jnp.negative, own)
        each = lambda state, key: kernel.step(state, slope(state.position), key=key)
        return jax.lax.scan(each, kernel.init(position), keys)

    state, info = jax.jit(run)(POSITION, keys)
    np.testing.assert_allclose(info.size, 0.1 * (5 + np.arange(4.0)) ** -0.5, rtol=1e-6)
    loop = init(kernel, POSITION)
    for key in keys:
        slope = jax.tree.map(lambda leaf: -np.asarray(leaf), loop.position)
        loop, _ = step(kernel, loop, slope, key)
    close(state.position, loop.position)
    two = jax.tree.map(lambda leaf: np.stack([leaf, leaf + 1]), POSITION)
    both, _ = jax.jit(jax.vmap(run, (0, None)))(two, keys)
    close(jax.tree.map(lambda leaf: np.asarray(leaf)[0], both.position), state.position)


def test_a_schedule_follows_the_step():
    kernel = SGLD(optax.exponential_decay(1.0, 2, 0.5, staircase=True))
    state, sizes = init(kernel, single([0])), []
    for index in range(4):
        state, info = step(kernel, state, single([0]), jax.random.key(index + 1))
        sizes.append(float(info.size))
    assert sizes == [1.0, 1.0, 0.5, 0.5]


def test_double_precision_stays_double():
    with jax.enable_x64(True):
        kernel, start = SGHMC(0.1), np.zeros(3)
        begun = init(kernel, start, 2.0 + start)
        state, _ = step(kernel, begun, start + 1, jax.random.key(0))
        assert state.position.dtype == jnp.float64


@pytest.mark.parametrize("make", KERNELS)
def test_a_kernel_without_a_size_can_be_made_but_not_run(make):
    kernel = make()
    assert kernel == make(None) and hash(kernel) == hash(make(None))
    with pytest.raises(UsageError, match="still to be found"):
        step(kernel, init(kernel, POSITION), GRADIENT, jax.random.key(0))


@pytest.mark.parametrize(("make", "options"), [
    (SGLD, {"step_size": -1.0}), (SGLD, {"noise": "none"}), (SGLD, {"temperature": -1.0}),
    (SGHMC, {"friction": 0.0}), (SGHMC, {"friction": 1.5}),
])  # fmt: skip
def test_kernels_that_make_no_sense_are_refused(make, options):
    with pytest.raises(UsageError):
        make(**{"step_size": 0.1, **options})


def test_trees_that_do_not_fit_are_refused():
    kernel, key, ones = SGLD(0.1), jax.random.key(0), single(np.ones((2, 3)))
    with pytest.raises(StructureError, match="a gradient of shapes"):
        step(kernel, init(kernel, POSITION), {"a": ones}, key)
    with pytest.raises(StructureError, match=r"shapes \(3,\)"):
        step(kernel, init(kernel, POSITION), single(np.ones(3)), key)
    for deeper in ({"a": ones}, [ones, ones], None, single(1)):
        with pytest.raises(StructureError, match="a gradient of shapes"):
            step(kernel, init(kernel, ones), deeper, key)
    for shape in [(3, 2), (2, 2, 3), (4,)]:
        with pytest.raises(StructureError, match="a scale of shapes"):
            init(kernel, ones, single(np.ones(shape)))


@pytest.mark.parametrize("shape", [(), (2, 1)])
def test_a_scale_may_stand_for_several_entries(shape):
    kernel, key = SGHMC(0.1), jax.random.key(0)
    start = single(np.ones((2, 3)))
    scales = [single(np.full(own, 0.5)) for own in (shape, (2, 3))]
    short, full = (step(kernel, init(kernel, start, scale), start, key)[0] for scale in scales)
    close(short.position, full.position)
