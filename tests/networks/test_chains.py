"""Many small networks at once say what each says alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity.errors import StructureError, UsageError
from posterity.families.layers import Conv, Dense, Layers
from posterity.models.forward import apply
from posterity.networks.chains import TERMS, outputs, pays

CHAINS = 5
NETWORKS = [
    Layers.dense(2, 10, 2),
    Layers.dense(3, 4, 6, 1, activation="tanh"),
    Layers((Dense(2, 3, "silu", bias=False), Dense(3, 2, "identity"))),
    Layers.dense(TERMS + 3, TERMS + 5, 2),  # sums that are not written out
]


def drawn(layers, *, records, seed=0):
    rng = np.random.default_rng(seed)
    last = lambda place: rng.normal(size=(*place.shape, CHAINS)).astype(np.float32)
    arrays = [{name: last(place) for name, place in own.items()} for own in layers.places]
    own = rng.normal(size=(records, layers.inputs, CHAINS)).astype(np.float32)
    return arrays, own


def apart(layers, arrays, x):
    """The chains first, each network alone."""
    first = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), arrays)
    alone = lambda own, x: apply(layers, own, x)[-1]
    if x.ndim == 3:
        return jnp.moveaxis(jax.vmap(alone)(first, jnp.moveaxis(x, -1, 0)), 0, -1)
    return jnp.moveaxis(jax.vmap(alone, (0, None))(first, x), 0, -1)


@pytest.mark.parametrize(
    "records, shared", [(1, True), (7, False), (TERMS + 1, True), (TERMS + 1, False)]
)
@pytest.mark.parametrize("layers", NETWORKS, ids=lambda layers: layers.summary)
def test_outputs_and_gradients_are_those_of_each_network_alone(layers, records, shared):
    arrays, x = drawn(layers, records=records)
    x = x[..., 0] if shared else x
    with jax.default_matmul_precision("highest"):
        shape = (records, layers.outputs, CHAINS)
        slope = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        (ours, back), (theirs, forth) = pulled(layers, arrays, x, slope)
        assert ours.shape == shape
        close(ours, theirs)
        jax.tree.map(close, back, forth)


@functools.partial(jax.jit, static_argnums=0)
def pulled(layers, arrays, x, slope):
    """Outputs, and gradients of their product with a slope, both ways: in one program."""

    def one(forward):
        found, back = jax.vjp(functools.partial(forward, layers), arrays, x)
        return found, back(slope)

    return one(outputs), one(apart)


def close(ours, theirs):
    scale = float(np.abs(theirs).max())
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-5 * scale)


def test_gradients_of_gradients():
    layers = Layers.dense(2, 4, 2, activation="tanh")
    arrays, x = drawn(layers, records=3)
    square = lambda forward: lambda a: (forward(layers, a, x) ** 2).sum()

    def curved(forward):
        slope = jax.grad(square(forward))
        along = lambda a: sum(jnp.vdot(g, g) for g in jax.tree.leaves(slope(a)))
        return jax.grad(along)(arrays)

    jax.tree.map(close, *jax.jit(lambda: (curved(outputs), curved(apart)))())


def test_which_networks_it_is_for():
    assert pays(Layers.dense(2, 10, 2)) and pays(Layers.dense(2, 10, 10, 2))
    assert pays(Layers.dense(2, 10, 2), 1) and not pays(Layers.dense(2, 10, 10, 2), 16)
    assert not pays(Layers.dense(784, 400, 400, 10))
    assert not pays(Layers.dense(13, 50, 1))
    assert not pays(Layers((Conv((3, 3), 1, 1, pool=4), Dense(1, 2)), image=(6, 6, 1)))


def test_what_does_not_fit_is_said():
    layers = Layers.dense(2, 3, 2)
    arrays, x = drawn(layers, records=4)
    with pytest.raises(StructureError, match="records first"):
        outputs(layers, arrays, x[:, :1])
    first = jax.tree.map(lambda leaf: np.moveaxis(leaf, -1, 0), arrays)
    with pytest.raises(StructureError, match="kernel of shape"):
        outputs(layers, first, x)
    image = Layers((Conv((3, 3), 1, 1, pool=4), Dense(1, 2)), image=(6, 6, 1))
    with pytest.raises(UsageError, match="convolution"):
        outputs(image, [{}, {}], jnp.zeros((2, 36)))
