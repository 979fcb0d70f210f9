"""Class probabilities of networks, alone and together: at the means of the weights, or of draws."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

from experiments.data import Array, Images
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

    What comes out of each layer is drawn instead of the weights, which is the same in law for each
    image alone [kingma2015], and much quicker.
    """
    law = [
        network.layers.unravel(np.asarray(leaf, np.float32))
        for leaf in (network.mean, np.sqrt(network.variance))
    ]

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
