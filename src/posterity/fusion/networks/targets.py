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
        self,
        locals_: Sequence[Local],
        shares: Float[Array, "sites k"],
        x: Float[Array, "n ..."],
        values: bool,
    ):
        self.locals, self.shares, self.x, self.values = locals_, shares, x, values
        self.pre: list[list[Array]] = []
        for local in locals_:
            here, own = x, []
            for layer, arrays in zip(local.layers.layers, local.mean, strict=True):
                own.append(preactivation(layer, arrays, here))
                here = after(layer, own[-1])
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
        mine = flow(layers, mean, self.x)[-1]
        if self.values:
            # Inputs of zeros leave a network without biases no variance, and nothing to differ in.
            variance = np.maximum(self.output_variance, np.finfo(float).tiny)
            return float(((mine - self.outputs) ** 2 / variance).sum(1).mean() / 2)
        return float(_kl_of_logits(self.outputs, mine).mean())


def _kl_of_logits(p: Float[Array, "n k"], q: Float[Array, "n k"]) -> Float[Array, " n"]:
    if p.shape[1] == 1:  # the logit between two classes
        p, q = (np.concatenate([np.zeros_like(one), one], 1) for one in (p, q))
    log_p = scipy.special.log_softmax(p, axis=1)
    log_q = scipy.special.log_softmax(q, axis=1)
    return np.maximum((np.exp(log_p) * (log_p - log_q)).sum(1), 0.0)


def output_shares(locals_: Sequence[Local]) -> Float[Array, "sites outputs"]:
    """Shares ``a_jk`` of the sites in each output, which sum to one.

    In proportion to ``P_jk = Σ_l (1/v_jlk - 1/s_jlk²)``, the precision that the weights into
    output ``k`` gained over their prior: a site that never saw a class, or saw little, learnt
    little about its logit. It takes no data and no counts. Where a site's prior is not known,
    the widest weight of all sites' last layers stands for it. Outputs of which nobody learnt
    anything weigh sites alike.
    """
    widest = max(float(local.variance[-1]["kernel"].max()) for local in locals_)
    gained = np.array([_gained(local, widest) for local in locals_])
    gained = np.where((gained.max(0) > 0), gained / np.maximum(gained.max(0), 1e-300), 1.0)
    shares = np.array([local.weight for local in locals_])[:, None] * gained
    return shares / shares.sum(0)


def _gained(local: Local, widest: float) -> Float[Array, " outputs"]:
    known = local.gained()
    kernel = 1 / local.variance[-1]["kernel"] - 1 / widest if known is None else known[-1]["kernel"]
    return np.maximum(kernel.reshape(-1, kernel.shape[-1]).sum(0), 0.0)
