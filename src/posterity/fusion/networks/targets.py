"""What the sites' networks do on some inputs: what a fused network is to do there."""

import functools
from collections.abc import Sequence

import numpy as np
import scipy.special

from posterity.arrays.typing import Float
from posterity.families.layers import Layers
from posterity.fusion.networks.forward import after, flow, preactivation
from posterity.fusion.networks.locals import Arrays, Local

Array = np.ndarray


class Targets:
    """The sites' networks on the inputs ``x`` (n, *image).

    Attributes:
        pre: for each site and layer, what its activation is of (n, *places, units).
        shares: of each site in each output.
        values: whether outputs are values, and not logits of classes.
    """

    def __init__(
        self, locals_: Sequence[Local], shares: Float[Array, "sites k"], x: Array, values: bool
    ):
        self.locals, self.shares, self.x, self.values = locals_, shares, x, values
        self.pre: list[list[Array]] = []
        for local in locals_:
            here, own = x, []
            for index, arrays in enumerate(local.mean):
                own.append(preactivation(local.layers, index, arrays, here))
                here = after(local.layers[index], own[-1])
            self.pre.append(own)

    def activations(self, index: int) -> list[Array]:
        """What comes out of a layer at each site."""
        return [
            after(local.layers[index], pre[index])
            for local, pre in zip(self.locals, self.pre, strict=True)
        ]

    @functools.cached_property
    def outputs(self) -> Float[Array, "n k"]:
        """Of the weighted concatenation: the last layer's activation is of all sites' sum."""
        layers = self.locals[0].layers
        pairs = zip(self.shares, self.pre, strict=True)
        return after(layers[len(layers) - 1], sum(a * pre[-1] for a, pre in pairs))  # pyright: ignore

    @functools.cached_property
    def doubt(self) -> Float[Array, "n k"]:
        """The variance that the last layers' weights leave to the outputs: a site's on average."""
        found = np.zeros_like(self.outputs)
        last = len(self.locals[0].layers) - 1
        inputs = self.activations(last - 1)
        for local, share, before in zip(self.locals, self.shares, inputs, strict=True):
            own = local.variance[-1]
            found += share * (before.reshape(len(before), -1) ** 2 @ own["kernel"])
            found += share * own.get("bias", 0.0)
        return found

    def divergence(self, layers: Layers, mean: Arrays) -> float:
        """Mean predictive KL in nats from the concatenation to the network of these weights."""
        mine = flow(layers, mean, self.x)[-1]
        if self.values:
            # Inputs of zeros leave a network without biases no doubt, and nothing to differ in.
            doubt = np.maximum(self.doubt, np.finfo(float).tiny)
            return float(((mine - self.outputs) ** 2 / doubt).sum(1).mean() / 2)
        return float(_kl_of_logits(self.outputs, mine).mean())


def _kl_of_logits(p: Float[Array, "n k"], q: Float[Array, "n k"]) -> Float[Array, " n"]:
    if p.shape[1] == 1:  # the logit between two classes
        p, q = (np.concatenate([np.zeros_like(one), one], 1) for one in (p, q))
    log_p = scipy.special.log_softmax(p, axis=1)
    log_q = scipy.special.log_softmax(q, axis=1)
    return np.maximum((np.exp(log_p) * (log_p - log_q)).sum(1), 0.0)
