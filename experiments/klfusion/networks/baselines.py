"""Other ways to make one network of several, from the means and variances of their weights."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data import Array, Images
from posterity.arrays.typing import KeyArray
from posterity.families import Network
from posterity.families.layers import Layers
from posterity.models.forward import outputs


def class_weights(sites: Sequence[Network], priors: Sequence[Network]) -> Array:
    """(sites, classes) by how much each site's posterior knows of each class; mean one over sites.

    Of each class the precision that the weights into its output gained over the prior.
    """
    gained = np.stack([_gained(s, prior) for s, prior in zip(sites, priors, strict=True)])
    return len(sites) * gained / gained.sum(0)


def _gained(site: Network, prior: Network) -> Array:
    last = len(site.layers) - 1
    own, before = (q.layers.unravel(q.precision)[last]["kernel"] for q in (site, prior))
    return np.maximum(own - before, 0).reshape(-1, own.shape[-1]).sum(0)


# --- averages, coordinate by coordinate ------------------------------------------------------


def plain_average(sites: Sequence[Network]) -> Network:
    """Means of means and variances, unit i with unit i, whatever it stands for."""
    return weighted_average(sites, [np.ones(site.layers.size) for site in sites])


def weighted_average(sites: Sequence[Network], weights: Sequence[Array]) -> Network:
    """Each weight's weighted mean of means and of variances; weights (p,) for each site."""
    total = np.sum(weights, axis=0)
    mean = np.sum([w * s.mean for s, w in zip(sites, weights, strict=True)], axis=0) / total
    variance = np.sum([w * s.variance for s, w in zip(sites, weights, strict=True)], axis=0) / total
    return Network.from_standard(mean, variance, sites[0].layers)


def fisher_information(network: Network, x: Images, key: KeyArray, batch: int = 100) -> Array:
    """(p,) mean squared slope of the log probability of a label that the network itself draws.

    Averaging by it is Fisher merging [matena2022]; ``x`` (n, ...) are a site's own images.
    """
    total, mean = np.zeros(network.layers.size), jnp.asarray(network.mean, jnp.float32)
    for number, start in enumerate(range(0, len(x) - batch + 1, batch)):
        own = jax.random.fold_in(key, number)
        total += np.asarray(_squared_slopes(network.layers, mean, x[start : start + batch], own))
    return total / (len(x) // batch * batch)


@functools.partial(jax.jit, static_argnums=0)
def _squared_slopes(layers: Layers, z: jax.Array, x: jax.Array, key: KeyArray) -> jax.Array:
    drawn = jax.random.categorical(key, outputs(layers, z, x))

    def log_probability(z: jax.Array, image: jax.Array, label: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(outputs(layers, z, image[None])[0])[label]

    each = jax.vmap(jax.grad(log_probability), (None, 0, 0))(z, x, drawn)
    return (each**2).sum(0)
