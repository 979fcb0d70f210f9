"""Class probabilities of networks, alone and together, and how good they are.

They are at the means of the weights, or averaged over draws.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

from experiments.data import Array, Images, Integers
from experiments.privacy.membership import attack_auc
from posterity.families import Network
from posterity.families.layers import Layers
from posterity.models.forward import outputs
from posterity.networks.bound import noisy_outputs

Predictor = Callable[[Images], Array]  # from images (n, ...) to class probabilities (n, classes)
BATCH = 1000
_outputs = functools.partial(jax.jit, static_argnums=0)(outputs)


def _batched(call: Callable[[int, Images], Any], x: Images) -> Array:
    """``call`` on batches of one shape, so that one program serves all."""
    found = []
    for number, start in enumerate(range(0, len(x), BATCH)):
        piece = x[start : start + BATCH]
        filled = np.concatenate([piece, np.zeros((BATCH - len(piece), *x.shape[1:]), x.dtype)])
        found.append(np.asarray(call(number, filled), np.float64)[: len(piece)])
    return np.concatenate(found)


def logits(network: Network, x: Images) -> Array:
    """(n, classes) outputs at the mean of the weights."""
    mean = np.asarray(network.mean, np.float32)
    return _batched(lambda _, piece: _outputs(network.layers, mean, piece), x)


def alone(network: Network) -> Predictor:
    return lambda x: softmax(logits(network, x), axis=1)


def drawn(network: Network, key: Any, samples: int) -> Predictor:
    """The mean over draws of the weights of a dense network, anew for every image.

    What comes out of each layer is drawn instead of the weights, the same in law [kingma2015].
    """
    leaves = network.mean, np.sqrt(network.variance)
    law = [network.layers.unravel(np.asarray(leaf, np.float32)) for leaf in leaves]

    def call(number: int, piece: Images) -> Any:
        keys = jax.random.split(jax.random.fold_in(key, number), samples)
        return _mean_probabilities(network.layers, *law, piece, keys)

    return functools.partial(_batched, call)


@functools.partial(jax.jit, static_argnums=0)
def _mean_probabilities(layers: Layers, mean: Any, deviation: Any, x: Any, keys: Any) -> Any:
    def step(total: Any, key: Any) -> tuple[Any, None]:
        out = noisy_outputs(layers, mean, deviation, None, x, key=key)
        return total + jax.nn.softmax(out), None

    total, _ = jax.lax.scan(step, jnp.zeros((len(x), layers.outputs)), keys)
    return total / len(keys)


def concatenation(sites: Sequence[Network], weights: Array | None = None) -> Predictor:
    """All networks side by side in one that has the units of all: the mean of their logits.

    ``weights`` (sites, classes) multiply a site's outgoing weights and biases; None for ones.
    """
    weights = np.ones((len(sites), 1)) if weights is None else weights

    def predict(x: Images) -> Array:
        total = sum(own * logits(site, x) for site, own in zip(sites, weights, strict=True))
        return softmax(total / len(sites), axis=1)

    return predict


def ensemble(sites: Sequence[Network]) -> Predictor:
    return lambda x: np.mean([softmax(logits(site, x), axis=1) for site in sites], axis=0)


BINS = 15


class Scores(NamedTuple):
    """Of predictions on labelled images."""

    accuracy: float  # share that is right, in %
    log_likelihood: float  # mean log probability of the label, in nats
    entropy: float  # mean predictive entropy, in nats
    calibration: float  # expected calibration error over 15 bins of equal width, in %


def scores(probabilities: Array, labels: Integers) -> Scores:
    """Of class probabilities (n, classes) for labels (n,)."""
    right = probabilities.argmax(1) == labels
    own = np.maximum(probabilities[np.arange(len(labels)), labels], np.finfo(float).tiny)
    calibration = 100 * calibration_error(probabilities, labels)
    spread = float(entropy(probabilities).mean())
    return Scores(100 * float(right.mean()), float(np.log(own).mean()), spread, calibration)


def entropy(probabilities: Array) -> Array:
    """(n,) predictive entropy in nats."""
    p = np.maximum(probabilities, np.finfo(float).tiny)
    return -(p * np.log(p)).sum(1)


def calibration_error(probabilities: Array, labels: Integers, bins: int = BINS) -> float:
    """|share that is right - mean confidence|, averaged over bins of confidence."""
    confidence = probabilities.max(1)
    gap = (probabilities.argmax(1) == labels) - confidence
    bin_of = np.minimum((bins * confidence).astype(int), bins - 1)
    return float(np.abs(np.bincount(bin_of, weights=gap, minlength=bins)).sum() / len(labels))


class Ranking(NamedTuple):
    """The chance that a strange input has the higher entropy, and its standard error."""

    area: float
    standard_error: float


def auroc(usual: Array, strange: Array) -> Ranking:
    """The area under the curve of receiver operation, of entropies of usual and strange inputs."""
    return Ranking(*attack_auc(strange, usual))
