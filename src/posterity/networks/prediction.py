"""What a network's posterior says of new inputs: averages over draws of its weights."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posterity.arguments import NATURAL
from posterity.errors import ParameterError, StructureError
from posterity.families.gaussian import LOG_2PI
from posterity.families.layers import Layers
from posterity.families.network import Network
from posterity.models.forward import outputs
from posterity.models.likelihoods import LIKELIHOOD, check_outputs

NUMBERS = 1 << 24
"""Activations, of all draws that are looked at together, that fit into memory well."""
ROWS = 4096
"""Inputs that are looked at together, at most."""
SAMPLES = 100


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Of each input, averaged over draws of the weights; in nats where it is an entropy.

    ``mean`` is the predictive probability of each class (n, K), of the label 1 (n,), or the mean
    output (n, …). ``entropy`` (n,) is that of the predictive probabilities, all uncertainty
    there is; ``mutual_information`` (n,) is the part of it that weights are to blame for, which
    more data would take away. Of a Gaussian likelihood ``variance`` is the outputs' own,
    ``noise_variance`` that of the noise about them where it is known, and the others are None; a
    student that does not tell the two apart has both in ``noise_variance`` alone.
    ``log_chances`` (n, K), of a Bernoulli likelihood (n, 2), are logarithms of the predictive
    probabilities, right also where these are nearly zero or one.
    """

    mean: np.ndarray
    entropy: np.ndarray | None = None
    mutual_information: np.ndarray | None = None
    log_chances: np.ndarray | None = None
    variance: np.ndarray | None = None
    noise_variance: np.ndarray | None = None

    def log_predictive(self, y: Any) -> Float[np.ndarray, " n"]:
        """``log p(y | x)`` of classes, of labels in {0, 1}, or of values, in nats.

        Of values it is a density in the units of ``y``: that of a Gaussian of the predictive's
        mean and of both variances, summed over the values of one input.

        Raises:
            StructureError: if there is not one label or one value of each output an input, or
                the variance of the noise is not part of the prediction.
            ParameterError: for a label that is no class, and values that are not finite.
        """
        y = np.asarray(y)
        if self.log_chances is None and self.noise_variance is not None:
            return self._log_density(y)
        if self.log_chances is None or y.shape != self.mean.shape[:1]:
            raise StructureError(
                found=f"labels of shape {y.shape} for predictions of shape {self.mean.shape}",
                expected="one label an input, of a categorical or a Bernoulli likelihood",
                fix="Predict with the likelihood that the network was trained with; for values, "
                "give the prediction its noise: dataclasses.replace(found, noise_variance=...).",
            )
        classes = self.log_chances.shape[1]
        if not np.isin(y, np.arange(classes)).all():
            raise ParameterError(
                found=f"labels from {y.min()} to {y.max()}",
                expected=f"whole numbers from 0 to {classes - 1}",
                fix="Code classes as the network was trained with.",
            )
        return np.take_along_axis(self.log_chances, y.astype(int)[:, None], 1)[:, 0]

    def _log_density(self, y: np.ndarray) -> np.ndarray:
        if y.size != self.mean.size or y.shape[:1] != self.mean.shape[:1]:
            raise StructureError(
                found=f"values of shape {y.shape} for predictions of shape {self.mean.shape}",
                expected="one value of each output an input",
                fix="Shape them as the mean is.",
            )
        if y.dtype.kind not in "biuf" or not np.isfinite(y).all():
            raise ParameterError(
                found="values that are not finite numbers",
                expected="what was observed at each input",
                fix="Leave inputs out whose value is missing.",
            )
        own = 0.0 if self.variance is None else np.asarray(self.variance, np.float64)
        total = own + np.asarray(self.noise_variance, np.float64)
        residual = y.reshape(self.mean.shape) - np.asarray(self.mean, np.float64)
        each = residual**2 / total + np.log(total) + LOG_2PI
        return -each.reshape(len(y), -1).sum(-1) / 2


def predict(
    network: Network,
    x: Any,
    *,
    key: jax.Array | None = None,
    samples: int = SAMPLES,
    likelihood: str = "categorical",
) -> Float[np.ndarray, "n ..."]:
    """Predictive probabilities (n, K), averaged over draws; see :func:`describe` for the rest.

    Args:
        network: one posterior over the weights.
        x: inputs (n, …), scaled as those it was trained on.
        key: of the draws, ``jax.random.key(0)`` by default.
        samples: how many draws; 0 predicts at the posterior mean.
        likelihood: ``"categorical"``, ``"bernoulli"`` (probabilities (n,) of the label 1) or
            ``"gaussian"`` (mean outputs).

    Raises:
        StructureError: for a batch of networks, inputs of another size, or a number of outputs
            that the likelihood has not.
        ParameterError: for inputs that are not finite.

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
    samples: int = SAMPLES,
    likelihood: str = "categorical",
) -> Prediction:
    """As :func:`predict`, with what is uncertain of it; arguments and errors as there."""
    LIKELIHOOD.check(likelihood=likelihood)
    NATURAL.check(samples=samples)
    x = _inputs(network, x)
    check_outputs(network.layers, likelihood)
    key = jax.random.key(0) if key is None else key
    with jax.enable_x64(False):  # in single precision, whatever the caller computes in
        weights = _weights(network, samples, key)
        rows = max(NUMBERS // _widest(network.layers), 1)
        together = max(min(len(weights), rows // min(max(len(x), 1), ROWS)), 1)
        groups = np.array_split(np.arange(len(weights)), -(-len(weights) // together))
        parts = [_moments(network.layers, likelihood, weights, groups, x[at : at + ROWS])
                 for at in range(0, max(len(x), 1), ROWS)]  # fmt: skip
    first, second = (np.concatenate(part) for part in zip(*parts, strict=True))
    if likelihood == "gaussian":
        return Prediction(first, variance=second)
    mean = np.exp(first) if likelihood == "categorical" else np.exp(first[:, 1])
    entropy = -(np.exp(first) * first).sum(-1)
    return Prediction(mean, entropy, np.maximum(entropy - second, 0), first)


def _moments(layers: Layers, kind: str, weights: Any, groups: Any, x: Any) -> tuple[Any, Any]:
    """Log chances and mean entropy of classes; mean and variance of values."""
    count, parts = len(weights), []
    for group in groups:
        one, two = _sums(layers, kind, weights[group], weights[:1], x)
        parts.append((np.asarray(one, np.float64), np.asarray(two, np.float64)))
    firsts, seconds = zip(*parts, strict=True)
    if kind != "gaussian":
        return np.logaddexp.reduce(firsts) - np.log(count), sum(seconds) / count
    shift, square = sum(firsts) / count, sum(seconds) / count
    centre = np.asarray(_values(layers, weights[:1], x)[0], np.float64)
    return centre + shift, np.maximum(square - shift**2, 0)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _sums(layers: Layers, kind: str, weights: Any, one: Any, x: Any) -> tuple[Any, Any]:
    """Over draws: logarithms of summed chances, and summed entropies; of values, sums and sums of
    squares about what ``one`` draw says, so that large values leave digits for their variance.
    """
    found = _values(layers, weights, x)
    if kind == "gaussian":
        found = found - _values(layers, one, x)
        return found.sum(0), (found**2).sum(0)
    if kind == "bernoulli":
        logs = jax.nn.log_sigmoid(jnp.stack([-found[..., 0], found[..., 0]], -1))
    else:
        logs = jax.nn.log_softmax(found)
    return jax.nn.logsumexp(logs, axis=0), -(jnp.exp(logs) * logs).sum((0, -1))


@functools.partial(jax.jit, static_argnums=0)
def _values(layers: Layers, weights: Any, x: Any) -> Any:
    return jax.vmap(lambda z: outputs(layers, z, x))(weights)


def _weights(network: Network, samples: int, key: Any) -> np.ndarray:
    mean = np.asarray(network.mean, np.float32)
    if not samples:
        return mean[None]
    noise = np.asarray(jax.random.normal(key, (samples, mean.size), jnp.float32))
    return mean + np.sqrt(np.asarray(network.variance, np.float32)) * noise


def _inputs(network: Network, x: Any) -> np.ndarray:
    x = np.asarray(x)
    fits = isinstance(network, Network) and network.batch_shape == () and x.ndim > 0
    if not fits or int(np.prod(x.shape[1:])) != network.layers.inputs or x.dtype.kind not in "biuf":
        raise StructureError(
            found=f"inputs of shape {x.shape} for {network!r}",
            expected="one network, and an axis of inputs before those of one input",
            fix="Pass x[None] for a single input, network[0] for one of several networks, and "
            "`.posterior` of a ledger or a fusion.",
        )
    if not np.isfinite(x).all():
        raise ParameterError(
            found="NaN or infinity among the inputs",
            expected="finite numbers",
            fix="Impute missing values as for training.",
        )
    return np.asarray(x, np.float32).reshape(len(x), network.layers.inputs)


def _widest(layers: Layers) -> int:
    return max(int(np.prod(image)) for image in layers.images)
