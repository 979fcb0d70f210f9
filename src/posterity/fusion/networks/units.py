"""Matching of the units of one hidden layer: the closest are merged, never two of one site."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int
from posterity.errors import ParameterError, StructureError
from posterity.families import DiagonalGaussian
from posterity.families.network import Network
from posterity.fusion.agglomeration import Tree, ward
from posterity.fusion.clustering import packed
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching, match
from posterity.fusion.networks.targets import Labels, Local, Targets, placed
from posterity.fusion.rows import membership

Array = np.ndarray


class Units:
    """The units of a hidden layer at all sites, site by site: means and variances (n, d) of their
    incoming weights (in terms of the fused units of the previous layer), of their biases and, in
    the last hidden layer, of their outgoing weights; and their mass (n,) (:func:`masses`).
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
        """Return a label below ``width`` for each unit, or -1, by Ward's tree or as for a plate."""
        if matching is Matching.EVIDENCE:
            return assigned(self._merged, len(self.mean) if width is None else width)
        # As Gaussians: weights that a site lacks get the largest variance of their column.
        widest = np.maximum(self.variance.max(0), 1e-300)
        variance = np.where(self.variance > 0, self.variance, widest)
        members = DiagonalGaussian.from_standard(self.mean, variance)
        starts = np.cumsum([0, *self.sizes])
        return match(members, starts, matching, divergence, width).labels

    @functools.cached_property
    def _merged(self) -> "Merged":
        """The tree of means in standard deviations, pooled over units that have the weight."""
        pooled = self.variance.sum(0) / np.maximum((self.variance > 0).sum(0), 1)
        scaled = self.mean / np.sqrt(np.where(pooled > 0, pooled, 1.0))
        return merged(scaled, self.site, self.mass)

    def by_site(self, labels: Int[Array, " n"]) -> Labels:
        """Return the labels of each site's units; fused units are numbered by decreasing mass."""
        kept = labels >= 0
        _, group = np.unique(labels[kept], return_inverse=True)
        ranked = np.full(len(labels), -1)
        ranked[kept] = ranks(np.bincount(group, self.mass[kept]))[group]
        return np.split(ranked, np.cumsum(self.sizes)[:-1])


def ranks(weight: Float[Array, " n"]) -> Int[Array, " n"]:
    """Return the rank of each weight; the largest, or the first of equal ones, has rank 0."""
    return np.argsort(np.argsort(-weight, kind="stable"))


def masses(targets: Targets, index: int, *, least: float = 1e-6) -> list[Float[Array, " _"]]:
    """Return the mass of each unit: its mean square output times the summed squares of its outgoing
    weights. Weights into the outputs are multiplied by their site's share. A share ``least`` of the
    mean mass is added, so that no unit is ignored.
    """
    mass = []
    for local, out, share in zip(
        targets.locals, targets.activations(index), targets.shares, strict=True
    ):
        kernel, _ = local.incoming(index + 1)
        kernel = kernel * share if index + 2 == len(local.layers) else kernel
        mass.append((out**2).mean(tuple(range(out.ndim - 1))) * (kernel**2).sum((0, 2)))
    whole = np.concatenate(mass).mean()
    return [own / (whole if whole > 0 else 1.0) + least for own in mass]


def _rows(local: Local, index: int, before: Array, size: int) -> list[Array]:
    """Return means and variances (units, d) of a site's units by the fused units before."""
    width = local.layers.widths[index]
    both = placed(local, index, before, np.arange(width), (size, width))[:2]
    if index + 2 == len(local.layers):
        after = (local.incoming(index + 1, kind)[0] for kind in ("mean", "variance"))
        rows = (np.moveaxis(own, 1, 2).reshape(-1, width) for own in after)
        both = [np.concatenate(pair) for pair in zip(both, rows, strict=True)]
    return [own.T for own in both]


def same_units(locals_: Sequence[Local], index: int, width: int | None) -> Labels:
    """Match unit ``k`` of each site with unit ``k``; raise a StructureError if widths differ, or
    another width is requested.
    """
    widths = sorted({local.layers.widths[index] for local in locals_})
    if len(widths) > 1 or width not in (None, widths[0]):
        raise StructureError(
            found=f"widths {widths} of hidden layer {index}"
            + (f" and components={width}" if width is not None else ""),
            expected="one width at all sites for matching='identity'",
        )
    return [np.arange(widths[0])] * len(locals_)


class Merged(NamedTuple):
    """Units (n, d) with their sites (n,) and masses (n,), and the tree of merging them."""

    rows: Float[Array, "n d"]
    site: Int[Array, " n"]
    mass: Float[Array, " n"]
    tree: Tree

    def centres(
        self, labels: Int[Array, " n"], size: int
    ) -> tuple[Float[Array, " size"], Float[Array, "size d"]]:
        """Return the mass and the centroid of each of ``size`` groups; that of none is zero."""
        members = membership(labels, size)
        mass = members @ self.mass
        totals = members @ (self.mass[:, None] * self.rows)
        return mass, totals / np.where(mass > 0, mass, 1.0)[:, None]


def merged(rows: Float[Array, "n d"], site: Int[Array, " n"], mass: Float[Array, " n"]) -> Merged:
    """Return Ward's tree of rows, whose pairs have the weight of their masses ``n m/(n + m)``;
    groups that share a site are never merged.
    """
    other = mass[:, None]
    costs = _squares(rows, rows) * (other * mass / (other + mass))
    costs[site[:, None] == site[None]] = np.inf
    return Merged(rows, site, mass, ward(costs))


def assigned(units: Merged, width: int, *, sweeps: int = 2) -> Int[Array, " n"]:
    """Return at most ``width`` groups of units: those of the tree, improved by the best assignment
    of each site in turn. The cost is ``n m/(n + m) ||u - centroid||²`` for a unit of mass ``m`` and
    a group whose mass without the site is ``n``. Units without a place are -1. More ``sweeps`` than
    two hardly improve the sum.
    """
    size = min(width, len(units.rows))
    labels = packed(units.tree.cut(width))
    # If the tree could not be merged to so few groups, its lightest ones are dissolved.
    rank = ranks(np.bincount(labels, units.mass))
    labels = np.where(rank[labels] < size, rank[labels], -1)
    for site in np.tile(np.unique(units.site), sweeps):
        own = np.flatnonzero(units.site == site)
        labels[own] = -1
        weight, centres = units.centres(labels, size)
        mass = units.mass[own, None]
        rows = units.rows[own]
        cost = weight * mass / (weight + mass) * _squares(rows, centres)
        if len(own) > size:  # leaving a unit out costs its mass times its square
            cost = cost - mass * (rows**2).sum(1, keepdims=True)
        picked, places = scipy.optimize.linear_sum_assignment(cost)
        labels[own[picked]] = places
    return _filled(units, labels, size)


def _filled(units: Merged, labels: Int[Array, " n"], size: int) -> Int[Array, " n"]:
    """Give each empty group the unit that is farthest from its centroid. Groups can be empty if
    units of two sites are nearly equal: sharing a group is then no worse than having one alone.
    """
    labels = labels.copy()
    for empty in np.setdiff1d(np.arange(size), labels):
        _, centres = units.centres(labels, size)
        far = units.mass * ((units.rows - centres[labels]) ** 2).sum(1)
        shared = np.bincount(labels[labels >= 0], minlength=size)[labels] > 1
        labels[int(np.where(shared & (labels >= 0), far, -1.0).argmax())] = empty
    return labels


def _squares(rows: Float[Array, "n d"], columns: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """Return squared distances, by one product."""
    both = (rows**2).sum(1)[:, None] + (columns**2).sum(1)
    return np.maximum(both - 2 * rows @ columns.T, 0.0)


def in_order_of(network: Network, like: Network) -> Network:
    """Return the network with its units in the order of the closest units of ``like``, layer by
    layer. The assignment has the least summed squares, in standard deviations, of incoming weights
    and, in the last hidden layer, of outgoing ones. Raise a StructureError if layers differ, and a
    ParameterError if distances overflow.
    """
    if network.layers != like.layers:
        raise StructureError(
            found=f"networks of different layers: {like.layers.summary} and "
            f"{network.layers.summary}",
            expected="the same layers and widths; of others compare what they predict",
        )
    for index, width in enumerate(like.layers.widths):
        mine = _units(network, index)
        theirs = _units(like, index)
        scale = np.concatenate([mine[1], theirs[1]]).mean(0)
        rows = mine[0] / np.sqrt(scale)
        columns = theirs[0] / np.sqrt(scale)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = _squares(rows, columns)
        if not np.isfinite(squares).all():
            raise ParameterError(
                found="networks whose weights are so far apart that their distance overflows",
                expected="means and variances of a usual size",
            )
        _, labels = scipy.optimize.linear_sum_assignment(squares)
        network = network.relabel(labels, width, axes=(index,))
    return network


def _units(network: Network, index: int) -> list[Array]:
    """Return means and variances (units, d) of each unit's weights whose order is known."""
    layers = network.layers
    before = network.layers.by_unit(index)[1]
    mean, variance = (layers.unravel(np.asarray(q)) for q in (network.mean, network.variance))
    local = Local("", layers, mean, variance, None, [], 1.0)
    return _rows(local, index, np.arange(before), before)
