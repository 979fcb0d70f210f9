"""The forward pass of many small networks on the host, in float64."""

from typing import Any

import numpy as np
import scipy.special

from posterity.arrays.typing import Float
from posterity.families.layers import Conv, Layer, Layers

Array = np.ndarray


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


FUNCTIONS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "sigmoid": scipy.special.expit,
    "silu": lambda x: x * scipy.special.expit(x),
    "gelu": _gelu,
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "identity": lambda x: x,
}
"""As in :mod:`posterity.models.forward`, which is for JAX."""


def features(layers: Layers, index: int, x: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """What a layer multiplies by its kernel: (n, *places, positions x units before)."""
    layer = layers[index]
    if not isinstance(layer, Conv):
        return x.reshape(len(x), -1)
    x = _padded(layer, x)
    windows = np.lib.stride_tricks.sliding_window_view(x, layer.window, axis=(1, 2))
    windows = windows[:, :: layer.stride, :: layer.stride]  # (n, h, w, channels, *window)
    flat = windows.transpose(0, 1, 2, 4, 5, 3)
    return flat.reshape(*flat.shape[:3], -1)


def preactivation(
    layers: Layers, index: int, own: dict[str, Array], x: Float[Array, "n ..."]
) -> Float[Array, "n ..."]:
    """What a layer's activation is of."""
    kernel = own["kernel"].reshape(-1, layers[index].outputs)
    found = features(layers, index, x) @ kernel
    return found + own["bias"] if "bias" in own else found


def after(layer: Layer, x: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """The activation and the pooling of a layer."""
    out = FUNCTIONS[layer.activation](x)
    if not isinstance(layer, Conv) or layer.pool == 1:
        return out
    side, (n, height, width, channels) = layer.pool, out.shape
    out = out[:, : height // side * side, : width // side * side]
    out = out.reshape(n, height // side, side, width // side, side, channels)
    return out.max((2, 4)) if layer.pooling == "max" else out.mean((2, 4))


def flow(layers: Layers, arrays: Any, x: Float[Array, "n ..."]) -> list[Array]:
    """The inputs of each layer, in its image's shape, and what comes out of the last."""
    found = [np.asarray(x, float).reshape(len(x), *layers.image)]
    for index, own in enumerate(arrays):
        found.append(after(layers[index], preactivation(layers, index, own, found[-1])))
    return found


def _padded(layer: Conv, x: Array) -> Array:
    if layer.padding == "valid":
        return x
    ends = []
    for size, window in zip(x.shape[1:3], layer.window, strict=True):
        lost = max((-(-size // layer.stride) - 1) * layer.stride + window - size, 0)
        ends.append((lost // 2, lost - lost // 2))
    return np.pad(x, ((0, 0), *ends, (0, 0)))
