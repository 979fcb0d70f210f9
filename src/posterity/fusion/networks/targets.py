"""Random inputs, and the sites' outputs on them, which are the targets of a fused network.

With slopes ``δ`` of the log likelihood, a weight's posterior gains precision ``Σ_n δ_n² x_n²`` and
a bias gains ``Σ_n δ_n²``: their ratio is the mean square of an input, in the units of the data. So
random inputs vary in the directions of the incoming weights, each with its own mean square.
Units are weighted by how far their outgoing weights exceed their standard deviations. A unit that
a horseshoe switched off gained precision from its scale alone, equally at the bias and the inputs.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from posterity.arrays.canonical import content_hashes, set_hashes
from posterity.arrays.typing import Bool, Float, Int
from posterity.errors import ParameterError, UsageError
from posterity.families.layers import Conv, Layer, Layers
from posterity.families.network import Network
from posterity.fusion.networks.options import Options
from posterity.fusion.sites import Site

Array = np.ndarray
Arrays = list[dict[str, Array]]
"""The arrays of each layer, as :meth:`Layers.unravel` returns them."""
Labels = Sequence[Int[Array, " _"]]
"""For each site, the fused unit of each of its units; -1 for a unit without a place."""
LARGEST = 1e30  # The largest weight: products over a few layers, squared, are still finite


class Local(NamedTuple):
    """One site: means and variances of each layer, and the prior.

    ``order`` has, for each hidden layer, the original index of each unit; ``weight`` is the weight
    of the site in averages.
    """

    name: str
    layers: Layers
    mean: Arrays
    variance: Arrays
    prior: Network | None
    order: list[Int[Array, " _"]]
    weight: float

    def incoming(self, index: int, kind: str = "mean") -> tuple[Array, Array | None]:
        """Return a layer's kernel as (positions, units before, units), and its bias or None."""
        own = getattr(self, kind)[index]
        return own["kernel"].reshape(self.layers.by_unit(index)), own.get("bias")

    def gained(self) -> Arrays | None:
        """Return each weight's posterior precision minus its prior precision; None if unknown."""
        if self.prior is None:
            return None
        before = self.layers.unravel(np.asarray(self.prior.precision))
        return [
            {name: 1 / own[name] - base[name] for name in own}
            for own, base in zip(self.variance, before, strict=True)
        ]


class Placed(NamedTuple):
    """One site's weights in the shape of a fused layer; ``has`` marks the weights that it has."""

    mean: Float[Array, "rows units"]
    variance: Float[Array, "rows units"]
    has: Bool[Array, "rows units"]


def placed(
    local: Local,
    index: int,
    before: Int[Array, " b"],
    after: Int[Array, " u"],
    sizes: Sequence[int],
) -> Placed:
    """Return a site's layer with inputs and units at their places among ``sizes`` fused ones."""
    both = []
    rows = before >= 0
    columns = after >= 0
    for kind in ("mean", "variance"):
        kernel, bias = local.incoming(index, kind)
        out = np.zeros((len(kernel), *sizes))
        out[:, before[rows, None], after[columns]] = kernel[:, rows][:, :, columns]
        out = out.reshape(-1, sizes[1])
        if bias is not None:
            last = np.zeros((1, sizes[1]))
            last[0, after[columns]] = bias[columns]
            out = np.concatenate([out, last])
        both.append(out)
    mean, variance = both
    return Placed(mean, variance, variance > 0)


def in_order(
    sites: Mapping[str, Site], weights: Float[Array, " sites"], keep: bool = False
) -> list[Local]:
    """Return sites, and the units of each, in an order by content; with ``keep``, units keep their
    order. Raise a ParameterError that names a site with weights above :data:`LARGEST`.
    """
    locals_ = [
        _local(name, site, float(weight), keep)
        for (name, site), weight in zip(sites.items(), weights, strict=True)
    ]

    def content(local: Local) -> tuple[Any, ...]:
        flat = np.concatenate([local.layers.ravel(local.mean), local.layers.ravel(local.variance)])
        return local.layers.widths, int(content_hashes(flat[None])[0]), local.name

    return sorted(locals_, key=content)


def _local(name: str, site: Site, weight: float, keep: bool) -> Local:
    network: Any = site.posterior
    prior: Any = site.prior
    size = float(np.abs(network.mean).max())
    if size > LARGEST:
        raise ParameterError(
            found=f"weights of {size:.2g} at site {name!r}",
            expected=f"means of at most {LARGEST:g}, as of data in a usual scale",
        )
    order = []
    for index, width in enumerate(network.layers.widths):
        own = np.arange(width) if keep else np.lexsort(_contents(network, index))
        labels = np.argsort(own)
        network = network.relabel(labels, width, axes=(index,))
        prior = None if prior is None else prior.relabel(labels, width, axes=(index,))
        order.append(own)
    mean = network.layers.unravel(network.mean)
    variance = network.layers.unravel(network.variance)
    return Local(name, network.layers, mean, variance, prior, order, weight)


def _contents(network: Network, index: int) -> Array:
    """Return sort keys (2, units), of outgoing weights in any order and of incoming weights."""
    layers = network.layers
    width = layers.widths[index]
    words = []
    after = []
    for leaf in (network.precision_mean, network.precision):
        arrays = layers.unravel(leaf)
        words += [np.moveaxis(a, -1, 0).reshape(width, -1) for a in arrays[index].values()]
        after.append(arrays[index + 1]["kernel"].reshape(layers.by_unit(index + 1)))
    units = np.moveaxis(np.stack(after), 2, 0)  # (units, 2, positions, units after)
    pieces = np.moveaxis(units, -1, 1).reshape(units.shape[0] * units.shape[-1], -1)
    starts = np.arange(0, len(pieces), units.shape[-1])
    outgoing = set_hashes(content_hashes(pieces), starts)
    return np.stack([outgoing, content_hashes(np.concatenate(words, 1))])


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "sigmoid": scipy.special.expit,
    "silu": lambda x: x * scipy.special.expit(x),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "identity": lambda x: x,
}
"""Activations in NumPy and float64; those for JAX are in :mod:`posterity.models.forward`."""


def features(layer: Layer, x: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """Return the inputs that the kernel multiplies: (n, *places, positions x units before)."""
    return layer.patches(x) if isinstance(layer, Conv) else x.reshape(len(x), -1)


def preactivation(
    layer: Layer, own: dict[str, Array], x: Float[Array, "n ..."]
) -> Float[Array, "n ..."]:
    """Return the argument of a layer's activation, from the layer's arrays and its inputs."""
    out = features(layer, x) @ own["kernel"].reshape(-1, layer.outputs)
    return out + own["bias"] if "bias" in own else out


def after(layer: Layer, x: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """Apply the activation and the pooling of a layer."""
    out = FUNCTIONS[layer.activation](x)
    return layer.pooled(out) if isinstance(layer, Conv) else out


def flow(layers: Layers, arrays: Arrays, x: Float[Array, "n ..."]) -> tuple[list[Array], Array]:
    """Return the arguments of all activations (n, *places, units), and the network's output."""
    out = np.asarray(x, float).reshape(len(x), *layers.image)
    pre = []
    for layer, own in zip(layers.layers, arrays, strict=True):
        pre.append(preactivation(layer, own, out))
        out = after(layer, pre[-1])
    return pre, out


class Targets:
    """The sites' networks evaluated on inputs ``x`` (n, *image): their shares in each output, the
    arguments of their activations (n, *places, units), and whether outputs are values or logits.
    """

    def __init__(
        self,
        locals_: Sequence[Local],
        shares: Float[Array, "sites k"],
        x: Float[Array, "n ..."],
        values: bool,
    ):
        self.locals = locals_
        self.shares = shares
        self.x = x
        self.values = values
        self.pre = [flow(local.layers, local.mean, x)[0] for local in locals_]

    def activations(self, index: int) -> list[Array]:
        """Return the outputs of a layer at each site."""
        return [
            after(local.layers[index], pre[index])
            for local, pre in zip(self.locals, self.pre, strict=True)
        ]

    @functools.cached_property
    def outputs(self) -> Float[Array, "n k"]:
        """Outputs of the weighted concatenation: the last activation of the sum over sites."""
        pairs = zip(self.shares, self.pre, strict=True)
        total: Array = sum(share * pre[-1] for share, pre in pairs)  # pyright: ignore
        return after(self.locals[0].layers[-1], total)

    @functools.cached_property
    def output_variance(self) -> Float[Array, "n k"]:
        """Variance of the outputs due to the weights of the last layer, averaged over sites."""
        variance = np.zeros_like(self.outputs)
        inputs = self.activations(len(self.locals[0].layers) - 2)
        for local, share, before in zip(self.locals, self.shares, inputs, strict=True):
            own = local.variance[-1]
            variance += share * (before.reshape(len(before), -1) ** 2 @ own["kernel"])
            variance += share * own.get("bias", 0.0)
        return variance

    def divergence(self, layers: Layers, mean: Arrays) -> float:
        """Return the mean predictive KL, in nats, from the concatenation to a fused network."""
        mine = flow(layers, mean, self.x)[1]
        if self.values:
            # A network without biases has no variance, and no error, at inputs of zeros.
            variance = np.maximum(self.output_variance, np.finfo(float).tiny)
            return float(((mine - self.outputs) ** 2 / variance).sum(1).mean() / 2)
        logits = [self.outputs, mine]
        if mine.shape[1] == 1:  # the logit between two classes
            logits = [np.concatenate([np.zeros_like(one), one], 1) for one in logits]
        log_p, log_q = (scipy.special.log_softmax(one, axis=1) for one in logits)
        return float(np.maximum((np.exp(log_p) * (log_p - log_q)).sum(1), 0.0).mean())


def output_shares(
    locals_: Sequence[Local], *, least: float = 1e-9
) -> Float[Array, "sites outputs"]:
    """Return the shares ``a_jk`` of sites in each output; they sum to one for each output.

    Shares are proportional to the precision ``Σ_l (1/v_jlk - 1/s_jlk²)`` that weights into output
    ``k`` gained over their prior. An unknown prior variance is replaced by the largest variance of
    all last layers. Sites have equal shares in outputs about which no precision was gained. No gain
    is below ``least`` of the largest.
    """
    widest = max(float(local.variance[-1]["kernel"].max()) for local in locals_)
    rows = []
    for local in locals_:
        known = local.gained()
        kernel = 1 / local.variance[-1]["kernel"] - 1 / widest
        kernel = kernel if known is None else known[-1]["kernel"]
        rows.append(np.maximum(kernel.reshape(-1, kernel.shape[-1]).sum(0), 0.0))
    gained = np.array(rows)
    gained = np.where((gained.max(0) > 0), gained / np.maximum(gained.max(0), 1e-300), 1.0)
    gained = np.maximum(gained, least)
    shares = np.array([local.weight for local in locals_])[:, None] * gained
    return shares / shares.sum(0)


def pair_of_inputs(locals_: Sequence[Local], options: Options) -> tuple[Array, Array]:
    """Return inputs (n, *image) for refits, and others for the predictive KL; raise a UsageError if
    the shape of examples does not fit the networks.
    """
    layers = locals_[0].layers
    if options.inputs is not None:
        examples = np.asarray(options.inputs, float)
        if examples[0].size != layers.inputs:
            raise UsageError(
                found=f"inputs of shape {examples.shape}", expected=f"(n, *{layers.image})"
            )
        examples = examples.reshape(len(examples), *layers.image)
        return examples[::2], examples[1::2]
    n = options.number(layers)
    drawn = random_inputs(locals_, 2 * n, np.random.default_rng(0))
    return drawn[:n], drawn[n:]


def random_inputs(
    locals_: Sequence[Local], n: int, rng: np.random.Generator
) -> Float[Array, "n ..."]:
    """Draw random linear combinations of the incoming means of all sites' first layers."""
    layers = locals_[0].layers
    kernels = np.concatenate([local.incoming(0)[0] for local in locals_], axis=2)
    drawn = _images(layers, kernels, n, rng)
    squares = (drawn**2).mean(tuple(range(drawn.ndim - 1)))
    wanted = mean_squares(locals_)
    if wanted is None:  # the scale of inputs is unknown: preactivations are made of order one
        place = np.sqrt((kernels**2).sum((0, 1)).mean() * max(squares.mean(), 1e-300))
        return drawn / max(place, 1e-300)
    return drawn * np.sqrt(wanted / np.maximum(squares, 1e-300))


def mean_squares(locals_: Sequence[Local]) -> Float[Array, " inputs"] | None:
    """Estimate the mean square of each input, or image channel; None if it is not determined."""
    inputs = np.zeros(locals_[0].layers.by_unit(0)[1])
    biases = 0.0
    for local in locals_:
        gained = local.gained()
        if gained is None or "bias" not in gained[0]:
            return None
        kernel = gained[0]["kernel"].reshape(local.layers.by_unit(0))
        # The excess of the units' squared outgoing weights over their variances.
        squares = local.incoming(1)[0] ** 2
        surplus = np.maximum(squares - local.incoming(1, "variance")[0], 0).sum((0, 2))
        weight = surplus if surplus.any() else squares.sum((0, 2))
        inputs = inputs + np.maximum(kernel.mean(0), 0) @ weight
        biases += np.maximum(gained[0]["bias"], 0) @ weight
    return inputs / biases if biases > 0 and (inputs / biases > 0).any() else None


def _images(
    layers: Layers, kernels: Array, n: int, rng: np.random.Generator, *, at_once: int = 100
) -> Array:
    """Draw sums of incoming weights with random coefficients; for images, at every place, with
    ``at_once`` of them in memory.
    """
    first = layers[0]
    if not isinstance(first, Conv):
        return rng.standard_normal((n, kernels.shape[2])) @ kernels[0].T
    height, width, channels = layers.image
    high, wide = first.window
    images = []
    for start in range(0, n, at_once):
        some = min(at_once, n - start)
        padded = np.zeros((some, height + high - 1, width + wide - 1, channels))
        noise = rng.standard_normal((some, height, width, kernels.shape[2]))
        for place, kernel in enumerate(kernels):
            down, right = divmod(place, wide)
            padded[:, down : down + height, right : right + width] += noise @ kernel.T
        images.append(padded[:, high // 2 : high // 2 + height, wide // 2 : wide // 2 + width])
    return np.concatenate(images)
