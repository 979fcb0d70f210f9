"""The forward pass, against SciPy's correlation and computations by hand; noise about it."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import numpy as np
import pytest
import scipy.signal

from posterity.families.layers import ACTIVATIONS
from posterity.models.forward import after, apply, outputs, preactivation
from posterity.networks import Conv, Dense, Layers
from posterity.networks.bound import noisy_outputs

RNG = np.random.default_rng(0)


def test_a_perceptron_by_hand() -> None:
    layers = Layers.dense(4, 3, 2, activation="tanh")
    z, x = RNG.normal(size=layers.size), RNG.normal(size=(5, 4))
    (first, second) = layers.unravel(z)
    hidden = np.tanh(x @ first["kernel"] + first["bias"])
    found = apply(layers, layers.unravel(z), x)
    np.testing.assert_allclose(found[0], hidden, rtol=1e-5, atol=1e-6)
    expected = hidden @ second["kernel"] + second["bias"]
    np.testing.assert_allclose(found[1], expected, rtol=1e-5, atol=1e-6)


def correlated(x: np.ndarray, kernel: np.ndarray, layer: Conv) -> np.ndarray:
    """By SciPy, channel by channel; its "same" is XLA's where strides are one and windows odd."""
    maps = [
        sum(
            scipy.signal.correlate2d(x[n, :, :, i], kernel[:, :, i, o], mode=layer.padding)
            for i in range(layer.inputs)
        )
        for n, o in itertools.product(range(len(x)), range(layer.outputs))
    ]
    found = np.reshape(maps, (len(x), layer.outputs, *np.shape(maps[0]))).transpose(0, 2, 3, 1)
    return found[:, :: layer.stride, :: layer.stride]


@functools.partial(jax.jit, static_argnums=0)
def convolved(layer: Conv, own: Any, x: Any) -> tuple[Any, Any]:
    """Without the bias, by XLA's convolution and by patches, in one program."""
    plain = dataclasses.replace(layer, bias=False)
    patches = layer.patches(x) @ own["kernel"].reshape(-1, layer.outputs)
    return preactivation(plain, own, x), patches


@pytest.mark.parametrize(
    "layer",
    [
        Conv((3, 2), 2, 3),
        Conv((3, 3), 2, 3, padding="same"),
        Conv((2, 3), 2, 3, stride=2),
    ],
)
def test_convolutions(layer: Conv) -> None:
    x = RNG.normal(size=(2, 7, 6, 2)).astype(np.float32)
    own = {"kernel": RNG.normal(size=layer.kernel), "bias": RNG.normal(size=3)}
    expected = correlated(x, own["kernel"], layer) + own["bias"]
    for found in convolved(layer, own, x):
        np.testing.assert_allclose(found + own["bias"], expected, rtol=1e-4, atol=1e-5)
    host = layer.patches(x.astype(float)) @ own["kernel"].reshape(-1, 3) + own["bias"]
    np.testing.assert_allclose(host, expected, rtol=1e-6)


@pytest.mark.parametrize("side, stride", [(2, 1), (3, 2), (2, 2), (4, 3)])
def test_patches_pad_as_convolutions_do(side: int, stride: int) -> None:
    layer = Conv((side, side), 1, 2, stride=stride, padding="same", bias=False)
    x = RNG.normal(size=(1, 7, 8, 1)).astype(np.float32)
    own = {"kernel": RNG.normal(size=layer.kernel).astype(np.float32)}
    one, other = convolved(layer, own, x)
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_pooling_drops_what_is_left_over(pooling: str) -> None:
    conv = Conv((1, 1), 1, 1, "identity", bias=False, pool=2, pooling=pooling)
    layers = Layers((conv,), (5, 4, 1))
    x = RNG.normal(size=(3, 5, 4, 1)).astype(np.float32)
    (found,) = apply(layers, layers.unravel(np.ones(1)), x)
    windows = x[:, :4, :, 0].reshape(3, 2, 2, 2, 2).transpose(0, 1, 3, 2, 4).reshape(3, 2, 2, 4)
    expected = windows.max(-1) if pooling == "max" else windows.mean(-1)
    # Means of numbers near one in float32 may cancel: eight roundings of one.
    np.testing.assert_allclose(np.asarray(found)[..., 0], expected, rtol=1e-6, atol=1e-6)


def test_every_activation_is_known_and_a_function_of_each_number() -> None:
    x = np.linspace(-2, 2, 5)
    for activation in ACTIVATIONS:
        assert after(Dense(5, 5, activation), x).shape == (5,)


def test_noise_has_the_moments_of_drawn_weights() -> None:
    """Of each record alone: mean and variance of the outputs, against draws of all weights."""
    conv = Conv((2, 2), 1, 3, "identity", pool=2, pooling="mean")
    layers = Layers((conv, Dense(3, 2, "identity")), (3, 3, 1))
    mean, deviation = RNG.normal(size=layers.size), np.full(layers.size, 0.3)
    x = RNG.normal(size=(2, 3, 3, 1)).astype(np.float32)
    draws, single = 4000, lambda z: layers.unravel(np.asarray(z, np.float32))
    keys = jax.random.split(jax.random.key(0), draws)
    one = lambda key: noisy_outputs(layers, single(mean), single(deviation), None, x, key=key)
    found = np.asarray(jax.jit(jax.vmap(one))(keys))
    z = (mean + deviation * RNG.normal(size=(draws, layers.size))).astype(np.float32)
    expected = np.asarray(jax.jit(jax.vmap(lambda z: outputs(layers, z, x)))(z))
    error = np.sqrt((found.var(0) + expected.var(0)) / draws)
    assert (np.abs(found.mean(0) - expected.mean(0)) < 4 * error).all()
    # The outputs are products of two Gaussians, of kurtosis up to nine.
    assert (np.abs(np.log(found.var(0) / expected.var(0))) < 4 * np.sqrt(2 * 8 / draws)).all()
