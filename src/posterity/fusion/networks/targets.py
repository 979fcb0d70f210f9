"""Inputs without data, and what the sites' networks do on them: what a fused one is to do.

A weight's posterior gains precision ``Σ_n δ_n² x_n²`` where a bias gains ``Σ_n δ_n²`` (the same
slopes ``δ`` of the log likelihood): their ratio is the mean square of an input, in the units of the
data. So random inputs vary in the directions of the incoming weights, and each is of its own size.
Units count by how far their outgoing weights stand out: one that a horseshoe switched off gained
precision from its scale and none from data, as much at the bias as at any input.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from posterity.arrays.canonical import content_hashes
from posterity.arrays.typing import Bool, Float, Int
from posterity.errors import ParameterError, UsageError
from posterity.families.layers import Conv, Dense, Layer, Layers
from posterity.families.network import Network
from posterity.fusion.matching import scrambled
from posterity.fusion.networks.options import Options
from posterity.fusion.sites import Site

Array = np.ndarray
Arrays = list[dict[str, Array]]
"""The arrays of each layer, as :meth:`Layers.unravel` gives them."""
Labels = Sequence[Int[Array, " _"]]
"""By site, the fused unit of each of its own; -1 for one that has no room."""
LARGEST = 1e30  # The largest weight: over a few layers, and squared, it is still finite


class Local(NamedTuple):
    """One site: means, variances and the prior's precisions of each layer.

    ``order`` has, for each hidden layer, the site's own index of each unit; ``weight`` is the
    site's in averages.
    """

    name: str
    layers: Layers
    mean: Arrays
    variance: Arrays
    prior: Network | None
    order: list[Int[Array, " _"]]
    weight: float

    def incoming(self, index: int, kind: str = "mean") -> tuple[Array, Array | None]:
        """A layer's kernel as (positions, units before, units), and its bias."""
        own = getattr(self, kind)[index]
        return own["kernel"].reshape(self.layers.by_unit(index)), own.get("bias")

    def gained(self) -> Arrays | None:
        """The precision that each weight's posterior has beyond its prior's; None if unknown."""
        if self.prior is None:
            return None
        before = self.layers.unravel(np.asarray(self.prior.precision))
        return [
            {name: 1 / own[name] - base[name] for name in own}
            for own, base in zip(self.variance, before, strict=True)
        ]


class Placed(NamedTuple):
    """One site's weights in a fused layer; ``has`` marks the rows and units that it has."""

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
    """A site's layer, its units and those before where they belong in ``sizes`` fused ones."""
    both, rows, columns = [], before >= 0, after >= 0
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
    """Return sites by content, and so each one's units, whatever came first; with ``keep`` units
    stay in the order in which they came. A ParameterError names a site whose weights overflow.
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
            expected=f"means of at most {LARGEST:g}",
            fix="Check how the network was trained, and the scale of its data.",
        )
    order = []
    for index, width in enumerate(network.layers.widths):
        own = np.arange(width) if keep else np.lexsort(_contents(network, index))
        labels = np.argsort(own)
        network = network.relabel(labels, width, axes=(index,))
        prior = None if prior is None else prior.relabel(labels, width, axes=(index,))
        order.append(own)
    mean, variance = network.layers.unravel(network.mean), network.layers.unravel(network.variance)
    return Local(name, network.layers, mean, variance, prior, order, weight)


def _contents(network: Network, index: int) -> Array:
    """Keys (2, units): of what comes in; and of what goes out, whose order is not yet known."""
    layers = network.layers
    width, words, after = layers.widths[index], [], []
    for leaf in (network.precision_mean, network.precision):
        arrays = layers.unravel(leaf)
        words += [np.moveaxis(a, -1, 0).reshape(width, -1) for a in arrays[index].values()]
        after.append(arrays[index + 1]["kernel"].reshape(layers.by_unit(index + 1)))
    units = np.moveaxis(np.stack(after), 2, 0)  # (units, 2, positions, units after)
    pieces = np.moveaxis(units, -1, 1).reshape(units.shape[0] * units.shape[-1], -1)
    sums = scrambled(content_hashes(pieces)).reshape(len(units), -1)
    return np.stack([sums.sum(1, dtype=np.uint64), content_hashes(np.concatenate(words, 1))])


DENSE, IMAGES = 3000, 600
"""Random inputs unless a number is asked for: an image is seen at many places."""
LEAST = 1e-9  # The least that a site learnt of an output, relative to what the others did
SEED = 0
AT_ONCE = 100  # Images that are drawn together, which bounds memory
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
    """The inputs that a layer multiplies by its kernel: (n, *places, positions x units before)."""
    return layer.patches(x) if isinstance(layer, Conv) else x.reshape(len(x), -1)


def preactivation(
    layer: Layer, own: dict[str, Array], x: Float[Array, "n ..."]
) -> Float[Array, "n ..."]:
    """The argument of a layer's activation, from its own arrays and its inputs."""
    out = features(layer, x) @ own["kernel"].reshape(-1, layer.outputs)
    return out + own["bias"] if "bias" in own else out


def after(layer: Layer, x: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """The activation and the pooling of a layer."""
    out = FUNCTIONS[layer.activation](x)
    return layer.pooled(out) if isinstance(layer, Conv) else out


def flow(layers: Layers, arrays: Arrays, x: Float[Array, "n ..."]) -> tuple[list[Array], Array]:
    """The arguments of all activations (n, *places, units), and the last layer's output."""
    out, pre = np.asarray(x, float).reshape(len(x), *layers.image), []
    for layer, own in zip(layers.layers, arrays, strict=True):
        pre.append(preactivation(layer, own, out))
        out = after(layer, pre[-1])
    return pre, out


class Targets:
    """The sites' networks on inputs ``x`` (n, *image), their share in each output, what each
    activation is of at each site (n, *places, units), and whether outputs are values or logits.
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
        """The outputs of a layer at each site."""
        return [
            after(local.layers[index], pre[index])
            for local, pre in zip(self.locals, self.pre, strict=True)
        ]

    @functools.cached_property
    def outputs(self) -> Float[Array, "n k"]:
        """Outputs of the weighted concatenation: the last activation of the sum of all sites."""
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
    """Return shares ``a_jk`` of the sites in each output, which sum to one, in proportion to the
    precision ``Σ_l (1/v_jlk - 1/s_jlk²)`` that weights into output ``k`` gained over their prior: a
    site that saw little of a class learnt little of its logit. Where a prior is not known, the
    widest weight of all last layers stands for it; outputs of which nobody learnt anything weigh
    sites alike.
    """
    widest = max(float(local.variance[-1]["kernel"].max()) for local in locals_)
    rows = []
    for local in locals_:
        known, kernel = local.gained(), 1 / local.variance[-1]["kernel"] - 1 / widest
        kernel = kernel if known is None else known[-1]["kernel"]
        rows.append(np.maximum(kernel.reshape(-1, kernel.shape[-1]).sum(0), 0.0))
    gained = np.array(rows)
    gained = np.where((gained.max(0) > 0), gained / np.maximum(gained.max(0), 1e-300), 1.0)
    gained = np.maximum(gained, LEAST)
    shares = np.array([local.weight for local in locals_])[:, None] * gained
    return shares / shares.sum(0)


def pair_of_inputs(locals_: Sequence[Local], options: Options) -> tuple[Array, Array]:
    """Inputs (n, *image) for a refit, and others for the predictive KL; a UsageError for examples
    of another shape than the networks take.
    """
    layers = locals_[0].layers
    if options.inputs is not None:
        examples = np.asarray(options.inputs, float)
        if examples[0].size != layers.inputs:
            raise UsageError(
                found=f"inputs of shape {examples.shape}",
                expected=f"examples of shape {layers.image}",
                fix="Pass an array (n, *image).",
            )
        examples = examples.reshape(len(examples), *layers.image)
        return examples[::2], examples[1::2]
    n = options.samples or (DENSE if isinstance(layers[0], Dense) else IMAGES)
    drawn = random_inputs(locals_, 2 * n, np.random.default_rng(SEED), options.nonnegative)
    return drawn[:n], drawn[n:]


def random_inputs(
    locals_: Sequence[Local], n: int, rng: np.random.Generator, nonnegative: bool = False
) -> Float[Array, "n ..."]:
    """Random linear combinations of the incoming means of all sites' first layers."""
    layers = locals_[0].layers
    kernels = np.concatenate([local.incoming(0)[0] for local in locals_], axis=2)
    drawn = _images(layers, kernels, n, rng)
    if nonnegative:
        drawn = np.maximum(drawn, 0.0)
    squares = (drawn**2).mean(tuple(range(drawn.ndim - 1)))
    wanted = mean_squares(locals_)
    if wanted is None:  # nothing says how large inputs are: preactivations are of order one
        place = np.sqrt((kernels**2).sum((0, 1)).mean() * max(squares.mean(), 1e-300))
        return drawn / max(place, 1e-300)
    return drawn * np.sqrt(wanted / np.maximum(squares, 1e-300))


def mean_squares(locals_: Sequence[Local]) -> Float[Array, " inputs"] | None:
    """The mean square of each input, or channel of an image; None where posteriors do not say."""
    inputs, biases = np.zeros(locals_[0].layers.by_unit(0)[1]), 0.0
    for local in locals_:
        gained = local.gained()
        if gained is None or "bias" not in gained[0]:
            return None
        kernel = gained[0]["kernel"].reshape(local.layers.by_unit(0))
        # By how much squared outgoing weights of the units exceed their variances.
        squares = local.incoming(1)[0] ** 2
        surplus = np.maximum(squares - local.incoming(1, "variance")[0], 0).sum((0, 2))
        weight = surplus if surplus.any() else squares.sum((0, 2))
        inputs = inputs + np.maximum(kernel.mean(0), 0) @ weight
        biases += np.maximum(gained[0]["bias"], 0) @ weight
    return inputs / biases if biases > 0 and (inputs / biases > 0).any() else None


def _images(layers: Layers, kernels: Array, n: int, rng: np.random.Generator) -> Array:
    """Sums of incoming weights, of random sign and size; of patches, at every place."""
    first = layers[0]
    if not isinstance(first, Conv):
        return rng.standard_normal((n, kernels.shape[2])) @ kernels[0].T
    (height, width, channels), (high, wide) = layers.image, first.window
    images = []
    for start in range(0, n, AT_ONCE):
        some = min(AT_ONCE, n - start)
        padded = np.zeros((some, height + high - 1, width + wide - 1, channels))
        noise = rng.standard_normal((some, height, width, kernels.shape[2]))
        for place, kernel in enumerate(kernels):
            down, right = divmod(place, wide)
            padded[:, down : down + height, right : right + width] += noise @ kernel.T
        images.append(padded[:, high // 2 : high // 2 + height, wide // 2 : wide // 2 + width])
    return np.concatenate(images)
