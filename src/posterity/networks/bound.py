"""The evidence lower bound of a mean-field network, and its parameters while they are trained."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, PyTree

from posterity.arrays.typing import Real
from posterity.families.layers import Conv, Layer, Layers
from posterity.families.network import Network
from posterity.models.forward import after
from posterity.models.likelihoods import log_likelihood

TINY = 1e-20  # Added to variances before the root is taken: an input of zeros has one of zero
Arrays = list[dict[str, Any]]
"""The arrays of each layer, as :meth:`Layers.unravel` gives them."""
Parameters = dict[str, Any]
"""``mean`` and ``log_deviation``, each a list of arrays by layer as ``Layers.unravel`` gives them;
of a horseshoe beside these, of the logarithms of scales, ``scale``."""


class Scales(NamedTuple):
    """The numbers of a horseshoe prior, as of :class:`~posterity.networks.Horseshoe`."""

    scale: float
    slab: float


class Bound(eqx.Module):
    """``E_q[log p(y | x)] - temperature KL(q | prior)``, over the number of records. A pytree whose
    leaves are numbers: a compiled program serves all their values. ``scales`` are those of a
    horseshoe prior, None under any other.
    """

    layers: Layers = eqx.field(static=True)
    likelihood: str = eqx.field(static=True)
    noise_variance: float
    temperature: float
    scales: Scales | None

    def __call__(
        self, own: Parameters, prior: PyTree, x: Any, y: Any, count: Any, *, key: jax.Array
    ) -> Float[Real, ""]:
        """From a minibatch, in nats a record; ``prior`` is mean and log deviation by layer."""
        mean = own["mean"]
        deviation = jax.tree.map(jnp.exp, own["log_deviation"])
        keys = jax.random.split(key, 2)
        scales = None if self.scales is None else self._scales(own, len(x), keys[0])
        out = noisy_outputs(self.layers, mean, deviation, scales, x, key=keys[1])
        fit = log_likelihood(out, y, self.likelihood, self.noise_variance).mean()
        return fit - self.temperature * self.divergence(own, prior) / count

    def divergence(self, own: Parameters, prior: PyTree) -> Float[Real, ""]:
        """``KL(q | prior)`` in nats, in closed form; of scales by quadrature."""
        parts = jax.tree.map(_kl, own["mean"], own["log_deviation"], *prior)
        total = sum(jax.tree.leaves(parts))
        if self.scales is not None:
            total += sum(scale_kl(s, self.scales.scale) for s in own["scale"])
        return total

    def _scales(self, own: Parameters, records: int, key: jax.Array) -> list[Any]:
        """Scales of the hidden units, drawn for each record."""
        assert self.scales is not None
        drawn = []
        for index, unit in enumerate(own["scale"]):
            mean, own_key = unit["mean"], jax.random.fold_in(key, index)
            noise = jax.random.normal(own_key, (records, mean.size), mean.dtype)
            log = mean + jnp.exp(unit["log_deviation"]) * noise
            drawn.append(regularised(log, self.scales.slab))
        return drawn


def regularised(log_scale: Any, slab: Any) -> Any:
    """``(1/τ² + 1/slab²)^(-1/2)`` from ``log τ``."""
    return slab * jnp.exp(-0.5 * jnp.logaddexp(0.0, 2 * (jnp.log(slab) - log_scale)))


def _kl(mean: PyTree, log_deviation: Any, at: PyTree, log_prior: Any) -> Any:
    """Between Gaussians, summed; centred."""
    spread = jnp.exp(2 * (log_deviation - log_prior))
    distance = ((mean - at) * jnp.exp(-log_prior)) ** 2
    return (0.5 * (spread + distance - 1) + log_prior - log_deviation).sum()


NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(20)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def scale_kl(law: PyTree, scale: PyTree) -> Any:
    """``KL`` of log-normal scales to a half-Cauchy, summed, in nats; over 20 nodes. Of the
    logarithm ``s`` the half-Cauchy has the density ``2/π e^u / (1 + e^(2u))``, with ``u`` above
    ``log scale``.
    """
    deviation = jnp.exp(law["log_deviation"])
    u = law["mean"][..., None] - jnp.log(scale) + deviation[..., None] * NODES.astype(np.float32)
    log_density = np.log(2 / np.pi) + u - jnp.logaddexp(0.0, 2 * u)
    expected = log_density @ WEIGHTS.astype(np.float32)
    entropy = law["log_deviation"] + 0.5 * np.log(2 * np.pi * np.e)
    return (-entropy - expected).sum()


def noisy_outputs(
    layers: Layers,
    mean: Arrays,
    deviation: Arrays,
    scales: list[Any] | None,
    x: Float[Real, "n ..."],
    *,
    key: jax.Array,
) -> Float[Real, "n k"]:
    """Outputs under weights drawn for each record; ``mean`` and ``deviation`` by layer. Dense
    layers draw what comes out of the weights rather than these, which is the same for each record
    alone (kingma2015). A convolution shows its weights at many positions at once, where that would
    be another law: its weights are drawn once, with signs of each record's own (wen2018).
    ``scales`` are factors (n, units) of the hidden layers' preactivations, or None.
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


def _drawn(
    layer: Layer, mean: PyTree, deviation: PyTree, x: Float[Real, "n ..."], key: jax.Array
) -> Float[Real, "n ..."]:
    x = x.reshape(len(x), layer.inputs)
    centre = x @ mean["kernel"]
    spread = (x * x) @ deviation["kernel"] ** 2
    if layer.bias:
        centre, spread = centre + mean["bias"], spread + deviation["bias"] ** 2
    return centre + jnp.sqrt(spread + TINY) * jax.random.normal(key, centre.shape, x.dtype)


def _flipped(
    layer: Conv, mean: PyTree, deviation: PyTree, x: Float[Real, "n ..."], key: jax.Array
) -> Float[Real, "n ..."]:
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


def started(bound: Bound, start: Network | None, *, key: jax.Array) -> Parameters:
    """Parameters to train from: those of ``start``, else means scattered and deviations small.
    Means of a layer have two over the inputs of a unit for a variance, which keeps activations
    about as large as inputs; deviations are a fifth of theirs.
    """
    layers = bound.layers
    if start is None:
        spreads = [np.sqrt(2 / np.prod(layer.kernel[:-1])) for layer in layers.layers]
        noise = np.asarray(jax.random.normal(key, (layers.size,), jnp.float32))
        mean = layers.unravel(noise)
        for own, spread in zip(mean, spreads, strict=True):
            own["kernel"] = own["kernel"] * np.float32(spread)
            if "bias" in own:
                own["bias"] = np.zeros_like(own["bias"])
        log = [
            {name: np.full_like(array, np.log(0.2 * spread)) for name, array in own.items()}
            for own, spread in zip(mean, spreads, strict=True)
        ]
    else:
        mean = layers.unravel(_single(start.mean))
        log = layers.unravel(_single(np.log(start.variance) / 2))
    parameters: Parameters = {"mean": mean, "log_deviation": log}
    if bound.scales is not None:
        parameters |= _with_scales(bound.scales, layers, parameters)
    return parameters


def _with_scales(prior: Scales, layers: Layers, own: Parameters) -> Parameters:
    """Weights over the scale of their unit, so that they are about standard normal."""
    scales, means, logs = [], list(own["mean"]), list(own["log_deviation"])
    for index in range(len(layers.widths)):
        kernel = np.asarray(means[index]["kernel"]).reshape(-1, layers[index].outputs)
        size = np.maximum(np.sqrt((kernel**2).mean(0)), 1e-3)
        size = np.minimum(size, 0.9 * prior.slab)
        means[index] = {name: array / size for name, array in means[index].items()}
        logs[index] = {name: array - np.log(size) for name, array in logs[index].items()}
        raw = _single(-0.5 * np.log(1 / size**2 - 1 / prior.slab**2))  # undoes `regularised`
        scales.append({"mean": raw, "log_deviation": np.full_like(raw, np.log(0.1))})
    return {"mean": means, "log_deviation": logs, "scale": scales}


def _single(array: ArrayLike) -> np.ndarray:
    return np.asarray(array, np.float32)


def as_posterior(bound: Bound, own: Parameters) -> Network:
    """The mean-field Gaussian of the weights; under a horseshoe that of the same two moments."""
    own = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), own)
    means = own["mean"]
    variances = [{n: np.exp(2 * log) for n, log in layer.items()} for layer in own["log_deviation"]]
    if bound.scales is not None:
        for index, unit in enumerate(own["scale"]):
            first, second = _scale_moments(bound.scales, unit)
            for name, mean in means[index].items():
                variance = second * (mean**2 + variances[index][name]) - (first * mean) ** 2
                means[index][name], variances[index][name] = first * mean, variance
    layers = bound.layers
    return Network.from_standard(layers.ravel(means), layers.ravel(variances), layers)


def _scale_moments(prior: Scales, unit: Parameters) -> tuple[Any, Any]:
    """The first two moments of the regularised scales of a layer's units."""
    log = unit["mean"][:, None] + np.exp(unit["log_deviation"])[:, None] * NODES
    values = prior.slab * np.exp(-0.5 * np.logaddexp(0.0, 2 * (np.log(prior.slab) - log)))
    return values @ WEIGHTS, values**2 @ WEIGHTS
