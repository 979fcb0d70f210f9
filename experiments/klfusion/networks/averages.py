"""Averages of networks' weights: unit by unit as numbered, by Fisher information, and matched.

Matched averaging is after FedMA [wang2020fedma], in one shot. The paper retrains the later layers
at the sites each time a layer was matched, which takes as many rounds as there are layers; here
nothing is retrained. Its width grows by a nonparametric criterion; here it is that of the sites,
which must have the same.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment

from experiments.data import Array, Images
from posterity.families import Network
from posterity.families.layers import Layers
from posterity.models.forward import outputs

SWEEPS = 5
Arrays = list[dict[str, Any]]


def class_weights(sites: Sequence[Network], priors: Sequence[Network]) -> Array:
    """(sites, classes) by how much each site's posterior knows of each class; mean one over sites.

    Of each class the precision that the weights into its output gained over the prior.
    """
    last = lambda q: q.layers.unravel(q.precision)[-1]["kernel"]
    each = [last(q) - last(prior) for q, prior in zip(sites, priors, strict=True)]
    gained = np.stack([np.maximum(own, 0).reshape(-1, own.shape[-1]).sum(0) for own in each])
    return len(sites) * gained / gained.sum(0)


def weighted_average(sites: Sequence[Network], weights: Sequence[Any]) -> Network:
    """Each weight's weighted mean of means and of variances; weights (p,), or one, of each site."""
    total = np.sum(weights, axis=0)
    mean = np.sum([w * s.mean for s, w in zip(sites, weights, strict=True)], axis=0) / total
    variance = np.sum([w * s.variance for s, w in zip(sites, weights, strict=True)], axis=0) / total
    return Network.from_standard(mean, variance, sites[0].layers)


def fisher_information(network: Network, x: Images, key: Any, batch: int = 100) -> Array:
    """(p,) mean squared slope of the log probability of a label that the network itself draws.

    Averaging by it is Fisher merging [matena2022]; ``x`` (n, ...) are a site's own images.
    """
    total, mean = np.zeros(network.layers.size), jnp.asarray(network.mean, jnp.float32)
    for number, start in enumerate(range(0, len(x) - batch + 1, batch)):
        own = jax.random.fold_in(key, number)
        total += np.asarray(_squared_slopes(network.layers, mean, x[start : start + batch], own))
    return total / (len(x) // batch * batch)


@functools.partial(jax.jit, static_argnums=0)
def _squared_slopes(layers: Layers, z: Any, x: Any, key: Any) -> Any:
    drawn = jax.random.categorical(key, outputs(layers, z, x))

    def log_probability(z: Any, image: Any, label: Any) -> Any:
        return jax.nn.log_softmax(outputs(layers, z, image[None])[0])[label]

    each = jax.vmap(jax.grad(log_probability), (None, 0, 0))(z, x, drawn)
    return (each**2).sum(0)


def matched_average(sites: Sequence[Network]) -> Network:
    """Units reordered to agree, layer after layer, then averaged weight by weight.

    Units are compared by their incoming weights and bias, in the order of the layer before as
    already agreed, with the average over sites; the first site's order is where it begins.
    """
    layers = sites[0].layers
    ordered = [(layers.unravel(s.mean), layers.unravel(s.variance)) for s in sites]
    for index in range(len(layers) - 1):
        orders = _orders([_incoming(mean[index]) for mean, _ in ordered])
        ordered = [
            tuple(reordered(arrays, layers, index, order) for arrays in own)
            for own, order in zip(ordered, orders, strict=True)
        ]
    mean, variance = (
        np.mean([layers.ravel(arrays) for arrays in own], axis=0)
        for own in zip(*ordered, strict=True)
    )
    return Network.from_standard(mean, variance, layers)


def _incoming(layer: dict[str, Any]) -> Array:
    """(units, weights that come in and the bias)."""
    units = layer["kernel"].shape[-1]
    return np.concatenate([array.reshape(-1, units) for array in layer.values()]).T


def _orders(units: list[Array]) -> list[Array]:
    """For each site the order in which its units (k, d) are nearest to the average of all."""
    average = units[0]
    for _ in range(SWEEPS):
        orders = [linear_sum_assignment(-average @ own.T)[1] for own in units]
        average = np.mean([own[order] for own, order in zip(units, orders, strict=True)], axis=0)
    return orders


def reordered(arrays: Arrays, layers: Layers, index: int, order: Array) -> Arrays:
    """The same network with the units of hidden layer ``index`` in another order."""
    found = [dict(own) for own in arrays]
    found[index] = {name: array[..., order] for name, array in arrays[index].items()}
    after = arrays[index + 1]["kernel"]
    by_unit = after.reshape(layers.by_unit(index + 1))[:, order]
    found[index + 1]["kernel"] = by_unit.reshape(after.shape)
    return found
