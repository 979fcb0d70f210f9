"""Construction of a fused network from matched units, layer by layer."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from posterity.arrays.typing import Float
from posterity.families import DiagonalGaussian
from posterity.families.layers import Conv, Layers
from posterity.fusion.geometry import Divergence
from posterity.fusion.networks.targets import (
    Arrays,
    Labels,
    Local,
    Placed,
    Targets,
    after,
    features,
    placed,
    preactivation,
)

Array = np.ndarray
KEPT = 2**18  # Size of all sites' last layers up to which each factor of a ledger stores them


class FusedLayer(NamedTuple):
    """One layer of the fused network: its rows are inputs, the last row the bias. ``share`` is the
    share of each site in each unit; ``parts`` are the sites' parts of the mean (sites, rows,
    units), or only their sum (1, rows, units).
    """

    mean: Float[Array, "rows units"]
    variance: Float[Array, "rows units"]
    share: Float[Array, "sites units"]
    parts: Float[Array, "parts rows units"]


def holders(
    labels: Labels, mass: Sequence[Array], locals_: Sequence[Local], size: int
) -> Float[Array, "sites units"]:
    """Return the shares of sites in each fused unit, by their units' mass; they sum to one."""
    share = np.zeros((len(labels), size))
    for row, own, weight, local in zip(share, labels, mass, locals_, strict=True):
        row[own[own >= 0]] = weight[own >= 0] * local.weight
    return share / share.sum(0)


def first_layer(
    sites: Iterable[Placed], share: Float[Array, "sites units"], divergence: Divergence, apart: bool
) -> FusedLayer:
    """Return the weighted barycentre of the first layer's weights: for reverse KL natural
    parameters are averaged, for forward KL moments.
    """
    reverse = divergence is Divergence.REVERSE
    total: Any = 0.0
    centre: Any = 0.0
    spread: Any = 0.0
    parts: list[Array] = []
    for own, counts in zip(sites, share, strict=True):
        weight = own.has * counts
        if reverse:
            weight = np.divide(weight, own.variance, out=np.zeros_like(own.mean), where=own.has)
        total = total + weight
        if not reverse:  # about the running mean: differences of squares would lose small variances
            away = own.mean - centre
            centre = centre + away * weight / np.where(total > 0, total, 1.0)
            spread = spread + weight * (own.variance + away * (own.mean - centre))
        _append(parts, weight * own.mean, apart)
    together = np.stack(parts) / total
    return FusedLayer(together.sum(0), 1 / total if reverse else spread / total, share, together)


def later_layer(
    sites: Iterable[Placed], share: Float[Array, "sites units"], apart: bool, pooled: bool
) -> FusedLayer:
    """Return sums of the sites' weights by share; a weight that a site lacks is zero there.

    So a weight of a single site has that site's mean and variance times its share. For the shares
    without the weight, a zero with the least variance of the layer is used. With ``pooled``, the
    variance is that of a weighted sum of independent weights.
    """
    variance: Any = 0.0
    whole: Any = 0.0
    floor = np.inf
    parts = []
    for own, counts in zip(sites, share, strict=True):
        weight = own.has * counts
        squared = weight * counts if pooled else weight
        floor = min(floor, float(own.variance[own.has].min(initial=np.inf)))
        variance = variance + squared * own.variance
        whole = whole + weight
        _append(parts, weight * own.mean, apart)
    together = np.stack(parts)
    variance = variance + np.maximum(1 - whole, 0) * floor
    return FusedLayer(together.sum(0), variance, share, together)


def _append(parts: list[Array], part: Array, apart: bool) -> None:
    if apart or not parts:
        parts.append(part)
    else:
        parts[0] = parts[0] + part


class Combined(NamedTuple):
    """The fused network: its layers, their weights, and the labels of each hidden layer."""

    layers: Layers
    fused: list[FusedLayer]
    labels: list[Labels]

    def arrays(self, kind: str) -> Arrays:
        """Return the ``"mean"`` or ``"variance"`` of each layer, in the layout of ``Layers``."""
        rows = (getattr(own, kind) for own in self.fused)
        return [as_arrays(self.layers, index, own) for index, own in enumerate(rows)]

    def kept(self) -> tuple[Layers, Float[Array, "sites n"]]:
        """Return layers with room for each site's last layer, and the site's record: its part of
        the fused last layer divided by its share, and its share. Nothing is kept if the records
        have more than :data:`KEPT` numbers and more than the network.
        """
        last = self.fused[-1]
        plain = self.layers
        layers = dataclasses.replace(plain, sites=len(last.share))
        if isinstance(plain[-1], Conv) or layers.size - plain.size > max(plain.size, KEPT):
            return plain, np.zeros((len(last.share), 0))
        own = last.parts / last.share[:, None]
        records = [each.reshape(len(own), -1) for each in (own, last.share)]
        return layers, np.hstack([scipy.linalg.block_diag(*each) for each in records])


def as_arrays(layers: Layers, index: int, rows: Float[Array, "rows units"]) -> dict[str, Array]:
    """Return a layer's arrays from rows of inputs, the last of which is the bias, if any."""
    layer = layers[index]
    kernel, bias = (rows[:-1], {"bias": rows[-1]}) if layer.bias else (rows, {})
    return bias | {"kernel": kernel.reshape(layer.kernel)}


class Builder:
    """A builder of the fused network, which adds layers as their units are matched.

    ``flow`` is the output of the layers so far on the inputs of refits. With ``apart`` the part of
    each site is kept; with ``pooled`` variances are those of a product.
    """

    def __init__(
        self,
        targets: Targets,
        divergence: Divergence,
        refit: bool,
        apart: bool = False,
        pooled: bool = False,
    ):
        self.targets = targets
        self.divergence = divergence
        self.refit = refit
        self.apart = apart
        self.pooled = pooled
        self.locals = targets.locals
        self.layers = self.locals[0].layers
        self.fused: list[FusedLayer] = []
        self.labels: list[Labels] = []
        self.size = self.layers.by_unit(0)[1]
        self.before: Labels = [np.arange(self.size)] * len(self.locals)
        self.flow = np.asarray(targets.x, float)

    def hidden(self, labels: Labels, mass: Sequence[Array]) -> None:
        """Add a hidden layer whose units have these labels."""
        index = len(self.fused)
        size = 1 + max(int(own.max()) for own in labels)
        share = holders(labels, mass, self.locals, size)
        sites = self._placed(labels, size)
        widths = [*self.layers.widths[:index], size, *self.layers.widths[index + 1 :]]
        self.layers = self.locals[0].layers.with_widths(widths)
        if index == 0:
            layer = first_layer(sites, share, self.divergence, self.apart)
        else:
            layer = later_layer(sites, share, self.apart, self.pooled)
            layer = self._refitted(layer, self._wanted(index, labels, share))
        self.fused.append(layer)
        self.labels.append(labels)
        self.before = labels
        self.size = size
        own = as_arrays(self.layers, index, layer.mean)
        self.flow = after(self.layers[index], preactivation(self.layers[index], own, self.flow))

    def last(self) -> Combined:
        """Add the last layer and return the network."""
        targets = self.targets
        outputs = np.arange(self.layers.outputs)
        sites = self._placed([outputs] * len(self.locals), len(outputs))
        pairs = zip(targets.shares, targets.pre, strict=True)
        wanted = (counts * pre[-1] for counts, pre in pairs)
        layer = self._refitted(self.outgoing(sites, targets.shares), wanted)
        return Combined(self.layers, [*self.fused, layer], self.labels)

    def outgoing(self, sites: Iterable[Placed], share: Float[Array, "sites units"]) -> FusedLayer:
        """Return the last layer before its refit."""
        return later_layer(sites, share, self.apart, self.pooled)

    def _placed(self, labels: Labels, size: int) -> Iterable[Placed]:
        index = len(self.fused)
        return (
            placed(local, index, before, own, (self.size, size))
            for local, before, own in zip(self.locals, self.before, labels, strict=True)
        )

    def _wanted(self, index: int, labels: Labels, share: Array) -> Iterable[Array]:
        """Yield each site's part of the arguments of fused activations."""
        for pre, own, counts in zip(self.targets.pre, labels, share, strict=True):
            target = np.zeros((*pre[index].shape[:-1], share.shape[1]))
            kept = own >= 0
            target[..., own[kept]] = pre[index][..., kept] * counts[own[kept]]
            yield target

    def _refitted(
        self,
        layer: FusedLayer,
        wanted: Iterable[Array],
        *,
        most: int = 20_000,
        ridge: float = 1e-4,
    ) -> FusedLayer:
        """Refit a layer by ridge regression, shrunk to its start, of the sites' parts of the target
        (n, *places, units) on the inputs of the layer, on about ``most`` rows (inputs, or image
        places). It is linear in the parts and keeps them. The penalty of the deviation from the
        start is relative to the mean square of the inputs.
        """
        if not self.refit:
            return layer
        like = self.layers[len(self.fused)]
        seen = features(like, self.flow)
        seen = seen.reshape(-1, seen.shape[-1])
        step = -(-len(seen) // most)
        targets = (target.reshape(-1, target.shape[-1])[::step] for target in wanted)
        apart: Iterable[Array] = targets if self.apart else [sum(targets)]  # pyright: ignore
        seen = seen[::step]
        if like.bias:
            seen = np.concatenate([seen, np.ones((len(seen), 1))], 1)
        gram = seen.T @ seen
        scale = np.trace(gram) / len(gram)
        if not scale > 0:
            return layer
        gram[np.diag_indices(len(gram))] += ridge * scale
        solve = functools.partial(scipy.linalg.cho_solve, scipy.linalg.cho_factor(gram))
        pairs = zip(layer.parts, apart, strict=True)
        parts = np.stack([own + solve(seen.T @ (target - seen @ own)) for own, target in pairs])
        return layer._replace(mean=parts.sum(0), parts=parts)


def incoming_cost(
    locals_: Sequence[Local], combined: Combined, index: int, divergence: Divergence
) -> float:
    """Return the summed KL, in nats and the given direction, between incoming weights of fused
    units and those of the sites' units, over the weights that a site has.
    """
    layers = combined.layers
    total = 0.0
    fused = combined.fused[index]
    for j, local in enumerate(locals_):
        before = combined.labels[index - 1][j] if index else np.arange(layers.by_unit(0)[1])
        own = placed(local, index, before, combined.labels[index][j], layers.by_unit(index)[1:])
        pairs = ((fused.mean, fused.variance), (own.mean, own.variance))
        one, other = (DiagonalGaussian.from_standard(m[own.has], v[own.has]) for m, v in pairs)
        total += float(divergence.between(one, other))
    return total
