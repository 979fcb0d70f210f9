"""The paper's setting for networks: a unit is one Gaussian over what comes in and what goes out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import posterity
from experiments.data import Array
from posterity.families import DiagonalGaussian, Network, Plate
from posterity.networks.layers import Layers


def kl_fusion(sites: Sequence[Network], most: int) -> Network:
    """KL-fusion of the units of networks with one hidden layer; output biases are averaged.

    Args:
        sites: local posteriors.
        most: fused units at most; the paper's penalty decides how many.
    """
    plates = {str(number): Plate(units(site)) for number, site in enumerate(sites)}
    fused = posterity.fuse(plates, matching="kl-fusion", components=most).posterior
    found = _parts(fused.components, sites[0].layers)
    biases = [site.layers.unravel(site.mean)[1]["bias"] for site in sites]
    spreads = [site.layers.unravel(site.variance)[1]["bias"] for site in sites]
    return _network(found, np.mean(biases, axis=0), np.mean(spreads, axis=0))


def units(site: Network) -> DiagonalGaussian:
    """A batch (units,) of Gaussians over incoming weights, bias and outgoing weights."""
    return DiagonalGaussian.from_standard(*(_flat(site, leaf) for leaf in (site.mean, site.variance)))


def _flat(site: Network, leaf: Array) -> Array:
    first, last = site.layers.unravel(leaf)
    return np.concatenate([first["kernel"].T, first["bias"][:, None], last["kernel"]], axis=1)
