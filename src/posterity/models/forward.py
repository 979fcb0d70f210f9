"""The forward pass of a network of layers."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from posterity.arrays.tree import Setting, static
from posterity.arrays.typing import Float, PyTree, Real
from posterity.errors import StructureError
from posterity.families.layers import Conv, Layer, Layers
from posterity.runtime.lazy import jax, jnp
from posterity.runtime.programs import jitted


def outputs(layers: Any, z: Float[Real, " p"], x: Float[Real, "n ..."]) -> Float[Real, "n k"]:
    """Return the outputs of the network with flat weights ``z`` for inputs ``x``."""
    return apply(layers, layers.unravel(z), x)[-1]


@functools.partial(jitted, static_argnums=0, inline=True)
def apply(layers: Layers, arrays: PyTree, x: Float[Real, "n ..."]) -> list[Float[Real, "n ..."]]:
    """Return the outputs of each layer, from the arrays of its weights."""
    passed = []
    flow = jnp.asarray(x).reshape(len(x), *layers.image)
    for layer, own in zip(layers.layers, arrays, strict=True):
        flow = after(layer, preactivation(layer, own, flow))
        passed.append(flow)
    return passed


def shapes_of(function: Callable[[Any, Any], Any], parameters: PyTree, x: PyTree) -> Any:
    """Return the shapes of a function's value; its exceptions become a StructureError."""
    try:
        return jax.eval_shape(function, parameters, x)
    except Exception as error:  # whatever the user's function raises
        shapes = [leaf.shape for leaf in jax.tree.leaves(x)]
        raise StructureError(
            found=f"{type(error).__name__}: {error} for inputs of shapes {shapes}",
            expected="a function that gives one array for a batch of such inputs",
        ) from error


class Function(Setting):
    """A network given by a function of a pytree of parameters and of inputs."""

    function: Callable[[Any, Any], Any] = static()

    def __call__(self, parameters: PyTree, x: PyTree) -> Any:
        """Return the value of the function."""
        return self.function(parameters, x)


class Forward(Setting):
    """The network as a function of the arrays of its layers and of inputs."""

    layers: Layers = static()

    def __call__(self, arrays: PyTree, x: Float[Real, "n ..."]) -> Float[Real, "n k"]:
        """Return the outputs of the last layer."""
        return apply(self.layers, arrays, x)[-1]


class NoisyForward(Setting):
    """A network of means and noise variances, in the units of values.

    The last layer has ``k`` outputs for means and ``k`` for logarithms of noise variances relative
    to ``log_noise``, both in units of ``(y - shift) / scale`` (k,). Unless the noise is ``varying``
    it depends on biases alone, and the weights of its outputs have no effect.
    """

    layers: Layers = static()
    shift: Float[Real, " k"]
    scale: Float[Real, " k"]
    varying: bool = static()

    log_noise: ClassVar[float] = math.log(0.1)
    """Logarithm of the noise variance, relative to that of the values, if all weights are zero."""
    bias_factor: ClassVar[float] = 8.0
    """Factor of the bias of a log noise variance: noise may be a thousandth of the values'
    deviation, which the prior of biases would hardly allow without it."""
    furthest: ClassVar[float] = 15.0
    """Bound on the difference of a log noise variance from ``log_noise``, for all inputs."""

    @functools.partial(jitted, inline=True)
    def __call__(self, arrays: PyTree, x: Float[Real, "n ..."]) -> tuple[Any, Any]:
        """Return means and noise variances, both (n, k)."""
        *hidden, last = arrays
        k = len(self.shift)
        means = jnp.arange(2 * k) < k
        last = {**last, "bias": last["bias"] * jnp.where(means, 1.0, self.bias_factor)}
        if not self.varying:
            last = {**last, "kernel": last["kernel"] * means}
        out = apply(self.layers, [*hidden, last], x)[-1]
        shift, scale = (jnp.asarray(part, out.dtype) for part in (self.shift, self.scale))
        log = self.log_noise + self.furthest * jnp.tanh(out[:, k:] / self.furthest)
        return shift + scale * out[:, :k], scale**2 * jnp.exp(log)

    def in_units(self, arrays: PyTree) -> Any:
        """Return the arrays of a network with the means as its outputs, in the units of values."""
        *hidden, last = arrays
        k = len(self.shift)
        shift, scale = (jnp.asarray(part, last["bias"].dtype) for part in (self.shift, self.scale))
        means = {"bias": shift + scale * last["bias"][..., :k]}
        return [*hidden, means | {"kernel": scale * last["kernel"][..., :k]}]


def preactivation(
    layer: Layer, own: Mapping[str, Real], x: Float[Real, "n ..."]
) -> Float[Real, "n ..."]:
    """Return the argument of a layer's activation."""
    if isinstance(layer, Conv):
        out = jax.lax.conv_general_dilated(
            x,
            own["kernel"],
            window_strides=(layer.stride, layer.stride),
            padding=layer.padding.upper(),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
    else:
        out = x.reshape(len(x), layer.inputs) @ own["kernel"]
    return out + own["bias"] if layer.bias else out


def after(layer: Layer, x: Float[Real, "n ..."]) -> Float[Real, "n ..."]:
    """Apply the activation and the pooling of a layer."""
    out = getattr(jax.nn, layer.activation)(x)
    return layer.pooled(out) if isinstance(layer, Conv) else out
