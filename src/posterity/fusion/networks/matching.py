"""Which units of the sites are one, in one hidden layer."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.errors import StructureError
from posterity.families import DiagonalGaussian
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching, match
from posterity.fusion.networks.combine import Labels
from posterity.fusion.networks.locals import Local
from posterity.fusion.networks.selected import ranked
from posterity.fusion.networks.targets import Targets
from posterity.fusion.networks.tree import Tree, assigned, merged

Array = np.ndarray
LEAST = 1e-6
"""What a unit weighs at least, of what units weigh on average: none is of no account."""


class Table:
    """All sites' units of a hidden layer, one site after the other.

    Attributes:
        mean: what comes in, in terms of the fused units of the layer before, then the bias, then,
            of the last hidden layer, what goes out; (n, d).
        variance: of these.
        mass: how much each unit does for what comes after, (n,).
        site: whose it is.
    """

    def __init__(
        self, targets: Targets, index: int, before: Labels, size: int, mass: Sequence[Array]
    ):
        rows = [
            _rows(local, index, own, size)
            for local, own in zip(targets.locals, before, strict=True)
        ]
        self.mean, self.variance = (np.concatenate(part) for part in zip(*rows, strict=True))
        self.mass = np.concatenate(mass)
        self.sizes = [len(own) for own in mass]
        self.site = np.repeat(np.arange(len(mass)), self.sizes)

    @property
    def scaled(self) -> Float[Array, "n d"]:
        """Means in standard deviations, pooled over the units that have the weight."""
        has = self.variance > 0
        pooled = self.variance.sum(0) / np.maximum(has.sum(0), 1)
        return self.mean / np.sqrt(np.where(pooled > 0, pooled, 1.0))

    def members(self) -> DiagonalGaussian:
        """The units as Gaussians; what a site does not have is as in the widest of its column."""
        widest = np.maximum(self.variance.max(0), 1e-300)
        variance = np.where(self.variance > 0, self.variance, widest)
        return DiagonalGaussian.from_standard(self.mean, variance)

    def apart(self, labels: Int[Array, " n"]) -> Labels:
        """Labels of each site's units, numbered so that the fused unit that does most is first."""
        kept, groups = labels >= 0, np.unique(labels[labels >= 0])
        weight = np.bincount(np.searchsorted(groups, labels[kept]), self.mass[kept])
        rank = np.empty(len(groups), int)
        rank[np.argsort(-weight, kind="stable")] = np.arange(len(groups))
        found = np.where(kept, rank[np.searchsorted(groups, np.where(kept, labels, groups[0]))], -1)
        return np.split(found, np.cumsum(self.sizes)[:-1])


def masses(targets: Targets, index: int) -> list[Float[Array, " _"]]:
    """What each unit does: its mean square output times the squares of its outgoing weights.

    Those into the outputs count by their site's share.
    """
    found = []
    for local, out, share in zip(
        targets.locals, targets.activations(index), targets.shares, strict=True
    ):
        kernel, _ = local.incoming(index + 1)
        kernel = kernel * share if index + 2 == len(local.layers) else kernel
        found.append((out**2).mean(tuple(range(out.ndim - 1))) * (kernel**2).sum((0, 2)))
    whole = np.concatenate(found).mean()
    return [own / (whole if whole > 0 else 1.0) + LEAST for own in found]


def _rows(local: Local, index: int, before: Array, size: int) -> tuple[Array, Array]:
    found = []
    for kind in ("mean", "variance"):
        kernel, bias = local.incoming(index, kind)
        out = np.zeros((len(kernel), size, kernel.shape[2]))
        out[:, before[before >= 0]] = kernel[:, before >= 0]
        rows = [out.reshape(-1, kernel.shape[2])]
        if bias is not None:
            rows.append(bias[None])
        if index + 2 == len(local.layers):
            after, _ = local.incoming(index + 1, kind)
            rows.append(np.moveaxis(after, 1, 2).reshape(-1, kernel.shape[2]))
        found.append(np.concatenate(rows).T)
    return found[0], found[1]


def same_units(locals_: Sequence[Local], index: int, width: int | None) -> Labels:
    """Unit ``k`` of every site is unit ``k``.

    Raises:
        StructureError: where widths differ, or another is asked for.
    """
    widths = sorted({local.layers.widths[index] for local in locals_})
    if len(widths) > 1 or width not in (None, widths[0]):
        raise StructureError(
            found=f"widths {widths} of hidden layer {index}"
            + (f" and components={width}" if width is not None else ""),
            expected="one width at all sites for matching='identity'",
            fix="Leave matching out, or components.",
        )
    return [np.arange(widths[0])] * len(locals_)


@runtime_checkable
class Matcher(Protocol):
    """Labels of all units for any width."""

    def labels(self, width: int | None) -> Int[Array, " n"]:
        """One below ``width`` for each unit, or -1."""
        ...


class OfTree:
    """Units merged by a tree, and then assigned anew."""

    def __init__(self, tree: Tree):
        self.tree = tree

    def labels(self, width: int | None) -> Int[Array, " n"]:
        """Of the tree's cut, improved site by site."""
        return assigned(self.tree, len(self.tree.rows) if width is None else width)


class OfMatching:
    """Units matched like the components of a plate."""

    def __init__(self, table: Table, matching: Matching, divergence: Divergence):
        self.table, self.matching, self.divergence = table, matching, divergence

    def labels(self, width: int | None) -> Int[Array, " n"]:
        """By :func:`posterity.fusion.matching.match`."""
        starts = np.cumsum([0, *self.table.sizes])
        members = self.table.members()
        return match(members, starts, self.matching, self.divergence, width).labels


def matcher(
    table: Table,
    targets: Targets,
    index: int,
    matching: Matching,
    divergence: Divergence,
    selected: bool,
) -> Matcher:
    """What labels the units of this hidden layer."""
    if selected:
        return ranked(targets, index, table.mass)
    if matching is Matching.EVIDENCE:
        return OfTree(merged(table.scaled, table.site, table.mass))
    return OfMatching(table, matching, divergence)
