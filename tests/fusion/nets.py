"""Random networks, and the same with their units in another order."""

import numpy as np

from posterity.families import Network
from posterity.families.layers import Conv, Dense, Layers
from posterity.ledger import Ledger

TWO = Layers.dense(6, 5, 4, 3)
LENET = Layers(
    (
        Conv((3, 3), 1, 3, pool=2),
        Conv((2, 2), 3, 4, padding="same"),
        Dense(36, 5),
        Dense(5, 3, "identity"),
    ),
    image=(8, 8, 1),
)


def random_network(layers, rng, prior=1.0):
    """A posterior that is surer than a prior of this variance."""
    mean = rng.normal(size=layers.size) / np.sqrt(6)
    return Network.from_standard(mean, prior * rng.uniform(0.01, 0.5, layers.size), layers)


def shuffled(network, rng):
    """The same network with its units called otherwise."""
    for index, width in enumerate(network.layers.widths):
        network = network.relabel(rng.permutation(width), width, axes=(index,))
    return network


def as_site(name, network, prior=1.0):
    """With the prior it is meant to have come from."""
    return Ledger.of_site(name, prior=Network.prior(network.layers, prior), posterior=network)
