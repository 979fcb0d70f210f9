"""Other ways to fuse networks than the library's, which the tables compare it with.

Sites that count alike in every output; outgoing weights averaged over the sites that have a unit,
as in the paper; and no matching: units taken from the sites as they are, those that tell most of
the outputs.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from experiments.data import Array
from posterity.families import Network
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching, Rule
from posterity.fusion.networks import Options
from posterity.fusion.networks.combine import Builder, FusedLayer
from posterity.fusion.networks.fuse import Search, widths_wanted
from posterity.fusion.networks.targets import Labels, Placed, Targets, in_order
from posterity.fusion.sites import Site
from posterity.ledger import Ledger

NEW = 1e-9
"""Share of a unit's variance that others must leave unexplained for it to say anything new."""


class EqualShares(Search):
    """Every site counts alike in every output."""

    def shares(self) -> Array:
        weights = np.array([local.weight for local in self.locals])
        shares = weights[:, None] * np.ones((len(weights), self.locals[0].layers.outputs))
        return shares / shares.sum(0)


class AveragedOverHolders(Builder):
    """Outgoing weights are summed over the shares of those sites that have the unit."""

    def outgoing(self, sites: Iterable[Placed], share: Array) -> FusedLayer:
        sites = list(sites)
        layer = super().outgoing(sites, share)
        counted = [own.has * counts for own, counts in zip(sites, share, strict=True)]
        held = sum(counted)
        variance = sum(own.variance * counts for own, counts in zip(sites, counted, strict=True))
        floor = min(float(own.variance[own.has].min(initial=np.inf)) for own in sites)
        safe = np.where(held > 0, held, 1.0)
        parts = layer.parts / safe
        variance = variance / safe + np.where(held > 0, 0.0, floor)
        return FusedLayer(parts.sum(0), variance, share, parts)


class Published(EqualShares):
    """The paper's combination of matched units."""

    builder = AveragedOverHolders


class Selected(Search):
    """Units of the sites as they are, those that tell most of what comes after."""

    def labels(self, builder: Builder, index: int, width: int | None) -> Labels:
        """Of the first ``width`` in the order of :func:`ranked`; -1 for the others."""
        units = self._units(builder, index)
        labels = np.full(len(units.mass), -1)
        kept = ranked(self.fit, index, units.mass)[:width]
        labels[kept] = np.arange(len(kept))
        return units.by_site(labels)


def ranked(targets: Targets, index: int, mass: Array) -> Array:
    """All units of a layer, those first that tell most beyond the ones before them.

    By orthogonal least squares [chen1989] of what the next layer wants, averaged over places: at
    each step the unit comes next that lowers the residual most beside those before it, by a
    Cholesky factorisation of the units' covariance that is pivoted by what is explained.
    """
    flat = lambda out: out.mean(tuple(range(1, out.ndim - 1)))
    units = np.concatenate([flat(out) for out in targets.activations(index)], axis=1)
    after = [flat(pre[index + 1]) for pre in targets.pre]
    if index + 2 == len(targets.locals[0].layers):
        after = [sum(a * pre for a, pre in zip(targets.shares, after, strict=True))]
    wanted = np.concatenate(after, axis=1)
    units, wanted = units - units.mean(0), wanted - wanted.mean(0)
    covariance, slope = units.T @ units, units.T @ wanted
    left = covariance.diagonal().copy()
    least = NEW * left
    factor = np.zeros((len(left), len(left)))
    order: list[int] = []
    remaining = left > 0
    for step in range(len(left)):
        remaining &= left > least
        if not remaining.any():
            break
        gain = np.where(remaining, (slope**2).sum(1) / np.where(remaining, left, 1.0), -1.0)
        best = int(gain.argmax())
        remaining[best] = False
        order.append(best)
        column = covariance[best] - factor[:, :step] @ factor[best, :step]
        column /= np.sqrt(left[best])
        slope = slope - np.outer(column, slope[best] / np.sqrt(left[best]))
        factor[:, step] = column
        left = left - column**2
    rest = np.setdiff1d(np.arange(len(left)), order)
    return np.concatenate([np.array(order, int), rest[np.argsort(-mass[rest])]])


def fused_by(
    kind: type[Search],
    sites: Mapping[str, Ledger],
    width: int | tuple[int, ...] | None,
    *,
    refit: bool = True,
    matching: Matching = Matching.EVIDENCE,
) -> Network:
    """The barycenter at this width, or of the width that the matching finds."""
    held = {name: Site(ledger.posterior, ledger.prior) for name, ledger in sites.items()}
    locals_ = in_order(held, np.ones(len(held)))
    search = kind(locals_, Options(refit=refit), Divergence.REVERSE, matching)
    combined = search.build(None if width is None else widths_wanted(width, locals_))
    return search.result(combined, {}, Rule.BARYCENTER, None).posterior
