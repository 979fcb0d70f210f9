"""The fused network as a prior plus one factor per site, in terms of the fused units."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arrays.canonical import canonical_mean
from posterity.families.layers import Layers
from posterity.families.network import Network
from posterity.fusion.matching import Rule
from posterity.fusion.networks.combine import Combined, as_arrays
from posterity.fusion.networks.targets import Local, placed
from posterity.ledger import Ledger

Array = np.ndarray
LEAVES = ("precision_mean", "precision")
RECORD = 2.0**-30
"""Precision of the sites' records that are stored after the weights. It is almost zero, and a power
of two, so that products with it are exact."""


def fused_prior(locals_: Sequence[Local], prior: Network | None, layers: Layers) -> Network | None:
    """Return one prior over the fused network: the average over units, the same for all units.

    Return None if the prior of a site is unknown.
    """
    known = [local.prior for local in locals_ if local.prior is not None]
    if len(known) < len(locals_):
        return None
    own = known if prior is None else [prior]
    mean, precision = (
        _alike([(p.layers, getattr(p, name)) for p in own], layers) for name in LEAVES
    )
    return Network(mean, precision, layers)


def of_other_prior(
    priors: Mapping[str, Any], common: Network | None = None, *, same: float = 1e-9
) -> tuple[str, ...]:
    """Return the sites whose prior differs from the common one (by default the first site's) with
    its units averaged, by more than the relative tolerance ``same``. Priors may have different
    widths.
    """
    base: Any = next(iter(priors.values())) if common is None else common
    names = []
    for name, mine in priors.items():
        alike = (_alike([(base.layers, getattr(base, leaf))], mine.layers) for leaf in LEAVES)
        pairs = zip(alike, (getattr(mine, leaf) for leaf in LEAVES), strict=True)
        if not all(np.allclose(a, b, rtol=same, atol=same * np.abs(b).max()) for a, b in pairs):
            names.append(name)
    return tuple(sorted(names))


def _alike(leaves: Sequence[tuple[Layers, Array]], layers: Layers) -> Array:
    """Average leaves over hidden units and sites, and broadcast the average to other widths."""
    arrays = []
    trees = [(flat, flat.unravel(np.asarray(leaf))) for flat, leaf in leaves]

    def mean(parts, axes):
        return canonical_mean(np.stack([p.mean(axes, keepdims=True) for p in parts]))

    for index, layer in enumerate(layers.layers):
        last = index == len(layers) - 1
        inner = () if index == 0 else (1,)
        kernels = [tree[index]["kernel"].reshape(flat.by_unit(index)) for flat, tree in trees]
        kernel = mean(kernels, inner if last else (2, *inner))
        own = {"kernel": np.broadcast_to(kernel, layers.by_unit(index)).reshape(layer.kernel)}
        if layer.bias:
            bias = mean([tree[index]["bias"] for _, tree in trees], () if last else (0,))
            own["bias"] = np.broadcast_to(bias, (layer.outputs,))
        arrays.append(own)
    return layers.ravel(arrays)


def beside(network: Network, layers: Layers, kept: Array, precision: float) -> Network:
    """Append the sites' records to the weights of a network, or of a factor of one."""
    mean = np.concatenate([network.precision_mean, RECORD * kept])
    known = np.concatenate([network.precision, np.full(kept.size, precision)])
    return Network(mean, known, layers)


def as_ledger(combined: Combined, locals_: Sequence[Local], prior: Network, rule: Rule) -> Ledger:
    """Return the ledger of the prior and one factor per site, which add up to the fused network.

    The mean of each weight is a sum of the sites' parts; this includes the refit, which is linear.
    With barycentre precision ``Λ`` and prior precision ``Λ₀``, site ``j`` of share ``a_j`` has the
    factor ``(Λ m_j - a_j Λ₀ m₀, a_j (Λ - Λ₀))``: without it, the others' parts stay, with less
    precision. In the first layer of a product, the factor's precision is the site's gain instead.
    Weights from a unit of one site belong to that site. A factor has the site's last layer too.
    """
    layers, kept = combined.kept()
    flat = [_parts(combined, index, locals_, prior, rule) for index in range(len(combined.fused))]
    factors = {}
    for j, local in enumerate(locals_):
        pieces = [[own[kind][j] for own in flat] for kind in (0, 1)]
        mean, precision = (
            combined.layers.ravel([as_arrays(combined.layers, i, p) for i, p in enumerate(piece)])
            for piece in pieces
        )
        factor = Network(mean, precision, combined.layers)
        factors[local.name] = beside(factor, layers, kept[j], 0.0)
    start = beside(prior, layers, np.zeros_like(kept[0]), RECORD)
    return Ledger(start).extend(factors, independent=False)


def _parts(
    combined: Combined, index: int, locals_: Sequence[Local], prior: Network, rule: Rule
) -> tuple[Array, Array]:
    """Return both leaves (sites, rows, units) of the sites' factors for one layer."""
    layer = combined.fused[index]
    base = _rows(prior, index)
    weight = layer.share[:, None, :]
    if rule is Rule.PRODUCT and index == 0:
        before, size = combined.layers.by_unit(0)[1:]  # gains of precision, placed like means
        pairs = zip(locals_, combined.labels[0], strict=True)
        known = ((local._replace(mean=local.gained() or []), to) for local, to in pairs)
        here = np.arange(before)
        sizes = (before, size)
        gained = np.stack([placed(own, 0, here, to, sizes).mean for own, to in known])
        total = base[1] + gained.sum(0)
    else:
        total = 1 / layer.variance
        gained = weight * (total - base[1])
    return total * _owned(combined, index) - weight * base[0], gained


def _owned(combined: Combined, index: int) -> Array:
    """Return each site's part of the means; weights from a unit of one site are that site's."""
    layer = combined.fused[index]
    if index == 0:
        return layer.parts
    positions, size, _ = combined.layers.by_unit(index)
    has = np.zeros((len(layer.parts), size), bool)
    for row, labels in zip(has, combined.labels[index - 1], strict=True):
        row[labels[labels >= 0]] = True
    alone = np.flatnonzero(has.sum(0) == 1)
    rows = (np.arange(positions)[:, None] * size + alone).reshape(-1)
    owner = np.tile(has[:, alone].argmax(0), positions)
    parts = layer.parts.copy()
    parts[:, rows] = 0.0
    parts[owner, rows] = layer.mean[rows]
    return parts


def _rows(network: Network, index: int) -> list[Array]:
    """Return both leaves of a layer as rows of inputs, the bias last."""
    both = [network.layers.unravel(np.asarray(getattr(network, n)))[index] for n in LEAVES]
    units = network.layers[index].outputs
    return [
        np.vstack([own[name].reshape(-1, units) for name in ("kernel", "bias") if name in own])
        for own in both
    ]
