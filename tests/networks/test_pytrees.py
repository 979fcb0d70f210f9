"""Trees of flax, equinox and plain ones become networks that compute the same, and come back."""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from posterity.errors import PosterityError, StructureError, UsageError
from posterity.families import Network
from posterity.networks import Conv, Dense, Layers, from_pytree, to_pytree

IMAGES = Layers(
    (Conv((3, 3), 2, 3, pool=2), Dense(27, 5, "tanh"), Dense(5, 4, "identity")), (8, 8, 2)
)


class Linen(flax.linen.Module):
    """linen counts constructors, so that the last layer is called Dense_0."""

    @flax.linen.compact
    def __call__(self, x: Any) -> Any:
        x = jax.nn.relu(flax.linen.Conv(3, (3, 3), padding="VALID")(x))
        x = flax.linen.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
        return flax.linen.Dense(4)(jnp.tanh(flax.linen.Dense(5)(x)))


class Equinox(eqx.Module):
    """Channels first, and flattened so."""

    conv: eqx.nn.Conv2d
    pool: eqx.nn.MaxPool2d
    hidden: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, key: Any):
        keys = jax.random.split(key, 3)
        self.conv, self.pool = eqx.nn.Conv2d(2, 3, 3, key=keys[0]), eqx.nn.MaxPool2d(2, 2)
        self.hidden = eqx.nn.Linear(27, 5, key=keys[1])
        self.last = eqx.nn.Linear(5, 4, key=keys[2])

    def __call__(self, x: Any) -> Any:
        x = self.pool(jax.nn.relu(self.conv(x))).reshape(-1)
        return self.last(jnp.tanh(self.hidden(x)))


class Nnx(flax.nnx.Module):
    def __init__(self, rngs: Any):
        self.first = flax.nnx.Linear(4, 5, rngs=rngs)
        self.last = flax.nnx.Linear(5, 3, use_bias=False, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(jnp.tanh(self.first(x)))


Case = tuple[Any, Callable[[Any, Any], Any], dict[str, Any]]


@functools.cache
def linen() -> Case:
    tree = jax.jit(Linen().init)(jax.random.key(0), np.zeros((1, 8, 8, 2)))
    order = ["params/Conv_0", "params/Dense_1", "params/Dense_0"]  # numbers count constructors
    return tree, jax.jit(Linen().apply), {"layers": IMAGES, "order": order}


def equinox() -> Case:
    module = eqx.filter_jit(Equinox)(jax.random.key(0))
    return (
        module,
        eqx.filter_jit(lambda m, x: jax.vmap(m)(x)),
        {"layers": IMAGES, "order": ["conv", "hidden", "last"]},
    )


def equinox_mlp() -> Case:
    module = eqx.filter_jit(lambda key: eqx.nn.MLP(4, 3, 6, 2, key=key))(jax.random.key(0))
    return module, eqx.filter_jit(lambda m, x: jax.vmap(m)(x)), {"activation": "relu"}


def nnx() -> Case:
    graph, state = flax.nnx.split(Nnx(flax.nnx.Rngs(0)))
    return (
        state,
        jax.jit(lambda p, x: flax.nnx.merge(graph, p)(x)),
        {"activation": "tanh", "order": ["first", "last"]},
    )


def plain() -> Case:
    rng = np.random.default_rng(0)
    tree = [(rng.normal(size=(4, 3)), np.ones(3)), (rng.normal(size=(3, 2)), np.zeros(2))]
    apply = lambda p, x: np.maximum(x @ p[0][0] + p[0][1], 0) @ p[1][0] + p[1][1]
    return tree, apply, {"activation": "relu"}


@pytest.mark.parametrize("make", [linen, equinox, equinox_mlp, nnx, plain])
def test_there_and_back(make: Callable[[], Case]) -> None:
    tree, apply, options = make()
    positive = lambda leaf: np.asarray(leaf) ** 2 + np.asarray(0.1, leaf.dtype)
    variances = jax.tree.map(lambda leaf: positive(leaf) if hasattr(leaf, "dtype") else leaf, tree)
    network = from_pytree(tree, variances, apply=apply, **options)
    arrays = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
    assert network.layers.size == sum(leaf.size for leaf in arrays)
    back = to_pytree(network, tree, order=options.get("order"))
    for found, expected in zip(back, (tree, variances), strict=True):
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            if hasattr(other, "dtype"):
                assert one.dtype == other.dtype and one.shape == other.shape
                np.testing.assert_allclose(one, other, rtol=1e-5)


def test_of_another_width_comes_a_tree_of_that_width() -> None:
    tree, _, options = linen()
    network = from_pytree(tree, 0.1, **options)
    wider = network.relabel(np.array([0, 2, 3]), 4, axes=(0,))  # which leaves one unit out
    wider = wider + Network.prior(wider.layers, 10.0)
    mean, _ = to_pytree(wider, tree, order=options["order"])
    assert mean["params"]["Conv_0"]["kernel"].shape == (3, 3, 2, 4)
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 2)).astype(np.float32)

    class Wider(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x: Any) -> Any:
            x = jax.nn.relu(flax.linen.Conv(4, (3, 3), padding="VALID")(x))
            x = flax.linen.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
            return flax.linen.Dense(4)(jnp.tanh(flax.linen.Dense(5)(x)))

    apply = jax.jit(Wider().apply)
    again = from_pytree(mean, 0.1, layers=wider.layers, order=options["order"], apply=apply)
    np.testing.assert_allclose(again.mean, wider.mean, rtol=1e-5, atol=1e-7)
    assert apply(mean, x).shape == (2, 4)


def square(path: str) -> dict[str, Any]:
    return {f"{path}_{n}": {"kernel": np.eye(2), "bias": np.zeros(2)} for n in range(2)}


KEY = jax.random.key(0)
REFUSED: dict[str, tuple[Callable[[], Any], type[PosterityError], str]] = {
    "normalisation": (
        lambda: {**square("Dense"), "Norm_0": {"scale": np.ones(2), "bias": np.ones(2)}},
        StructureError, "Norm_0/",
    ),
    "recurrence": (lambda: eqx.nn.GRUCell(2, 2, key=KEY), StructureError, "weight_ih"),
    "embedding": (lambda: {"embed": {"embedding": np.ones((3, 2))}}, StructureError, "embedding"),
    "attention": (lambda: {"query": {"kernel": np.ones((2, 2, 2))}}, StructureError, "query"),
    "counters": (
        lambda: {**square("Dense"), "count": {"value": np.ones(1, int)}},
        StructureError, "count",
    ),
    "a bare array": (lambda: np.ones((2, 2)), StructureError, "the whole tree"),
    "tensors": (
        lambda: {"0.weight": SimpleNamespace(shape=(2, 2), dtype="torch.float32")},
        StructureError, r"torch\.float32 of shape .*dense and convolutional",
    ),
    "a strange bias": (
        lambda: {"a": {"kernel": np.ones((2, 3)), "bias": np.ones(4)}}, StructureError, "a/bias",
    ),
    "square and unnamed": (
        lambda: [(np.eye(2), np.zeros(2)), (np.eye(2), np.zeros(2))], UsageError, "'0'",
    ),
    "an order that names do not say": (
        lambda: {"in": {"kernel": np.eye(2)}, "out": {"kernel": np.eye(2)}},
        UsageError, "do not number them",
    ),
    "no chain": (
        lambda: {"a_0": {"kernel": np.ones((2, 3))}, "a_1": {"kernel": np.ones((4, 5))}},
        StructureError, "inputs of shape.* in layer 1",
    ),
    "convolutions that are not described": (
        lambda: {"c": {"kernel": np.ones((3, 3, 1, 2))}}, UsageError, "stride",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_network(case: str) -> None:
    make, kind, said = REFUSED[case]
    with pytest.raises(kind, match=said):
        from_pytree(make(), 0.1, activation="relu")


def test_what_is_not_said() -> None:
    with pytest.raises(UsageError, match="activation="):
        from_pytree(square("Dense"), 0.1)
    with pytest.raises(StructureError, match="variances of another structure"):
        from_pytree(square("Dense"), square("Other"), activation="relu")
    with pytest.raises(UsageError, match="order="):
        from_pytree(square("Dense"), 0.1, activation="relu", order=["Dense_0"])
    with pytest.raises(UsageError, match="do not number them"):
        head = square("head")["head_0"]
        from_pytree({**square("hidden"), "head_0": head}, 0.1, activation="relu")
    with pytest.raises(StructureError, match="2 as described"):
        from_pytree({"kernel": np.ones((2, 2))}, 0.1, layers=Layers.dense(2, 2, 2))


def test_order_and_layout_can_be_said() -> None:
    kernels = np.arange(4.0).reshape(2, 2), np.eye(2)
    tree = {"in": {"kernel": kernels[0]}, "out": {"kernel": kernels[1]}}
    found = from_pytree(tree, 0.1, activation="relu", order=["out", "in"], layout="first")
    first, last = found.layers.unravel(found.mean)
    np.testing.assert_allclose(first["kernel"], kernels[1].T)
    np.testing.assert_allclose(last["kernel"], kernels[0].T)


def test_weights_of_two_bytes_are_widened() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        tree = {"kernel": np.array([[0.1, -2.0]], dtype), "bias": np.array([0.3, 1e-3], dtype)}
        network = from_pytree(tree, 0.5)
        np.testing.assert_array_equal(network.mean, [*tree["bias"], *tree["kernel"][0]])
        mean, _ = to_pytree(network, tree)
        for name, leaf in tree.items():
            assert mean[name].dtype == dtype
            np.testing.assert_array_equal(mean[name], leaf)


def test_what_computes_something_else_is_refused() -> None:
    """A residual connection leaves no trace among the arrays; neither does an activation."""
    tree = square("Dense")
    dense = lambda p, x: x @ p["kernel"] + p["bias"]
    straight = lambda p, x: dense(p["Dense_1"], jax.nn.relu(dense(p["Dense_0"], x)))
    residual = lambda p, x: x + straight(p, x)
    from_pytree(tree, 0.1, activation="relu", apply=jax.jit(straight))
    softmax = lambda p, x: jax.nn.softmax(straight(p, x))
    for apply in (residual, softmax, lambda p, x: straight(p, x)[:, :1]):
        with pytest.raises(StructureError, match="outputs of `apply`"):
            from_pytree(tree, 0.1, activation="relu", apply=jax.jit(apply))
    with pytest.raises(StructureError, match="outputs of `apply`"):
        from_pytree(tree, 0.1, activation="tanh", apply=straight)
