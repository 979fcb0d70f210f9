"""Networks from plain pytrees, equinox and flax, against computations by hand."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from posterity.models import NeuralNetwork, Records

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 2))
HIDDEN = 3


def plain(outputs: int, **options: Any) -> NeuralNetwork:
    """2-3-K with tanh; leaves in the order of their names: b0, b1, w0, w1."""
    shapes = {"w0": (2, HIDDEN), "b0": (HIDDEN,), "w1": (HIDDEN, outputs), "b1": (outputs,)}
    parameters = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    apply = lambda p, x: jnp.tanh(x @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"]
    return NeuralNetwork(apply, parameters, **options)


def equinox(outputs: int, **options: Any) -> NeuralNetwork:
    make = lambda key: eqx.nn.MLP(2, outputs, HIDDEN, 1, activation=jnp.tanh, key=key)
    module = eqx.filter_jit(make)(jax.random.key(0))
    return NeuralNetwork.from_equinox(module, **options)


class Linen(flax.linen.Module):
    outputs: int

    @flax.linen.compact
    def __call__(self, x: Any) -> Any:
        hidden = flax.linen.tanh(flax.linen.Dense(HIDDEN)(x))
        return flax.linen.Dense(self.outputs)(hidden)


def linen(outputs: int, **options: Any) -> NeuralNetwork:
    module = Linen(outputs)
    return NeuralNetwork(module.apply, jax.jit(module.init)(jax.random.key(0), X), **options)


def nnx(outputs: int, **options: Any) -> NeuralNetwork:
    rngs = flax.nnx.Rngs(0)
    first, last = flax.nnx.Linear(2, HIDDEN, rngs=rngs), flax.nnx.Linear(HIDDEN, outputs, rngs=rngs)
    graph, state = flax.nnx.split(flax.nnx.Sequential(first, jnp.tanh, last))
    return NeuralNetwork(lambda p, x: flax.nnx.merge(graph, p)(x), state, **options)


def by_hand(kind: Callable[..., Any], z: np.ndarray, outputs: int) -> np.ndarray:
    """Outputs of the 2-3-K network whose leaves are read off ``z`` in their documented order."""
    sizes = {"w0": 2 * HIDDEN, "b0": HIDDEN, "w1": HIDDEN * outputs, "b1": outputs}
    order = ("b0", "b1", "w0", "w1") if kind is plain else ("b0", "w0", "b1", "w1")
    order = ("w0", "b0", "w1", "b1") if kind is equinox else order
    parts, start = {}, 0
    for name in order:
        parts[name] = z[start : start + sizes[name]]
        start += sizes[name]
    shape = lambda name, rows: parts[name].reshape(
        (-1, rows) if kind is equinox else (rows, -1)  # equinox keeps weights as (out, in)
    )
    w0, w1 = shape("w0", 2), shape("w1", HIDDEN)
    w0, w1 = (w0.T, w1.T) if kind is equinox else (w0, w1)
    return np.tanh(X @ w0 + parts["b0"]) @ w1 + parts["b1"]


KINDS = pytest.mark.parametrize("kind", [plain, equinox, linen, nnx])


@KINDS
def test_bernoulli(kind: Any) -> None:
    net, y = kind(1, likelihood="bernoulli"), np.array([0, 1, 1, 0, 1, 0])
    z = RNG.normal(size=net.size)
    net.check((X, y))
    with jax.enable_x64(True):
        ours = np.asarray(jax.jit(net.log_likelihood)(z, (X, y)))
    logits = by_hand(kind, z, 1)[:, 0]
    expected = scipy.stats.bernoulli(scipy.special.expit(logits)).logpmf(y)
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


@KINDS
def test_categorical(kind: Any) -> None:
    net, y = kind(4), np.array([0, 3, 1, 2, 0, 3])
    z = RNG.normal(size=net.size)
    net.check((X, y))
    with jax.enable_x64(True):
        ours = np.asarray(jax.jit(net.log_likelihood)(z, (X, y)))
    expected = scipy.special.log_softmax(by_hand(kind, z, 4), axis=1)[np.arange(6), y]
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


@KINDS
def test_gaussian(kind: Any) -> None:
    net, y = kind(2, likelihood="gaussian", noise_variance=0.3), RNG.normal(size=(6, 2))
    z = RNG.normal(size=net.size)
    net.check((X, y))
    with jax.enable_x64(True):
        ours = np.asarray(jax.jit(net.log_likelihood)(z, (X, y)))
    expected = scipy.stats.norm(by_hand(kind, z, 2), np.sqrt(0.3)).logpdf(y).sum(1)
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_one_gaussian_output_may_be_a_column() -> None:
    net, y = plain(1, likelihood="gaussian"), RNG.normal(size=6)
    z = RNG.normal(size=net.size)
    net.check((X, y))
    expected = scipy.stats.norm(by_hand(plain, z, 1)[:, 0], 1.0).logpdf(y)
    found = jax.jit(net.log_likelihood)(z, (X, y))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_weights_are_in_the_order_of_the_leaves() -> None:
    net = plain(2)
    tree = net.unravel(np.arange(float(net.size)))
    np.testing.assert_array_equal(tree["b0"], [0, 1, 2])
    np.testing.assert_array_equal(tree["w1"], np.arange(11, 17).reshape(HIDDEN, 2))
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    np.testing.assert_array_equal(flat, np.arange(net.size))


def test_likelihood_compiles_and_differentiates() -> None:
    net, records = equinox(4), Records.of((X, np.array([0, 3, 1, 2, 0, 3])))
    with jax.enable_x64(True):
        z = RNG.normal(size=net.size)
        gradient = np.asarray(jax.jit(jax.grad(net.total))(z, records))
        direction, step, compiled = RNG.normal(size=net.size), 1e-5, jax.jit(net.total)
        total = lambda t: float(compiled(z + t * direction, records))
        slope = (total(step) - total(-step)) / (2 * step)
    assert gradient @ direction == pytest.approx(slope, rel=1e-8)


def test_priors() -> None:
    net = plain(4)
    centred, scattered = net.prior(variance=4.0), net.prior(variance=4.0, key=jax.random.key(1))
    for prior in (centred, scattered):
        assert prior.precision.dtype == prior.precision_mean.dtype == np.float64
        np.testing.assert_array_equal(prior.variance, np.full(net.size, 4.0))
    np.testing.assert_array_equal(centred.mean, np.zeros(net.size))
    with jax.enable_x64(True):  # sites whose settings differ draw the same prior
        again = net.prior(variance=4.0, key=jax.random.key(1))
    np.testing.assert_array_equal(again.mean, scattered.mean)
    assert np.unique(scattered.mean).size == net.size
    large = NeuralNetwork(lambda p, x: x @ p, np.zeros((2, 2000)))
    means = large.prior(variance=4.0, key=jax.random.key(2)).mean  # of deviation 0.2
    assert abs(means.mean()) < 4 * 0.2 / np.sqrt(4000)
    assert abs(means.std() - 0.2) < 4 * 0.2 / np.sqrt(2 * 4000)
