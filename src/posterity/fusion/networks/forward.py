"""The forward pass of many small networks on the host, in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from posterity.arrays.typing import Float
from posterity.families.layers import Conv, Layer, Layers

Array = np.ndarray


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "sigmoid": scipy.special.expit,
    "silu": lambda x: x * scipy.special.expit(x),
    "gelu": _gelu,
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "identity": lambda x: x,
}
"""As in :mod:`posterity.models.forward`, which is for JAX."""


def features(layer: Layer, x: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """What a layer multiplies by its kernel: (n, *places, positions x units before)."""
    return layer.patches(x) if isinstance(layer, Conv) else x.reshape(len(x), -1)


def preactivation(
    layer: Layer, own: dict[str, Array], x: Float[Array, "n ..."]
) -> Float[Array, "n ..."]:
    """What a layer's activation is of, from its own arrays and its inputs."""
    out = features(layer, x) @ own["kernel"].reshape(-1, layer.outputs)
    return out + own["bias"] if "bias" in own else out


def after(layer: Layer, x: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """The activation and the pooling of a layer."""
    out = FUNCTIONS[layer.activation](x)
    return layer.pooled(out) if isinstance(layer, Conv) else out


def flow(layers: Layers, arrays: Any, x: Float[Array, "n ..."]) -> list[Array]:
    """The inputs of each layer, in its image's shape, and what comes out of the last."""
    passed = [np.asarray(x, float).reshape(len(x), *layers.image)]
    for layer, own in zip(layers.layers, arrays, strict=True):
        passed.append(after(layer, preactivation(layer, own, passed[-1])))
    return passed
