"""Building a fused network from units that were matched, one layer after another."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from posterity.arrays.typing import Float
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
ROWS = 20_000  # Places of images that a refit looks at, at most
KEPT = 2**18  # Numbers of all sites' last layers, which each factor of a ledger has a place for
RIDGE = 1e-4
"""How strongly a refit holds on to its start, relative to the units' mean square output."""


class FusedLayer(NamedTuple):
    """One layer of the fused network, rows being inputs, with a last one for the bias; the share
    (sites, units) of each site in each unit, and each one's part of the mean (sites, rows, units),
    or their sum alone (1, rows, units).
    """

    mean: Float[Array, "rows units"]
    variance: Float[Array, "rows units"]
    share: Float[Array, "sites units"]
    parts: Float[Array, "parts rows units"]


def holders(
    labels: Labels, mass: Sequence[Array], locals_: Sequence[Local], size: int
) -> Float[Array, "sites units"]:
    """Shares of the sites in each fused unit, by the mass of their units; they sum to one."""
    share = np.zeros((len(labels), size))
    for row, own, weight, local in zip(share, labels, mass, locals_, strict=True):
        row[own[own >= 0]] = weight[own >= 0] * local.weight
    return share / share.sum(0)


def first_layer(
    sites: Iterable[Placed], share: Float[Array, "sites units"], divergence: Divergence, apart: bool
) -> FusedLayer:
    """The weighted barycentre of what comes into the first layer's units: with reverse KL
    precisions are averaged, and means by precision; with forward KL moments.
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
        if not reverse:  # about the mean so far: differences of squares would lose small variances
            away = own.mean - centre
            centre = centre + away * weight / np.where(total > 0, total, 1.0)
            spread = spread + weight * (own.variance + away * (own.mean - centre))
        _append(parts, weight * own.mean, apart)
    together = np.stack(parts) / total
    return FusedLayer(together.sum(0), 1 / total if reverse else spread / total, share, together)


def later_layer(
    sites: Iterable[Placed], share: Float[Array, "sites units"], apart: bool, pooled: bool
) -> FusedLayer:
    """Sums of the sites' weights, each by its share; a site has zero where it has no unit.

    A weight of one site among several then has its share of that site's mean and variance. Where
    no site has it, or as far as they do not, zero is as sure as the surest weight of the layer.
    ``pooled`` gives the sum's variance where sites err independently, each by its share.
    """
    variance: Any = 0.0
    whole: Any = 0.0
    floor, parts = np.inf, []
    for own, counts in zip(sites, share, strict=True):
        weight = own.has * counts
        squared = weight * counts if pooled else weight
        floor = min(floor, float(own.variance[own.has].min(initial=np.inf)))
        variance, whole = variance + squared * own.variance, whole + weight
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
    """The fused network: its layers, their weights, and by hidden layer its units' labels."""

    layers: Layers
    fused: list[FusedLayer]
    labels: list[Labels]

    def arrays(self, kind: str) -> Arrays:
        """The ``"mean"`` or the ``"variance"`` of each layer, as :class:`Layers` has them."""
        rows = (getattr(own, kind) for own in self.fused)
        return [as_arrays(self.layers, index, own) for index, own in enumerate(rows)]

    def kept(self) -> tuple[Layers, Float[Array, "sites n"]]:
        """The layers with each site's last layer beside, and what each site has to say there: its
        part of the fused one over its share. Nothing is kept of so many sites that their layers are
        many numbers, and more than the network's.
        """
        last, plain = self.fused[-1], self.layers
        layers = dataclasses.replace(plain, sites=len(last.share))
        if isinstance(plain[-1], Conv) or layers.size - plain.size > max(plain.size, KEPT):
            return plain, np.zeros((len(last.share), 0))
        own = last.parts / last.share[:, None]
        numbers = [np.zeros((len(own), *each.shape)) for each in (own, last.share)]
        for site, pair in enumerate(zip(own, last.share, strict=True)):
            for number, value in zip(numbers, pair, strict=True):
                number[site, site] = value
        return layers, np.concatenate([each.reshape(len(own), -1) for each in numbers], axis=1)


def as_arrays(layers: Layers, index: int, rows: Float[Array, "rows units"]) -> dict[str, Array]:
    """A layer's own arrays from rows of inputs, of which a last one is the bias."""
    layer = layers[index]
    kernel, bias = (rows[:-1], {"bias": rows[-1]}) if layer.bias else (rows, {})
    return bias | {"kernel": kernel.reshape(layer.kernel)}


class Builder:
    """Builds the fused network layer after layer, as its units are matched.

    ``flow`` is what comes out of the layers so far, on the inputs of a refit; with ``apart`` each
    site's part of everything is kept, with ``pooled`` variances are a product's.
    """

    def __init__(
        self,
        targets: Targets,
        divergence: Divergence,
        refit: bool,
        apart: bool = False,
        pooled: bool = False,
    ):
        self.targets, self.divergence, self.refit = targets, divergence, refit
        self.apart, self.pooled = apart, pooled
        self.locals = targets.locals
        self.layers = self.locals[0].layers
        self.fused: list[FusedLayer] = []
        self.labels: list[Labels] = []
        self.size = self.layers.by_unit(0)[1]
        self.before: Labels = [np.arange(self.size)] * len(self.locals)
        self.flow = np.asarray(targets.x, float)

    def hidden(self, labels: Labels, mass: Sequence[Array]) -> None:
        """Adds a hidden layer whose units have these labels."""
        index, size = len(self.fused), 1 + max(int(own.max()) for own in labels)
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
        self.before, self.size = labels, size
        own = as_arrays(self.layers, index, layer.mean)
        self.flow = after(self.layers[index], preactivation(self.layers[index], own, self.flow))

    def last(self) -> Combined:
        """Adds the last layer, which ends it."""
        targets, outputs = self.targets, np.arange(self.layers.outputs)
        sites = self._placed([outputs] * len(self.locals), len(outputs))
        pairs = zip(targets.shares, targets.pre, strict=True)
        wanted = (counts * pre[-1] for counts, pre in pairs)
        layer = self._refitted(self.outgoing(sites, targets.shares), wanted)
        return Combined(self.layers, [*self.fused, layer], self.labels)

    def outgoing(self, sites: Iterable[Placed], share: Float[Array, "sites units"]) -> FusedLayer:
        """The last layer before it is refitted."""
        return later_layer(sites, share, self.apart, self.pooled)

    def _placed(self, labels: Labels, size: int) -> Iterable[Placed]:
        index = len(self.fused)
        return (
            placed(local, index, before, own, (self.size, size))
            for local, before, own in zip(self.locals, self.before, labels, strict=True)
        )

    def _wanted(self, index: int, labels: Labels, share: Array) -> Iterable[Array]:
        """Each site's part of what goes into the activation of a fused unit."""
        for pre, own, counts in zip(self.targets.pre, labels, share, strict=True):
            target = np.zeros((*pre[index].shape[:-1], share.shape[1]))
            kept = own >= 0
            target[..., own[kept]] = pre[index][..., kept] * counts[own[kept]]
            yield target

    def _refitted(self, layer: FusedLayer, wanted: Iterable[Array]) -> FusedLayer:
        """Ridge regression of the sites' parts of the target (n, *places, units) on the units'
        outputs, towards where the layer starts: linear in the parts, which it keeps.
        """
        if not self.refit:
            return layer
        like = self.layers[len(self.fused)]
        seen = features(like, self.flow)
        seen = seen.reshape(-1, seen.shape[-1])
        step = -(-len(seen) // ROWS)
        targets = (target.reshape(-1, target.shape[-1])[::step] for target in wanted)
        apart: Iterable[Array] = targets if self.apart else [sum(targets)]  # pyright: ignore
        seen = seen[::step]
        if like.bias:
            seen = np.concatenate([seen, np.ones((len(seen), 1))], 1)
        gram = seen.T @ seen
        scale = np.trace(gram) / len(gram)
        if not scale > 0:
            return layer
        gram[np.diag_indices(len(gram))] += RIDGE * scale
        solve = functools.partial(scipy.linalg.cho_solve, scipy.linalg.cho_factor(gram))
        pairs = zip(layer.parts, apart, strict=True)
        parts = np.stack([own + solve(seen.T @ (target - seen @ own)) for own, target in pairs])
        return layer._replace(mean=parts.sum(0), parts=parts)


def incoming_cost(
    locals_: Sequence[Local], combined: Combined, index: int, divergence: Divergence
) -> float:
    """Summed KL in nats, on one side, between what comes into fused units and into the sites' own,
    over the weights that a site has.
    """
    layers, total = combined.layers, 0.0
    fused = combined.fused[index]
    for j, local in enumerate(locals_):
        before = combined.labels[index - 1][j] if index else np.arange(layers.by_unit(0)[1])
        own = placed(local, index, before, combined.labels[index][j], layers.by_unit(index)[1:])
        mean, variance = own.mean[own.has], own.variance[own.has]
        centre, spread = fused.mean[own.has], fused.variance[own.has]
        if divergence is Divergence.FORWARD:
            mean, variance, centre, spread = centre, spread, mean, variance
        ratio = spread / variance
        total += float((ratio - 1 - np.log(ratio) + (mean - centre) ** 2 / variance).sum() / 2)
    return total
