"""The forward pass under weights that are drawn, with little variance from draw to draw."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from posterity.arrays.typing import Real
from posterity.families.layers import Conv, Layers
from posterity.models.forward import after

TINY = 1e-20
"""Added to variances before the root is taken: an input of zeros has one of zero."""


def outputs(
    layers: Layers, mean: Any, deviation: Any, scales: Any, x: Float[Real, "n ..."], *, key: Any
) -> Float[Real, "n k"]:
    """Outputs under weights drawn for each record; ``mean`` and ``deviation`` by layer.

    Dense layers draw what comes out of the weights rather than these, which is the same for each
    record alone (kingma2015). A convolution shows its weights at many positions at once, where
    that would be another law: its weights are drawn once, with signs of each record's own
    (wen2018). ``scales`` are factors (n, units) of the hidden layers' preactivations, or None.
    """
    flow = x.reshape(len(x), *layers.image)
    for index, layer in enumerate(layers.layers):
        own = (mean[index], deviation[index], flow, jax.random.fold_in(key, index))
        out = _flipped(layer, *own) if isinstance(layer, Conv) else _drawn(layer, *own)
        scale = scales[index] if scales is not None and index < len(scales) else None
        if scale is not None:
            out = out * scale.reshape(len(x), *[1] * (out.ndim - 2), -1)
        flow = after(layer, out)
    return flow


def _drawn(layer: Any, mean: Any, deviation: Any, x: Any, key: Any) -> Any:
    x = x.reshape(len(x), layer.inputs)
    centre = x @ mean["kernel"]
    spread = (x * x) @ deviation["kernel"] ** 2
    if layer.bias:
        centre, spread = centre + mean["bias"], spread + deviation["bias"] ** 2
    return centre + jnp.sqrt(spread + TINY) * jax.random.normal(key, centre.shape, x.dtype)


def _flipped(layer: Conv, mean: Any, deviation: Any, x: Any, key: Any) -> Any:
    keys = jax.random.split(key, 3)
    seen = layer.patches(x)
    flat = lambda kernel: kernel.reshape(-1, layer.outputs)
    noise = flat(deviation["kernel"])
    noise = noise * jax.random.normal(keys[0], noise.shape, x.dtype)
    sign = lambda key, size: jax.random.rademacher(key, (len(x), 1, 1, size), x.dtype)
    out = seen @ flat(mean["kernel"])
    out += ((seen * sign(keys[1], seen.shape[-1])) @ noise) * sign(keys[2], layer.outputs)
    if layer.bias:
        shape = (len(x), 1, 1, layer.outputs)
        noise = jax.random.normal(jax.random.fold_in(key, 3), shape, x.dtype)
        out += mean["bias"] + deviation["bias"] * noise
    return out
