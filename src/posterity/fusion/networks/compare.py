"""Two networks of one shape, their units in one order."""

from typing import Any

import numpy as np
import scipy.optimize

from posterity.errors import ParameterError, StructureError
from posterity.families.layers import Layers
from posterity.families.network import Network

Array = np.ndarray


def in_order_of(network: Network, like: Network) -> Network:
    """The network with its units called as those of ``like`` that they are closest to.

    Layer after layer, by the assignment with the least summed squares, in standard deviations,
    of what comes in and, before the last layer, of what goes out.

    Raises:
        StructureError: for networks of other layers or widths.
        ParameterError: if weights are so large that their distances overflow.
    """
    if network.layers != like.layers:
        raise StructureError(
            found=f"networks of different layers: {_told(like.layers)} and {_told(network.layers)}",
            expected="the same layers and widths",
            fix="Compare what they predict instead.",
        )
    for index, width in enumerate(like.layers.widths):
        mine, theirs = _units(network, index), _units(like, index)
        scale = np.concatenate([mine[1], theirs[1]]).mean(0)
        rows, columns = mine[0] / np.sqrt(scale), theirs[0] / np.sqrt(scale)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = (rows**2).sum(1)[:, None] + (columns**2).sum(1) - 2 * rows @ columns.T
        if not np.isfinite(squares).all():
            raise ParameterError(
                found="networks whose weights are so far apart that their distance overflows",
                expected="means and variances of a usual size",
                fix="Check how the networks were trained, and the scale of their data.",
            )
        _, labels = scipy.optimize.linear_sum_assignment(squares)
        network = network.relabel(labels, width, axes=(index,))
    return network


def _units(network: Network, index: int) -> tuple[Array, Array]:
    """Means and variances (units, d) of what belongs to each unit and has an order already."""
    layers, found = network.layers, []
    for leaf in (network.mean, network.variance):
        arrays: Any = layers.unravel(np.asarray(leaf))
        own = [np.moveaxis(a, -1, 0).reshape(a.shape[-1], -1) for a in arrays[index].values()]
        if index + 2 == len(layers):
            kernel = arrays[index + 1]["kernel"].reshape(layers.by_unit(index + 1))
            own.append(np.moveaxis(kernel, 1, 0).reshape(kernel.shape[1], -1))
        found.append(np.concatenate(own, axis=1))
    return found[0], found[1]


def _told(layers: Layers) -> str:
    kinds = [type(layer).__name__ for layer in layers.layers]
    return f"{', '.join(kinds)} of widths {layers.widths}"
