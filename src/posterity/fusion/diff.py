"""How far two posteriors are from each other: Kullback-Leibler, block by block, matched."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import rel_entr

from posterity.arrays.tree import structure
from posterity.artifact import Posterior
from posterity.checks import check_proper
from posterity.errors import StructureError
from posterity.families import ExponentialFamily, Plate, Product
from posterity.fusion.geometry import kl_matrix
from posterity.ledger import Ledger, at_rest

__all__ = ["diff"]

Array = np.ndarray
HOPELESS = 1e100
"""The cost, in nats, of a pair whose divergence overflows: the assignment must be finite."""


class Divergences(NamedTuple):
    """Both directions of KL, in nats."""

    ab: float
    ba: float

    @classmethod
    def between(cls, a: ExponentialFamily, b: ExponentialFamily) -> "Divergences":
        """Summed over a batch; exactly zero where parameters are equal, never negative."""
        return cls(*(float(np.sum(kl)) for kl in _kl(a, b)))


class Pair(NamedTuple):
    """Component ``a`` of the first posterior, matched with component ``b`` of the second."""

    a: int
    b: int
    kl: Divergences


@dataclasses.dataclass(frozen=True)
class PlateDiff:
    """What matching found in a plate.

    ``only_in_a`` and ``only_in_b`` have the expected mixing weight of each component without a
    partner; ``weights`` is the divergence of the mixing weights, None where there are none.
    """

    pairs: tuple[Pair, ...]
    only_in_a: dict[int, float]
    only_in_b: dict[int, float]
    weights: Divergences | None


@dataclasses.dataclass(frozen=True)
class BlockDiff:
    """The divergence of one block, ``path`` being ``""`` for a posterior without blocks."""

    path: str
    family: str
    kl: Divergences
    plate: PlateDiff | None = None


@dataclasses.dataclass(frozen=True)
class Diff:
    """What :func:`diff` found; ``sites_a`` and ``sites_b`` are None where no ledger was given."""

    blocks: tuple[BlockDiff, ...]
    sites_a: tuple[str, ...] | None
    sites_b: tuple[str, ...] | None

    @property
    def kl(self) -> Divergences:
        """The sum over blocks: blocks are independent."""
        return _sum([block.kl for block in self.blocks])


def diff(a: Posterior, b: Posterior) -> Diff:
    """KL(a || b) and KL(b || a) in nats, block by block; ledgers compare their posteriors.

    Components of a plate are matched by the assignment with the least summed symmetric KL, so
    their order does not matter, and plates may differ in size: components left over are named,
    and count neither in the members' nor in the weights' divergence. Dirichlet mixing weights
    are compared among the matched components: shares of a part of a Dirichlet are Dirichlet
    again, with the same concentrations. The sticks of a Dirichlet process depend on their
    order; where it is the same they are compared as they are, else by the expected weights of
    the matched components, made to sum to one.

    Raises:
        StructureError: if the families, blocks or dimensions differ, or a posterior is no
            exponential family.
        ParameterError: NaN, infinite or improper parameters.

    >>> from posterity.families import DiagonalGaussian
    >>> q = Plate(DiagonalGaussian.from_standard([[0.0], [4.0]], [[1.0], [1.0]]))
    >>> p = Plate(DiagonalGaussian.from_standard([[5.0], [0.0]], [[1.0], [1.0]]))
    >>> [(pair.a, pair.b, pair.kl.ab) for pair in diff(q, p).blocks[0].plate.pairs]
    [(0, 1, 0.0), (1, 0, 0.5)]
    """
    left, right = _posterior(a, "the first posterior"), _posterior(b, "the second posterior")
    return Diff(tuple(_blocks(left, right, "")), _sites(a), _sites(b))


def _posterior(value: object, place: str) -> ExponentialFamily:
    if isinstance(value, Ledger):
        return value.posterior
    if not isinstance(value, ExponentialFamily):
        raise StructureError(
            found=f"a {type(value).__name__} in {place}",
            expected="an exponential family or a Ledger: its divergence has a closed form",
            fix="For a Mixture use Mixture.kl, which estimates it, or wrap its components as "
            "posterity.Plate(components).",
        )
    check_proper(value, place)
    return at_rest(value)


def _sites(value: object) -> tuple[str, ...] | None:
    return value.sites if isinstance(value, Ledger) else None


# --- blocks --------------------------------------------------------------------------------------


def _blocks(a: ExponentialFamily, b: ExponentialFamily, path: str) -> Iterator[BlockDiff]:
    _check_alike(a, b, path)
    if isinstance(a, Product) and isinstance(b, Product):
        for name in a.blocks:
            yield from _blocks(a.blocks[name], b.blocks[name], f"{path}/{name}" if path else name)
    elif isinstance(a, Plate) and isinstance(b, Plate):
        yield _plate_block(a, b, path)
    else:
        yield BlockDiff(path, type(a).__name__, Divergences.between(a, b))


def _check_alike(a: ExponentialFamily, b: ExponentialFamily, path: str) -> None:
    if _outline(a) != _outline(b):
        place = f"block {path!r} of " if path else ""
        raise StructureError(
            found=f"{b!r} in {place}the second posterior",
            expected=f"the family, blocks and dimensions of the first: {a!r} "
            "(plates may differ in size)",
            fix="Compare posteriors of one model.",
        )


def _outline(family: ExponentialFamily) -> object:
    """What must agree on this level, with the size of a plate left open."""
    if isinstance(family, Product):
        return (Product, family.batch_shape, tuple(family.blocks))
    if isinstance(family, Plate) and not family.batch_shape:
        return family.outline(plates=False)
    return structure(family)


def _kl(a: ExponentialFamily, b: ExponentialFamily) -> tuple[Array, Array]:
    same = (a.natural_parameters == b.natural_parameters).all(-1)
    ab, ba = np.maximum(a.kl(b), 0.0), np.maximum(b.kl(a), 0.0)  # below zero is rounding
    return np.where(same, 0.0, ab), np.where(same, 0.0, ba)


def _sum(terms: list[Divergences]) -> Divergences:
    return Divergences(sum(kl.ab for kl in terms), sum(kl.ba for kl in terms))


# --- plates --------------------------------------------------------------------------------------


def _plate_block(a: Plate, b: Plate, path: str) -> BlockDiff:
    family = f"Plate of {type(a.members).__name__}"
    if a.batch_shape:  # a batch of plates has no one set of labels: compared as it stands
        return BlockDiff(path, family, Divergences.between(a, b))
    rows, columns = _match(a, b)
    ab, ba = _kl(a.members[rows], b.members[columns])
    found = zip(rows, columns, ab, ba, strict=True)
    pairs = tuple(Pair(int(i), int(j), Divergences(float(x), float(y))) for i, j, x, y in found)
    plate = PlateDiff(pairs, _alone(a, rows), _alone(b, columns), _weights(a, b, rows, columns))
    terms = [pair.kl for pair in pairs]
    return BlockDiff(path, family, _sum([*terms, plate.weights] if plate.weights else terms), plate)


def _match(a: Plate, b: Plate) -> tuple[Array, Array]:
    """Rows of matched components, in the order of ``a``."""
    first, second = _contents(a), _contents(b)
    rows, columns = np.lexsort(first.T[::-1]), np.lexsort(second.T[::-1])
    if not np.array_equal(first[rows], second[columns]):
        # In an order of their own, so that ties do not depend on how components came.
        picked, partners = _assign(a.members[rows], b.members[columns])
        rows, columns = rows[picked], columns[partners]
    order = np.argsort(rows)
    return rows[order], columns[order]


def _assign(a: ExponentialFamily, b: ExponentialFamily) -> tuple[Array, Array]:
    cost = (kl_matrix(a, b, "reverse") + kl_matrix(a, b, "forward")).T
    return linear_sum_assignment(np.nan_to_num(cost, nan=HOPELESS, posinf=HOPELESS))


def _contents(plate: Plate) -> Array:
    """One row a component: its parameters, and those of its weight."""
    parts = [part.natural_parameters.reshape(plate.size, -1) for part in plate.parts()]
    return np.concatenate(parts, axis=1)


def _alone(plate: Plate, matched: Array) -> dict[int, float]:
    weights = np.asarray(plate.mean_weights())
    return {k: float(weights[k]) for k in range(plate.size) if k not in set(matched.tolist())}


def _weights(a: Plate, b: Plate, rows: Array, columns: Array) -> Divergences | None:
    if a.weights is None or b.weights is None:
        return None
    mine, theirs = a.weights.among(rows), b.weights.among(columns)
    if mine is not None and theirs is not None:
        return Divergences.between(mine, theirs)
    if a.size == b.size and np.array_equal(rows, columns):
        return Divergences.between(a.weights, b.weights)
    p, q = np.asarray(a.mean_weights())[rows], np.asarray(b.mean_weights())[columns]
    p, q = p / p.sum(), q / q.sum()
    return Divergences(float(rel_entr(p, q).sum()), float(rel_entr(q, p).sum()))
