"""Matching by another divergence: assignment and barycentres in turn, from where evidence began."""

import dataclasses

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.families import ExponentialFamily
from posterity.fusion.costs import finite
from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.geometry import middle, moved
from posterity.fusion.search import Found

Array = np.ndarray
SWEEPS = 50


def alternate(
    found: Found,
    members: ExponentialFamily,
    masses: Float[Array, " n"],
    divergence: Discrepancy,
    *,
    fixed: bool = False,
) -> Found:
    """Have components find the nearest barycentre, and barycentres the middle of theirs, in turn.

    The number of groups stays what it was. The summed divergence, which becomes the trace, falls at
    every turn; it ends where nothing changes, where it would not fall, or where a group would be
    left empty.

    Args:
        found: where to begin: components (N,) in their order there.
        members: the same components.
        masses: how much each weighs in its site.
        divergence: between a barycentre and a component.
        fixed: keep the labels: only their cost is found.
    """
    clustering, trace, settled = found.clustering, [], fixed
    labels, starts = clustering.labels, clustering.local.starts
    members = moved(members, middle(members))
    while True:
        centroids = divergence.barycenter(members, labels)
        cost, costs = _cost(members, centroids, labels, divergence, settled)
        if trace and cost >= trace[-1] * (1 - 1e-9):
            break
        trace.append(cost)
        clustering = clustering.relabelled(labels)
        if settled or len(trace) > SWEEPS:
            break
        labels = divergence.assign(finite(costs), starts, labels, masses)
        if (np.bincount(labels, minlength=costs.shape[1]) == 0).any():
            break
        if (labels == clustering.labels).all():
            break
    return dataclasses.replace(found, clustering=clustering, trace=trace, cost=trace[-1])


def _cost(
    members: ExponentialFamily,
    centroids: ExponentialFamily,
    labels: Int[Array, " n"],
    divergence: Discrepancy,
    settled: bool,
) -> tuple[float, Float[Array, "n g"]]:
    """The summed divergence, and that of all pairs unless labels are settled."""
    if settled:
        own = divergence.between(centroids[labels], members)
        return float(own.sum()), own[:, None]
    costs = divergence.costs(members, centroids)
    return float(costs[np.arange(len(labels)), labels].sum()), costs
