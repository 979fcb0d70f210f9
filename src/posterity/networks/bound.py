"""The evidence lower bound of a mean-field network, and its variational parameters."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, PyTree

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Real
from posterity.families.layers import Conv, Layer, Layers
from posterity.families.network import Network
from posterity.models.forward import after
from posterity.models.likelihoods import log_likelihood
from posterity.models.nodes import hermite

Arrays = list[dict[str, Any]]
"""The arrays of each layer, as returned by :meth:`Layers.unravel`."""
Parameters = dict[str, Any]
"""Variational parameters: ``mean`` and ``log_deviation``, both lists of arrays by layer as returned
by ``Layers.unravel``; with a horseshoe also ``scale``, the same for log scales of units."""


class Scales(NamedTuple):
    """The parameters of a horseshoe prior, see :class:`~posterity.networks.Horseshoe`."""

    scale: float
    slab: float


class Bound(eqx.Module):
    """The bound ``E_q[log p(y | x)] - temperature KL(q | prior)``, in nats per record. It is a
    pytree whose leaves are numbers, so one compiled program serves all their values. ``scales`` are
    the parameters of a horseshoe prior, None for other priors.
    """

    layers: Layers = eqx.field(static=True)
    likelihood: str = eqx.field(static=True)
    noise_variance: float
    temperature: float
    scales: Scales | None

    def __call__(
        self, own: Parameters, prior: PyTree, x: Any, y: Any, count: Any, *, key: jax.Array
    ) -> Float[Real, ""]:
        """Estimate the bound from a minibatch, in nats per record. ``prior`` is the pair of means
        and log deviations by layer, ``count`` the total number of records.
        """
        mean = own["mean"]
        deviation = jax.tree.map(jnp.exp, own["log_deviation"])
        keys = jax.random.split(key, 2)
        scales = None if self.scales is None else self._scales(own, len(x), keys[0])
        out = noisy_outputs(self.layers, mean, deviation, scales, x, key=keys[1])
        fit = log_likelihood(out, y, self.likelihood, self.noise_variance).mean()
        return fit - self.temperature * self.divergence(own, prior) / count

    def divergence(self, own: Parameters, prior: PyTree) -> Float[Real, ""]:
        """Return ``KL(q | prior)`` in nats, in closed form; that of scales by quadrature."""
        parts = jax.tree.map(_kl, own["mean"], own["log_deviation"], *prior)
        total = sum(jax.tree.leaves(parts))
        if self.scales is not None:
            total += sum(scale_kl(s, self.scales.scale) for s in own["scale"])
        return total

    def _scales(self, own: Parameters, records: int, key: jax.Array) -> list[Any]:
        """Draw scales of the hidden units for each record."""
        assert self.scales is not None
        drawn = []
        for index, unit in enumerate(own["scale"]):
            mean = unit["mean"]
            own_key = jax.random.fold_in(key, index)
            noise = jax.random.normal(own_key, (records, mean.size), mean.dtype)
            log = mean + jnp.exp(unit["log_deviation"]) * noise
            drawn.append(regularised(log, self.scales.slab))
        return drawn


def regularised(log_scale: Any, slab: Any) -> Any:
    """Return ``(1/τ² + 1/slab²)^(-1/2)`` from ``log τ``."""
    np_ = namespace(log_scale).np
    return slab * np_.exp(-0.5 * np_.logaddexp(0.0, 2 * (np_.log(slab) - log_scale)))


def _kl(mean: PyTree, log_deviation: Any, at: PyTree, log_prior: Any) -> Any:
    """Return the KL divergence between diagonal Gaussians in nats."""
    spread = jnp.exp(2 * (log_deviation - log_prior))
    distance = ((mean - at) * jnp.exp(-log_prior)) ** 2
    return (0.5 * (spread + distance - 1) + log_prior - log_deviation).sum()


def scale_kl(law: PyTree, scale: PyTree) -> Any:
    """Return the summed KL divergence of log-normal scales from a half-Cauchy in nats, by 20 nodes.
    The log of a half-Cauchy scale has density ``2/π e^u / (1 + e^(2u))``, where ``u`` is its
    difference from ``log scale``.
    """
    nodes, weights = (part.astype(np.float32) for part in hermite(20))
    deviation = jnp.exp(law["log_deviation"])
    u = law["mean"][..., None] - jnp.log(scale) + deviation[..., None] * nodes
    log_density = np.log(2 / np.pi) + u - jnp.logaddexp(0.0, 2 * u)
    expected = log_density @ weights
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
    """Return outputs under weights drawn for each record; ``mean`` and ``deviation`` are by layer.
    Dense layers draw preactivations instead of weights, which has the same law for each record
    (kingma2015). For a convolution, whose weights are shared by many positions, it would not: its
    weights are drawn once, with random signs per record (wen2018). ``scales`` are factors
    (n, units) of the hidden layers' preactivations, or None.
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
        centre = centre + mean["bias"]
        spread = spread + deviation["bias"] ** 2
    spread = spread + 1e-20  # zero inputs have zero variance, where a root has no slope
    return centre + jnp.sqrt(spread) * jax.random.normal(key, centre.shape, x.dtype)


def _flipped(
    layer: Conv, mean: PyTree, deviation: PyTree, x: Float[Real, "n ..."], key: jax.Array
) -> Float[Real, "n ..."]:
    keys = jax.random.split(key, 3)
    seen = layer.patches(x)

    def flat(kernel):
        return kernel.reshape(-1, layer.outputs)

    noise = flat(deviation["kernel"])
    noise = noise * jax.random.normal(keys[0], noise.shape, x.dtype)

    def sign(key, size):
        return jax.random.rademacher(key, (len(x), 1, 1, size), x.dtype)

    out = seen @ flat(mean["kernel"])
    out += ((seen * sign(keys[1], seen.shape[-1])) @ noise) * sign(keys[2], layer.outputs)
    if layer.bias:
        shape = (len(x), 1, 1, layer.outputs)
        noise = jax.random.normal(jax.random.fold_in(key, 3), shape, x.dtype)
        out += mean["bias"] + deviation["bias"] * noise
    return out


def started(bound: Bound, start: Network | None, *, key: jax.Array) -> Parameters:
    """Return the initial parameters: those of ``start``, or random means and small deviations.
    Random means have variance 2 / (number of a unit's inputs), which preserves the scale of
    activations; deviations are a fifth of their spread.
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
    """Divide weights by the scale of their unit, so that they are about standard normal."""
    scales = []
    means = list(own["mean"])
    logs = list(own["log_deviation"])
    for index in range(len(layers.widths)):
        kernel = means[index]["kernel"].reshape(-1, layers[index].outputs)
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
    """Return the mean-field Gaussian of the weights; under a horseshoe by their two moments."""
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
    """Return the first two moments of the regularised scales of a layer's units."""
    nodes, weights = hermite(20)
    log = unit["mean"][:, None] + np.exp(unit["log_deviation"])[:, None] * nodes
    values = regularised(log, prior.slab)
    return values @ weights, values**2 @ weights
