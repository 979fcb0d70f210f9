"""The sites' networks in an order of their own, layer by layer."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.canonical import content_hashes
from posterity.arrays.typing import Float, Int
from posterity.families.layers import Layers
from posterity.families.network import Network
from posterity.fusion.matching import scrambled
from posterity.fusion.sites import Site

Array = np.ndarray
Arrays = list[dict[str, Array]]


class Local(NamedTuple):
    """One site: means, variances and the prior's precisions of each layer.

    ``order`` has, for each hidden layer, the site's own index of each unit; ``whole`` is how many
    units it had; ``weight`` is the site's in averages.
    """

    name: str
    layers: Layers
    mean: Arrays
    variance: Arrays
    prior: Network | None
    order: list[Int[Array, " _"]]
    weight: float
    whole: tuple[int, ...]

    def incoming(self, index: int, kind: str = "mean") -> tuple[Array, Array | None]:
        """A layer's kernel as (positions, units before, units), and its bias."""
        own = getattr(self, kind)[index]
        return own["kernel"].reshape(self.layers.by_unit(index)), own.get("bias")

    def gained(self) -> Arrays | None:
        """The precision that each weight's posterior has beyond its prior's; None if unknown."""
        if self.prior is None:
            return None
        before = self.layers.unravel(np.asarray(self.prior.precision))
        return [
            {name: 1 / own[name] - base[name] for name in own}
            for own, base in zip(self.variance, before, strict=True)
        ]


def in_order(
    sites: Mapping[str, Site],
    weights: Float[Array, " sites"],
    drop: float | None,
    keep: bool = False,
) -> list[Local]:
    """Sites by content, and so each one's units: whatever came first makes no difference.

    Units of which no outgoing weight is ``drop`` standard deviations from zero are left out.
    With ``keep`` units stay in the order in which they came, where that means something.
    """
    found = [
        _local(name, site, float(weight), drop, keep)
        for (name, site), weight in zip(sites.items(), weights, strict=True)
    ]
    return sorted(found, key=lambda local: (local.layers.widths, _digest(local), local.name))


def _local(name: str, site: Site, weight: float, drop: float | None, keep: bool) -> Local:
    network: Any = site.posterior
    prior: Any = site.prior
    whole, order = network.layers.widths, []
    for index, width in enumerate(network.layers.widths):
        kept = np.arange(width) if drop is None else _alive(network, index, drop)
        own = kept if keep else kept[np.lexsort(_contents(network, index)[:, kept])]
        labels = np.full(width, -1)
        labels[own] = np.arange(len(own))
        network = network.relabel(labels, len(own), axes=(index,))
        prior = None if prior is None else prior.relabel(labels, len(own), axes=(index,))
        order.append(own)
    mean, variance = network.layers.unravel(network.mean), network.layers.unravel(network.variance)
    return Local(name, network.layers, mean, variance, prior, order, weight, whole)


def _contents(network: Network, index: int) -> Array:
    """Keys (2, units): of what comes in; and of what goes out, whose order is not yet known."""
    layers = network.layers
    words = []
    for leaf in (network.precision_mean, network.precision):
        arrays = layers.unravel(leaf)
        width = layers.widths[index]
        words += [np.moveaxis(a, -1, 0).reshape(width, -1) for a in arrays[index].values()]
    after = [
        layers.unravel(leaf)[index + 1]["kernel"].reshape(layers.by_unit(index + 1))
        for leaf in (network.precision_mean, network.precision)
    ]
    out = np.stack(after)  # (2, positions, units, units after)
    units = np.moveaxis(out, 2, 0)  # (units, 2, positions, after)
    pieces = np.moveaxis(units, -1, 1).reshape(units.shape[0] * units.shape[-1], -1)
    sums = scrambled(content_hashes(pieces)).reshape(len(units), -1)
    return np.stack([sums.sum(1, dtype=np.uint64), content_hashes(np.concatenate(words, 1))])


def _alive(network: Network, index: int, drop: float) -> Int[Array, " kept"]:
    """Units with an outgoing weight that is not lost in its noise; at least one."""
    kernel = network.layers.by_unit(index + 1)
    ratio = np.abs(network.mean) * np.sqrt(network.precision)
    ratio = network.layers.unravel(ratio)[index + 1]["kernel"].reshape(kernel).max((0, 2))
    kept = np.flatnonzero(ratio >= drop)
    return kept if len(kept) else np.array([int(ratio.argmax())])


def _digest(local: Local) -> int:
    flat = np.concatenate([local.layers.ravel(local.mean), local.layers.ravel(local.variance)])
    return int(content_hashes(flat[None])[0])


def by_site(locals_: Sequence[Local], labels: Sequence[Array], index: int) -> dict[str, Array]:
    """Labels of a layer's units in the sites' own order, by name; -1 for what was dropped."""
    found = {}
    for local, own in zip(locals_, labels, strict=True):
        given = np.full(local.whole[index], -1)
        given[local.order[index]] = own
        found[local.name] = given
    return dict(sorted(found.items()))
