"""Many small networks at once say what each says alone."""

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
    last = lambda place: jnp.asarray(rng.normal(size=(*place.shape, CHAINS)), jnp.float32)
    arrays = [{name: last(place) for name, place in own.items()} for own in layers.places]
    own = jnp.asarray(rng.normal(size=(records, layers.inputs, CHAINS)), jnp.float32)
    return arrays, own


def apart(layers, arrays, x):
    """The chains first, each network alone."""
    first = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), arrays)
    alone = lambda own, x: apply(layers, own, x)[-1]
    if x.ndim == 3:
        return jnp.moveaxis(jax.vmap(alone)(first, jnp.moveaxis(x, -1, 0)), 0, -1)
    return jnp.moveaxis(jax.vmap(alone, (0, None))(first, x), 0, -1)


@pytest.mark.parametrize("records", [1, 7, TERMS + 1])
@pytest.mark.parametrize("layers", NETWORKS, ids=lambda layers: layers.summary)
@pytest.mark.parametrize("shared", [True, False])
def test_outputs_and_gradients_are_those_of_each_network_alone(layers, records, shared):
    arrays, x = drawn(layers, records=records)
    x = x[..., 0] if shared else x
    with jax.default_matmul_precision("highest"):
        shape = (records, layers.outputs, CHAINS)
        slope = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        ours, back = pulled(lambda a, x: outputs(layers, a, x), arrays, x, slope)
        theirs, forth = pulled(lambda a, x: apart(layers, a, x), arrays, x, slope)
        assert ours.shape == shape
        close(ours, theirs)
        jax.tree.map(close, back, forth)


def pulled(forward, arrays, x, slope):
    """Outputs, and gradients of their product with a slope: in one program."""

    @jax.jit
    def both(arrays, x):
        found, back = jax.vjp(forward, arrays, x)
        return found, back(jnp.asarray(slope))

    return both(arrays, x)


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
        return jax.jit(jax.grad(along))(arrays)

    jax.tree.map(close, curved(outputs), curved(apart))


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
    first = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), arrays)
    with pytest.raises(StructureError, match="kernel of shape"):
        outputs(layers, first, x)
    image = Layers((Conv((3, 3), 1, 1, pool=4), Dense(1, 2)), image=(6, 6, 1))
    with pytest.raises(UsageError, match="convolution"):
        outputs(image, [{}, {}], jnp.zeros((2, 36)))
