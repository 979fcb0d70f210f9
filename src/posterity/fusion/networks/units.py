"""Which units of the sites are one, in one hidden layer."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int
from posterity.errors import ParameterError, StructureError
from posterity.families import DiagonalGaussian
from posterity.families.network import Network
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching, match
from posterity.fusion.networks.locals import Labels, Local
from posterity.fusion.networks.targets import Targets
from posterity.fusion.networks.tree import Tree, assigned, merged

Array = np.ndarray
LEAST = 1e-6
"""What a unit weighs at least, of what units weigh on average: none is of no account."""


class Units:
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

    def labels(
        self, matching: Matching, divergence: Divergence, width: int | None
    ) -> Int[Array, " n"]:
        """One below ``width`` for each unit, or -1: by Ward's tree, or as components of a plate."""
        if matching is Matching.EVIDENCE:
            return assigned(self._tree, len(self.mean) if width is None else width)
        starts = np.cumsum([0, *self.sizes])
        return match(self.members(), starts, matching, divergence, width).labels

    @functools.cached_property
    def _tree(self) -> Tree:
        return merged(self.scaled, self.site, self.mass)

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

    def by_site(self, labels: Int[Array, " n"]) -> Labels:
        """Labels of each site's units, numbered so that the fused unit that does most is first."""
        kept, groups = labels >= 0, np.unique(labels[labels >= 0])
        weight = np.bincount(np.searchsorted(groups, labels[kept]), self.mass[kept])
        rank = np.empty(len(groups), int)
        rank[np.argsort(-weight, kind="stable")] = np.arange(len(groups))
        ranked = rank[np.searchsorted(groups, np.where(kept, labels, groups[0]))]
        return np.split(np.where(kept, ranked, -1), np.cumsum(self.sizes)[:-1])


def masses(targets: Targets, index: int) -> list[Float[Array, " _"]]:
    """What each unit does: its mean square output times the squares of its outgoing weights.

    Those into the outputs count by their site's share.
    """
    mass = []
    for local, out, share in zip(
        targets.locals, targets.activations(index), targets.shares, strict=True
    ):
        kernel, _ = local.incoming(index + 1)
        kernel = kernel * share if index + 2 == len(local.layers) else kernel
        mass.append((out**2).mean(tuple(range(out.ndim - 1))) * (kernel**2).sum((0, 2)))
    whole = np.concatenate(mass).mean()
    return [own / (whole if whole > 0 else 1.0) + LEAST for own in mass]


def _rows(local: Local, index: int, before: Array, size: int) -> tuple[Array, Array]:
    both = []
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
        both.append(np.concatenate(rows).T)
    return both[0], both[1]


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


# --- two networks of one shape --------------------------------------------------------------------


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
            found=f"networks of different layers: {like.layers.summary} and "
            f"{network.layers.summary}",
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
    layers, both = network.layers, []
    for leaf in (network.mean, network.variance):
        arrays: Any = layers.unravel(np.asarray(leaf))
        own = [np.moveaxis(a, -1, 0).reshape(a.shape[-1], -1) for a in arrays[index].values()]
        if index + 2 == len(layers):
            kernel = arrays[index + 1]["kernel"].reshape(layers.by_unit(index + 1))
            own.append(np.moveaxis(kernel, 1, 0).reshape(kernel.shape[1], -1))
        both.append(np.concatenate(own, axis=1))
    return both[0], both[1]
