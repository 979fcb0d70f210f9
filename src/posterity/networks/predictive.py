"""The predictive distribution of a posterior at new inputs, from averages over its draws.

For classes the averages are ``log_chances`` (n, K), logarithms of the averaged probabilities (of
the labels 0 and 1 for a Bernoulli likelihood), and ``entropy`` (n,), the averaged entropy ``E[H]``
of a draw's probabilities. For values they are ``mean`` and ``variance`` (n, k) of the function over
draws, and ``noise`` (n, k), the averaged noise variance if it is known. These forms keep digits in
single precision: of a probability of 1e-50, or of a variance of 1e-4 about values near a thousand.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posterity.arguments import NATURAL
from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Real
from posterity.errors import StructureError
from posterity.families.layers import Layers
from posterity.families.network import Network
from posterity.models.data import check_column, labels
from posterity.models.data import inputs as checked_inputs
from posterity.models.forward import after, apply, outputs
from posterity.models.likelihoods import LIKELIHOOD, check_outputs
from posterity.models.tables import array, check_numbers
from posterity.networks.chances import (
    entropy,
    kl_of_classes,
    kl_of_values,
    law_of_values,
    log_label,
    log_softmax,
)
from posterity.runtime.programs import jitted

Expectations = dict[str, Any]
"""Averages over draws by name (see the module's docstring), each with a leading axis of inputs."""
TINY = float(np.finfo(np.float32).tiny)
"""Added to nonnegative numbers in single precision before their logarithm."""


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predictive distribution at each input; entropies are in nats.

    ``mean`` holds the predictive probabilities of classes (n, K) or of the label 1 (n,), or the
    mean output (n, ...). ``entropy`` (n,) is that of the predictive probabilities, the total
    uncertainty; ``mutual_information`` (n,) is its part due to the parameters, which more data
    would remove. For a Gaussian likelihood these are None, ``variance`` is that of the outputs over
    draws, and ``noise_variance`` that of the noise, if known; a student without a split has their
    sum in ``noise_variance``, and no ``variance``; ``degrees`` of freedom are those of :meth:`law`,
    infinite of a normal one. ``extrapolates`` (n,) is True outside of
    a student's training domain, or far from a learner's records. ``log_chances`` (n, K), or (n, 2)
    for a Bernoulli likelihood, are logarithms of the predictive probabilities.
    """

    mean: np.ndarray
    entropy: np.ndarray | None = None
    mutual_information: np.ndarray | None = None
    log_chances: np.ndarray | None = None
    variance: np.ndarray | None = None
    noise_variance: np.ndarray | None = None
    extrapolates: np.ndarray | None = None
    degrees: float = math.inf

    @classmethod
    def of_classes(
        cls,
        log_chances: Float[np.ndarray, "n k"],
        mean_entropy: Float[np.ndarray, " n"] | None = None,
        *,
        likelihood: str = "categorical",
    ) -> Self:
        """Make a prediction from the logarithms of predictive probabilities; minus infinity for
        zero. ``mean_entropy`` is the entropy of one draw's probabilities, averaged over draws;
        without it the mutual information is None.
        """
        chances = np.exp(log_chances)
        total = np.maximum(entropy(log_chances), 0.0)
        known = None if mean_entropy is None else np.maximum(total - mean_entropy, 0.0)
        mean = chances if likelihood == "categorical" else chances[:, 1]
        return cls(mean, total, known, log_chances)

    @classmethod
    def of(cls, expectations: Expectations, likelihood: str, degrees: float = math.inf) -> Self:
        """Make a prediction from float64 expectations; probabilities are normalised. ``degrees`` of
        freedom are those of the law of values.
        """
        if likelihood == "gaussian":
            noise = expectations.get("noise")
            variance = expectations["variance"]
            made = cls(expectations["mean"], variance=variance, noise_variance=noise)
            return dataclasses.replace(made, degrees=degrees)
        logs = expectations["log_chances"]
        logs = logs - np.logaddexp.reduce(logs, axis=-1, keepdims=True)
        return cls.of_classes(logs, expectations["entropy"], likelihood=likelihood)

    def log_predictive(self, y: Any) -> Float[np.ndarray, " n"]:
        """Return ``log p(y | x)`` of classes, labels in {0, 1}, or values, in nats. For values it
        is a density in the units of ``y``, of :meth:`law`, summed over the values of an input. A
        StructureError if labels or values do not fit the prediction or the noise is unknown; a
        ParameterError for labels that are not classes, or values that are not finite.
        """
        y = array(y, what="what was observed")
        count = len(self.mean)
        chances = self.log_chances
        if y.shape[:1] != (count,) or y.size != (self.mean.size if chances is None else count):
            raise StructureError(
                found=f"labels or values of shape {y.shape} for a prediction {self.mean.shape}",
                expected="one label an input, or one value of each output",
            )
        if chances is None:
            check_numbers(y, "what was observed")
            each = self.law().logpdf(y.reshape(self.mean.shape))
            return each.reshape(count, -1).sum(-1)
        check_column(y, labels(chances.shape[1]))
        return np.take_along_axis(chances, y.astype(int)[:, None], 1)[:, 0]

    def law(self) -> Any:
        """Return the law of a new record's values (n, k), a distribution of SciPy's with
        ``logpdf``, ``cdf``, ``interval`` and ``rvs``: the t law of so many ``degrees`` of freedom,
        of the predictive mean and the sum of both variances. A StructureError for classes, or if
        the noise is unknown.

        >>> Prediction(np.zeros((1, 1)), noise_variance=np.ones((1, 1))).law().ppf(0.975).round(2)
        array([[1.96]])
        """
        if self.noise_variance is None:
            raise StructureError(
                found="a prediction of classes, or of values whose noise is not known",
                expected="values of a known noise: replace(prediction, noise_variance=...)",
            )
        own = 0.0 if self.variance is None else np.asarray(self.variance, np.float64)
        total = own + np.asarray(self.noise_variance, np.float64)
        return law_of_values(np.asarray(self.mean, np.float64), total, self.degrees)


def expectations_of(likelihood: str, outputs: Any, noise_variance: Any = None) -> Expectations:
    """Return averages of outputs over draws, see the module's docstring.

    May be compiled and vectorised, with a static ``likelihood``.
    ``outputs`` are logits (draws, n, K) for a ``"categorical"`` likelihood, logits (draws, n) or
    (draws, n, 1) for ``"bernoulli"``, and values (draws, n) or (draws, n, k) for ``"gaussian"``,
    or a pair of values and noise variances of the same shape. ``noise_variance`` is used for values
    without variances: a number, or one per draw, which broadcasts against the values.

    >>> import jax.numpy as jnp
    >>> averages = expectations_of("gaussian", jnp.array([[[1.0]], [[3.0]]]), 0.5)
    >>> {name: float(value[0, 0]) for name, value in averages.items()}
    {'mean': 2.0, 'variance': 1.0, 'noise': 0.5}
    """
    LIKELIHOOD.check(likelihood=likelihood)
    if likelihood == "gaussian":
        values, noise = outputs if isinstance(outputs, tuple | list) else (outputs, noise_variance)
        values = jnp.asarray(values)
        # Relative to one of the draws, so that the variance of large values keeps its digits.
        away = values - values[0]
        mean = away.mean(0)
        averages = {"mean": values[0] + mean, "variance": ((away - mean) ** 2).mean(0)}
        if noise is not None:
            averages["noise"] = jnp.broadcast_to(noise, values.shape).mean(0).astype(values.dtype)
        shape = len(mean), math.prod(mean.shape[1:])
        return {name: value.reshape(shape) for name, value in averages.items()}
    logits = jnp.asarray(outputs)
    coin = likelihood == "bernoulli"
    logs = log_label(logits.reshape(*logits.shape[:2], 1)) if coin else log_softmax(logits)
    mean = jax.nn.logsumexp(logs, axis=0) - math.log(len(logs))
    return {"log_chances": mean, "entropy": entropy(logs).mean(0)}


def merge(
    first: Expectations, second: Expectations, counts: tuple[Any, Any] | list[Any]
) -> Expectations:
    """Return the expectations over all draws from those over two parts of ``counts`` draws each. A
    running average is one such dictionary and its number of draws. The variance is exact, by the
    parallel formula (chan1983). NumPy arrays are merged in NumPy; beyond some millions of draws
    keep the average in float64, in which new draws still count.

    >>> one = {"mean": np.array([[0.0]]), "variance": np.array([[0.0]])}
    >>> two = {"mean": np.array([[3.0]]), "variance": np.array([[0.0]])}
    >>> merge(one, two, (2, 1))["variance"].item()  # of 0, 0 and 3
    2.0
    """
    share = counts[1] / (counts[0] + counts[1])
    merged = {}
    for name in first:
        one = first[name]
        two = second[name]
        np_ = namespace(one, two, share).np
        if name == "log_chances":
            with np.errstate(divide="ignore"):  # a part without draws has share zero
                merged[name] = np_.logaddexp(one + np_.log1p(-share), two + np_.log(share))
            continue
        merged[name] = one + share * (two - one)
        if name == "variance":
            merged[name] += share * (1 - share) * (second["mean"] - first["mean"]) ** 2
    return merged


def merged(parts: Iterable[tuple[Expectations, int]]) -> Expectations:
    """Return the expectations over all draws in float64, from parts with their numbers of draws."""
    total: Expectations = {}
    count = 0
    for part, size in parts:
        part = {name: np.asarray(value, np.float64) for name, value in part.items()}
        total = merge(total, part, (count, size)) if count else part
        count += size
    return total


def mutual_information(expectations: Expectations) -> Float[Real, " n"]:
    """Return the mutual information of label and parameters in nats, ``H`` less ``E[H]``."""
    total = entropy(expectations["log_chances"])
    return namespace(total).np.maximum(total - expectations["entropy"], 0.0)


def divergence(first: Expectations, second: Expectations) -> Float[Real, " n"]:
    """Return ``KL(first ‖ second)`` of two predictives at each input, in nats. For values it is
    between independent Gaussians with their moments, including the noise if it is known.
    """
    if "log_chances" in first:
        return kl_of_classes(first["log_chances"], second["log_chances"])
    total, other = (part["variance"] + part.get("noise", 0.0) for part in (first, second))
    log = namespace(total, other).np.log
    return kl_of_values(first["mean"] - second["mean"], log(total), log(other))


def predict(
    network: Network,
    x: Any,
    *,
    key: jax.Array | None = None,
    samples: int | None = None,
    likelihood: str = "categorical",
) -> Float[np.ndarray, "n ..."]:
    """Return predictive probabilities (n, K) averaged over draws; :func:`describe` returns more.

    Args:
        network: one posterior over the weights; a StructureError for a batch of them.
        x: array of inputs (n, ...), scaled as those of the training; a data frame is a
            StructureError, since a network does not know the names of columns.
        key: random key of the draws, ``jax.random.key(0)`` by default.
        samples: number of draws; 0 predicts at the posterior mean. By default 100; for a fused
            network the mean, combined with its sites' outputs by :func:`between_sites`.
        likelihood: ``"categorical"``, ``"bernoulli"`` (probabilities (n,) of the label 1) or
            ``"gaussian"`` (mean outputs); a StructureError unless it fits the outputs.

    >>> network = Network.prior(Layers.dense(4, 3, 2), 0.01)
    >>> predict(network, np.zeros((5, 4)), samples=10).shape
    (5, 2)
    """
    return describe(network, x, key=key, samples=samples, likelihood=likelihood).mean


def describe(
    network: Network,
    x: Any,
    *,
    key: jax.Array | None = None,
    samples: int | None = None,
    likelihood: str = "categorical",
    activations: int = 1 << 24,
    rows: int = 4096,
) -> Prediction:
    """Return the prediction with its uncertainty; arguments and errors as of :func:`predict`. About
    this many ``activations`` are in memory at a time, over all draws, of ``rows`` inputs or fewer.
    """
    LIKELIHOOD.check(likelihood=likelihood)
    NATURAL.or_none().check(samples=samples)
    layers: Any = getattr(network, "network_layers", None)
    if layers is None or network.batch_shape:
        raise StructureError(
            found=repr(network),
            expected="one Network: `.posterior` of a fusion, network[0] of many",
        )
    x = checked_inputs(x, size=layers.inputs)
    x = np.asarray(x, np.float32).reshape(len(x), layers.inputs)
    check_outputs(network.layers, likelihood)
    key = jax.random.key(0) if key is None else key
    fused = samples is None and network.layers.sites > 0
    if samples is None:
        samples = 0 if fused else 100
    average = _between if fused else _expectations
    with jax.enable_x64(False):  # always in single precision
        weights = np.asarray(network.mean, np.float32)[None]
        if samples:
            noise = jax.random.normal(key, (samples, weights.size), jnp.float32)
            deviation = np.sqrt(np.asarray(network.variance, np.float32))
            weights = weights + deviation * np.asarray(noise)
        inputs = min(max(len(x), 1), rows)
        most = max(activations // max(map(math.prod, network.layers.images)), 1)
        together = max(min(len(weights), most // inputs), 1)
        groups = np.array_split(weights, -(-len(weights) // together))
        parts = [
            merged((average(network.layers, likelihood, own, piece), len(own)) for own in groups)
            for piece in np.split(x, range(inputs, len(x), inputs))
        ]
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Prediction.of(whole, likelihood)


def between_sites(
    likelihood: str,
    fused: Float[Real, "n k"],
    sites: Float[Real, "m n k"],
    shares: Float[Real, "m k"],
) -> Expectations:
    """Return the expectations of a fused network, accounting for disagreement between its sites.

    For classes, the weight of a site is its share in the classes that the fused network predicts,
    ``w_j = Σ_k p_k a_jk``, and the disagreement is ``D = Σ_j w_j KL(p_j ‖ p)`` in nats. The
    prediction is ``e^{-D} p + (1 - e^{-D}) Σ_j w_j p_j`` at the temperature ``√(1 + 4S²)``, where
    ``S = max(0, Σ_jk p_k a_jk log(p_k / p_jk))``. For values, the variance is that between sites,
    weighted by shares.
    """
    shares = shares / jnp.maximum(shares.sum(0), 1e-30)
    if likelihood == "gaussian":
        return {"mean": fused, "variance": (shares[:, None] * (sites - fused) ** 2).sum(0)}
    logs = log_label if likelihood == "bernoulli" else log_softmax
    own = logs(fused)
    each = logs(sites)
    weights = shares[:, None] * jnp.exp(own)
    weight = weights.sum(-1)
    apart = (weight * kl_of_classes(each, own)).sum(0)
    lack = jnp.maximum((weights * (own - each)).sum((0, 2)), 0.0)
    other = -jnp.expm1(-apart)
    mixture = jax.nn.logsumexp(each, axis=0, b=weight[..., None])
    mixed = jnp.logaddexp(own - apart[:, None], mixture + jnp.log(other + TINY)[:, None])
    within = (1 - other) * entropy(own) + other * (weight * entropy(each)).sum(0)
    return {"log_chances": log_softmax(mixed / jnp.hypot(1, 2 * lack)[:, None]), "entropy": within}


@functools.partial(jitted, static_argnums=(0, 1))
def _between(layers: Layers, likelihood: str, weights: Any, x: Any) -> Expectations:
    arrays = layers.unravel(weights[0])
    *_, before, fused = [x, *apply(layers, arrays, x)]
    before = before.reshape(len(x), -1)
    if layers.layers[-1].bias:
        before = jnp.concatenate([before, jnp.ones((len(x), 1), before.dtype)], axis=1)
    sites = after(layers.layers[-1], jnp.einsum("nl,mlk->mnk", before, arrays[-1]["sites"]))
    return between_sites(likelihood, fused, sites, arrays[-1]["shares"])


@functools.partial(jitted, static_argnums=(0, 1))
def _expectations(layers: Layers, likelihood: str, weights: Any, x: Any) -> Expectations:
    return expectations_of(likelihood, jax.vmap(lambda z: outputs(layers, z, x))(weights))
