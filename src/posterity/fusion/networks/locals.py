"""The sites' networks in an order of their own, layer by layer."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.canonical import content_hashes
from posterity.arrays.typing import Bool, Float, Int
from posterity.errors import ParameterError
from posterity.families.layers import Layers
from posterity.families.network import Network
from posterity.fusion.matching import scrambled
from posterity.fusion.sites import Site

Array = np.ndarray
Arrays = list[dict[str, Array]]
"""The arrays of each layer, as :meth:`Layers.unravel` gives them."""
Labels = Sequence[Int[Array, " _"]]
"""By site, the fused unit of each of its own; -1 for one that has no room."""
LARGEST = 1e30  # The largest weight: over a few layers, and squared, it is still finite


class Local(NamedTuple):
    """One site: means, variances and the prior's precisions of each layer.

    ``order`` has, for each hidden layer, the site's own index of each unit; ``weight`` is the
    site's in averages.
    """

    name: str
    layers: Layers
    mean: Arrays
    variance: Arrays
    prior: Network | None
    order: list[Int[Array, " _"]]
    weight: float

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


class Placed(NamedTuple):
    """One site's weights in a fused layer; ``has`` marks the rows and units that it has."""

    mean: Float[Array, "rows units"]
    variance: Float[Array, "rows units"]
    has: Bool[Array, "rows units"]


def placed(
    local: Local,
    index: int,
    before: Int[Array, " b"],
    after: Int[Array, " u"],
    sizes: Sequence[int],
) -> Placed:
    """A site's layer, its units and those before where they belong in ``sizes`` fused ones."""
    both, rows, columns = [], before >= 0, after >= 0
    for kind in ("mean", "variance"):
        kernel, bias = local.incoming(index, kind)
        out = np.zeros((len(kernel), *sizes))
        out[:, before[rows, None], after[columns]] = kernel[:, rows][:, :, columns]
        out = out.reshape(-1, sizes[1])
        if bias is not None:
            last = np.zeros((1, sizes[1]))
            last[0, after[columns]] = bias[columns]
            out = np.concatenate([out, last])
        both.append(out)
    mean, variance = both
    return Placed(mean, variance, variance > 0)


def in_order(
    sites: Mapping[str, Site], weights: Float[Array, " sites"], keep: bool = False
) -> list[Local]:
    """Sites by content, and so each one's units: whatever came first makes no difference.

    With ``keep`` units stay in the order in which they came, where that means something.

    Raises:
        ParameterError: for weights whose products over layers overflow, naming the site.
    """
    locals_ = [
        _local(name, site, float(weight), keep)
        for (name, site), weight in zip(sites.items(), weights, strict=True)
    ]

    def content(local: Local) -> tuple[Any, ...]:
        flat = np.concatenate([local.layers.ravel(local.mean), local.layers.ravel(local.variance)])
        return local.layers.widths, int(content_hashes(flat[None])[0]), local.name

    return sorted(locals_, key=content)


def _local(name: str, site: Site, weight: float, keep: bool) -> Local:
    network: Any = site.posterior
    prior: Any = site.prior
    size = float(np.abs(network.mean).max())
    if size > LARGEST:
        raise ParameterError(
            found=f"weights of {size:.2g} at site {name!r}",
            expected=f"means of at most {LARGEST:g}",
            fix="Check how the network was trained, and the scale of its data.",
        )
    order = []
    for index, width in enumerate(network.layers.widths):
        own = np.arange(width) if keep else np.lexsort(_contents(network, index))
        labels = np.argsort(own)
        network = network.relabel(labels, width, axes=(index,))
        prior = None if prior is None else prior.relabel(labels, width, axes=(index,))
        order.append(own)
    mean, variance = network.layers.unravel(network.mean), network.layers.unravel(network.variance)
    return Local(name, network.layers, mean, variance, prior, order, weight)


def _contents(network: Network, index: int) -> Array:
    """Keys (2, units): of what comes in; and of what goes out, whose order is not yet known."""
    layers = network.layers
    width, words, after = layers.widths[index], [], []
    for leaf in (network.precision_mean, network.precision):
        arrays = layers.unravel(leaf)
        words += [np.moveaxis(a, -1, 0).reshape(width, -1) for a in arrays[index].values()]
        after.append(arrays[index + 1]["kernel"].reshape(layers.by_unit(index + 1)))
    units = np.moveaxis(np.stack(after), 2, 0)  # (units, 2, positions, units after)
    pieces = np.moveaxis(units, -1, 1).reshape(units.shape[0] * units.shape[-1], -1)
    sums = scrambled(content_hashes(pieces)).reshape(len(units), -1)
    return np.stack([sums.sum(1, dtype=np.uint64), content_hashes(np.concatenate(words, 1))])
