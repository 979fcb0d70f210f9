"""The forward pass of networks on some inputs, and what a fused network is to do there."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import scipy.special

from posterity.arrays.typing import Float
from posterity.families.layers import Conv, Layer, Layers
from posterity.fusion.networks.locals import Arrays, Local

Array = np.ndarray
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "sigmoid": scipy.special.expit,
    "silu": lambda x: x * scipy.special.expit(x),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "identity": lambda x: x,
}
"""Activations in NumPy and float64; :mod:`posterity.models.forward` has those for JAX."""


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


def flow(layers: Layers, arrays: Arrays, x: Float[Array, "n ..."]) -> tuple[list[Array], Array]:
    """What the activation of each layer is of (n, *places, units), and the last layer's output."""
    out, pre = np.asarray(x, float).reshape(len(x), *layers.image), []
    for layer, own in zip(layers.layers, arrays, strict=True):
        pre.append(preactivation(layer, own, out))
        out = after(layer, pre[-1])
    return pre, out


class Targets:
    """The sites' networks on the inputs ``x`` (n, *image).

    Attributes:
        pre: for each site and layer, what its activation is of (n, *places, units).
        shares: of each site in each output.
        values: whether outputs are values, and not logits of classes.
    """

    def __init__(
        self,
        locals_: Sequence[Local],
        shares: Float[Array, "sites k"],
        x: Float[Array, "n ..."],
        values: bool,
    ):
        self.locals, self.shares, self.x, self.values = locals_, shares, x, values
        self.pre = [flow(local.layers, local.mean, x)[0] for local in locals_]

    def activations(self, index: int) -> list[Array]:
        """What comes out of a layer at each site."""
        return [
            after(local.layers[index], pre[index])
            for local, pre in zip(self.locals, self.pre, strict=True)
        ]

    @functools.cached_property
    def outputs(self) -> Float[Array, "n k"]:
        """Of the weighted concatenation: the last layer's activation is of all sites' sum."""
        pairs = zip(self.shares, self.pre, strict=True)
        total: Array = sum(share * pre[-1] for share, pre in pairs)  # pyright: ignore
        return after(self.locals[0].layers[-1], total)

    @functools.cached_property
    def output_variance(self) -> Float[Array, "n k"]:
        """The variance that the last layers' weights leave to the outputs: a site's on average."""
        variance = np.zeros_like(self.outputs)
        inputs = self.activations(len(self.locals[0].layers) - 2)
        for local, share, before in zip(self.locals, self.shares, inputs, strict=True):
            own = local.variance[-1]
            variance += share * (before.reshape(len(before), -1) ** 2 @ own["kernel"])
            variance += share * own.get("bias", 0.0)
        return variance

    def divergence(self, layers: Layers, mean: Arrays) -> float:
        """Mean predictive KL in nats from the concatenation to the network of these weights."""
        mine = flow(layers, mean, self.x)[1]
        if self.values:
            # Inputs of zeros leave a network without biases no variance, and nothing to differ in.
            variance = np.maximum(self.output_variance, np.finfo(float).tiny)
            return float(((mine - self.outputs) ** 2 / variance).sum(1).mean() / 2)
        logits = [self.outputs, mine]
        if mine.shape[1] == 1:  # the logit between two classes
            logits = [np.concatenate([np.zeros_like(one), one], 1) for one in logits]
        log_p, log_q = (scipy.special.log_softmax(one, axis=1) for one in logits)
        return float(np.maximum((np.exp(log_p) * (log_p - log_q)).sum(1), 0.0).mean())


def output_shares(locals_: Sequence[Local]) -> Float[Array, "sites outputs"]:
    """Shares ``a_jk`` of the sites in each output, which sum to one.

    In proportion to ``P_jk = Σ_l (1/v_jlk - 1/s_jlk²)``, the precision that the weights into
    output ``k`` gained over their prior: a site that never saw a class, or saw little, learnt
    little about its logit. It takes no data and no counts. Where a site's prior is not known,
    the widest weight of all sites' last layers stands for it. Outputs of which nobody learnt
    anything weigh sites alike.
    """
    widest = max(float(local.variance[-1]["kernel"].max()) for local in locals_)
    rows = []
    for local in locals_:
        known, kernel = local.gained(), 1 / local.variance[-1]["kernel"] - 1 / widest
        kernel = kernel if known is None else known[-1]["kernel"]
        rows.append(np.maximum(kernel.reshape(-1, kernel.shape[-1]).sum(0), 0.0))
    gained = np.array(rows)
    gained = np.where((gained.max(0) > 0), gained / np.maximum(gained.max(0), 1e-300), 1.0)
    shares = np.array([local.weight for local in locals_])[:, None] * gained
    return shares / shares.sum(0)
