"""Matched averaging of networks layer by layer, after FedMA [wang2020fedma], in one shot.

The paper retrains the later layers at the sites each time a layer was matched, which takes as many
rounds as there are layers; here nothing is retrained. Its width grows by a nonparametric criterion;
here it is that of the sites, which must have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from experiments.data import Array
from posterity.families import Network
from posterity.families.layers import Layers

SWEEPS = 5
Arrays = list[dict[str, Any]]


def matched_average(sites: Sequence[Network]) -> Network:
    """Units reordered to agree, layer after layer, then averaged weight by weight.

    Units are compared by their incoming weights and bias, in the order of the layer before as
    already agreed, with the average over sites; the first site's order is where it begins.
    """
    layers = sites[0].layers
    ordered = aligned([(layers.unravel(s.mean), layers.unravel(s.variance)) for s in sites], layers)
    mean = np.mean([layers.ravel(mean) for mean, _ in ordered], axis=0)
    variance = np.mean([layers.ravel(variance) for _, variance in ordered], axis=0)
    return Network.from_standard(mean, variance, layers)


def aligned(sites: list[tuple[Arrays, Arrays]], layers: Layers) -> list[tuple[Arrays, Arrays]]:
    """Means and variances of each site in the agreed order of units."""
    for index in range(len(layers) - 1):
        orders = _orders([_incoming(mean[index]) for mean, _ in sites])
        sites = [
            (reordered(mean, layers, index, order), reordered(variance, layers, index, order))
            for (mean, variance), order in zip(sites, orders, strict=True)
        ]
    return sites


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
