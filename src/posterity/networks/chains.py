"""The forward pass of many small networks of the same layers at once, one a parallel chain.

The chains are the last axis of every array of weights. A small network's matrices are too small
for a product of matrices to be worth the call; with the chains last, each product of an input and
a weight is one of long vectors, and a compiler makes few loops over them. Sums are written out
term by term, and so are those of the gradient: as sums over an axis they took three to ten times
as long. :func:`pays` says for which networks this is the faster way.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, PyTree

from posterity.arrays.typing import Real
from posterity.errors import StructureError, UsageError
from posterity.families.layers import Dense, Layers
from posterity.models.forward import FUNCTIONS

TERMS = 64
"""Sums of more terms are left to the compiler: written out, they take too long to compile."""
WEIGHTS = {1: 64, 64: 256}
"""From so many chains on, the weights of the largest network for which this was faster.

Time of a whole Langevin step on batches of 20, over that with the chains first, on two cores: of
2-10-2 (52 weights) 0.5 to 0.8 with 16 chains and 0.2 with 256; of 2-10-10-2 (162) 1.7 and 0.4; of
2-100-2 (502) 0.8 and 1.2; of 1-50-1 and 13-50-1, whose last layer has one output, 1.3 to 4.
"""


def pays(layers: Layers, chains: int = 256) -> bool:
    """Tell whether :func:`outputs` is faster than a batched product with the chains first.

    Convolutions are not served; layers of one output are faster as products of a matrix and a
    vector.

    >>> pays(Layers.dense(2, 10, 2)), pays(Layers.dense(784, 400, 10))
    (True, False)
    """
    most = max(weights for least, weights in WEIGHTS.items() if chains >= least)
    dense = all(isinstance(layer, Dense) for layer in layers.layers)
    return dense and layers.size <= most and min(layer.outputs for layer in layers.layers) > 1


def outputs(
    layers: Layers, arrays: PyTree, x: Float[Real, "n d"] | Float[Real, "n d c"]
) -> Float[Real, "n k c"]:
    """The outputs of the last layer, for each of ``c`` chains.

    Gradients are by reverse mode (:func:`jax.grad`, :func:`jax.vjp`, and these of each other).

    Args:
        layers: dense ones.
        arrays: of each layer ``kernel`` (inputs, outputs, c) and ``bias`` (outputs, c).
        x: inputs that all chains share, (n, d), or of each chain's own, (n, d, c).

    Raises:
        UsageError: for a convolution.
        StructureError: if ``x`` or a kernel does not fit the layers.

    >>> layers = Layers.dense(2, 3, 1)
    >>> arrays = [
    ...     {"bias": jnp.zeros((3, 5)), "kernel": jnp.ones((2, 3, 5))},
    ...     {"bias": jnp.zeros((1, 5)), "kernel": jnp.ones((3, 1, 5))},
    ... ]
    >>> outputs(layers, arrays, jnp.ones((4, 2)))[0, 0]
    Array([6., 6., 6., 6., 6.], dtype=float32)
    """
    flow = jnp.asarray(x)
    if flow.ndim not in (2, 3) or flow.shape[1] != layers.inputs:
        raise StructureError(
            found=f"inputs of shape {flow.shape}",
            expected=f"(n, {layers.inputs}), or (n, {layers.inputs}, chains)",
            fix="Put the records first, the chains last.",
        )
    for index, (layer, own) in enumerate(zip(layers.layers, arrays, strict=True)):
        if not isinstance(layer, Dense):
            raise UsageError(
                found=f"layer {index}, a convolution",
                expected="dense layers",
                fix="Put the chains first, and vmap posterity.models.forward.apply.",
            )
        kernel = own["kernel"]
        if kernel.ndim != 3 or kernel.shape[:2] != layer.kernel:
            raise StructureError(
                found=f"a kernel of shape {kernel.shape} in layer {index}",
                expected=f"{(*layer.kernel, 'chains')}",
                fix="Put the chains last.",
            )
        out = _product(kernel, flow)
        flow = FUNCTIONS[layer.activation](out + own["bias"] if layer.bias else out)
    return flow


@jax.custom_vjp
def _product(kernel: Any, x: Any) -> Any:
    """The product (n, o, c) of ``x`` (n, i) or (n, i, c) and a kernel (i, o, c)."""
    inputs = kernel.shape[0]
    if inputs > TERMS:
        return jnp.einsum("ni,ioc->noc" if x.ndim == 2 else "nic,ioc->noc", x, kernel)
    x = x[..., None] if x.ndim == 2 else x
    return functools.reduce(jnp.add, [x[:, i, None] * kernel[i] for i in range(inputs)])


def _backward(kept: tuple[Any, Any], slope: Any) -> tuple[Any, Any]:
    """The gradients by the kernel, a sum over records, and by the inputs, one over units.

    The latter is over chains, too, where these share the inputs.
    """
    kernel, x = kept
    if x.ndim == 2:
        by_input = jnp.einsum("noc,ioc->ni", slope, kernel)
    elif kernel.shape[1] > TERMS:
        by_input = jnp.einsum("noc,ioc->nic", slope, kernel)
    else:
        terms = [slope[:, None, o] * kernel[:, o] for o in range(kernel.shape[1])]
        by_input = functools.reduce(jnp.add, terms)
    if len(x) > TERMS:
        return jnp.einsum("ni,noc->ioc" if x.ndim == 2 else "nic,noc->ioc", x, slope), by_input
    x = x[..., None] if x.ndim == 2 else x
    terms = [x[n, :, None] * slope[n] for n in range(len(x))]
    return functools.reduce(jnp.add, terms), by_input


_product.defvjp(lambda kernel, x: (_product(kernel, x), (kernel, x)), _backward)
