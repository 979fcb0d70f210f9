"""Class probabilities of networks, alone and together.

At the means of the weights, where nothing else is said.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from experiments.data import Array
from posterity.arrays.typing import KeyArray
from posterity.families import Network
from posterity.families.layers import Layers
from posterity.models.forward import outputs
from posterity.networks.bound import noisy_outputs

Predictor = Callable[[NDArray[np.float32]], Array]
"""From images (n, ...) to class probabilities (n, classes)."""
BATCH = 1000


def logits(network: Network, x: NDArray[np.float32]) -> Array:
    """(n, classes) outputs at the mean of the weights."""
    mean = np.asarray(network.mean, np.float32)
    pieces = [x[start : start + BATCH] for start in range(0, len(x), BATCH)]
    found = [_outputs(network.layers, mean, _filled(piece))[: len(piece)] for piece in pieces]
    return np.concatenate([np.asarray(piece, np.float64) for piece in found])


def _filled(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """One shape, so that one program serves all."""
    return np.concatenate([x, np.zeros((BATCH - len(x), *x.shape[1:]), x.dtype)])


_outputs = functools.partial(jax.jit, static_argnums=0)(outputs)


def alone(network: Network) -> Predictor:
    """What one network says."""
    return lambda x: softmax(logits(network, x), axis=1)


def drawn(network: Network, key: KeyArray, samples: int) -> Predictor:
    """The mean over draws of the weights of a dense network, anew for every image.

    What comes out of each layer is drawn instead of the weights, which is the same in law for each
    image alone [kingma2015], and much quicker.
    """
    law = [
        network.layers.unravel(np.asarray(leaf, np.float32))
        for leaf in (network.mean, np.sqrt(network.variance))
    ]

    def predict(x: NDArray[np.float32]) -> Array:
        found = []
        for number, start in enumerate(range(0, len(x), BATCH)):
            piece = x[start : start + BATCH]
            keys = jax.random.split(jax.random.fold_in(key, number), samples)
            mean = _mean_probabilities(network.layers, *law, _filled(piece), keys)
            found.append(np.asarray(mean, np.float64)[: len(piece)])
        return np.concatenate(found)

    return predict


@functools.partial(jax.jit, static_argnums=0)
def _mean_probabilities(layers: Layers, mean: Any, deviation: Any, x: Any, keys: Any) -> jax.Array:
    def step(total: jax.Array, key: KeyArray) -> tuple[jax.Array, None]:
        out = noisy_outputs(layers, mean, deviation, None, x, key=key)
        return total + jax.nn.softmax(out), None

    total, _ = jax.lax.scan(step, jnp.zeros((len(x), layers.outputs)), keys)
    return total / len(keys)


def concatenation(sites: Sequence[Network], weights: Array | None = None) -> Predictor:
    """All networks side by side in one that has the units of all: the mean of their logits.

    Args:
        sites: the networks.
        weights: (sites, classes) by which a site's outgoing weights and biases are multiplied; None
            for ones.
    """
    weights = np.ones((len(sites), 1)) if weights is None else weights

    def predict(x: NDArray[np.float32]) -> Array:
        total = sum(own * logits(site, x) for site, own in zip(sites, weights, strict=True))
        return softmax(total / len(sites), axis=1)

    return predict


def ensemble(sites: Sequence[Network]) -> Predictor:
    """The mean of the networks' probabilities."""
    return lambda x: np.mean([softmax(logits(site, x), axis=1) for site in sites], axis=0)
