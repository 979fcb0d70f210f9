"""The KL divergence of two posteriors, block by block, after matching their components."""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy

from posterity.arrays.tree import structure
from posterity.arrays.typing import KeyArray
from posterity.artifact import Posterior
from posterity.artifact.aligned import coordinates_in, ordered
from posterity.errors import StructureError
from posterity.families import (
    Distribution,
    ExponentialFamily,
    HiddenMarkov,
    Mixture,
    Plate,
    at_rest,
    stack,
)
from posterity.families.checks import check_adds, check_proper
from posterity.families.names import some
from posterity.fusion.blocks import blocks
from posterity.fusion.geometry import kl_matrix
from posterity.fusion.networks.units import in_order_of
from posterity.ledger import Ledger

__all__ = ["diff"]

Array = np.ndarray
HOPELESS = 1e100
"""Cost, in nats, of a pair whose divergence overflows: the assignment needs finite costs."""


class Divergences(NamedTuple):
    """The KL divergences in both directions, in nats."""

    ab: float
    ba: float

    @classmethod
    def between(cls, a: ExponentialFamily, b: ExponentialFamily) -> "Divergences":
        """Sum the divergences of a batch; zero for equal parameters, and never negative."""
        return cls(*(float(np.sum(kl)) for kl in _kl(a, b)))

    @classmethod
    def total(cls, terms: "Iterable[Divergences]") -> "Divergences":
        """Add up the divergences of independent parts."""
        terms = list(terms)
        return cls(sum(kl.ab for kl in terms), sum(kl.ba for kl in terms))


class Pair(NamedTuple):
    """Component ``a`` of the first posterior, matched with component ``b`` of the second."""

    a: int
    b: int
    kl: Divergences


@dataclasses.dataclass(frozen=True)
class PlateDiff:
    """The matched components of two plates or two mixtures.

    ``only_in_a`` and ``only_in_b`` map each component without a partner to its expected mixing
    weight; ``weights`` is the divergence of the mixing weights, or None without any.
    """

    pairs: tuple[Pair, ...]
    only_in_a: dict[int, float]
    only_in_b: dict[int, float]
    weights: Divergences | None


@dataclasses.dataclass(frozen=True)
class BlockDiff:
    """The divergence of one block; ``path`` is ``""`` for a posterior without blocks.

    ``standard_errors`` is None if the divergence is exact; for mixtures it is an estimate.
    ``shifts`` has, for a Gaussian with named coordinates, the difference of each mean, second minus
    first, in standard deviations of the first.
    """

    path: str
    family: str
    kl: Divergences
    plate: PlateDiff | None = None
    standard_errors: Divergences | None = None
    shifts: dict[str, float] | None = None


@dataclasses.dataclass(frozen=True)
class Diff:
    """The result of :func:`diff`; ``sites_a`` and ``sites_b`` are None without ledgers."""

    blocks: tuple[BlockDiff, ...]
    sites_a: tuple[str, ...] | None
    sites_b: tuple[str, ...] | None

    @property
    def kl(self) -> Divergences:
        """The sum over the blocks, which are independent."""
        return Divergences.total(block.kl for block in self.blocks)

    @property
    def standard_errors(self) -> Divergences | None:
        """The standard errors of :attr:`kl`, in nats; None if it is exact."""
        return self.blocks[0].standard_errors  # a mixture is always the only block


def diff(a: Posterior, b: Posterior, *, key: KeyArray | None = None, samples: int = 4096) -> Diff:
    """Return KL(a || b) and KL(b || a) in nats, block by block; ledgers stand for their posteriors.

    Components of a plate are matched by the assignment with the least summed symmetric KL, so
    their order does not matter. Plates may differ in size: components without a partner are listed
    and do not count in the divergence of the members or of the weights. Dirichlet mixing weights
    are compared among the matched components: the shares within a part of a Dirichlet are again
    Dirichlet, with the same concentrations. The sticks of a Dirichlet process depend on their
    order: if the orders agree, sticks are compared directly, else the normalised expected weights
    of the matched components. States of hidden Markov models are matched by their emissions;
    initial probabilities and transitions are compared among the matched states, and their
    divergence is reported as that of the weights.

    A mixture is compared with another one, or with a member of its components' family, by Monte
    Carlo with ``samples`` draws from ``key`` (by default a fixed key). This estimate has standard
    errors and may be negative if it is small. Components of two mixtures are matched like those of
    a plate.

    Named coordinates are compared by name, in any order; so are members of plates that both name
    their members. Units of networks of one shape are matched, layer by layer, before their weights
    are compared.

    Raises:
        StructureError: if the families, blocks, dimensions or names differ.
        ParameterError: NaN, infinite or improper parameters.

    >>> from posterity.families import DiagonalGaussian
    >>> q = Plate(DiagonalGaussian.from_standard([[0.0], [4.0]], [[1.0], [1.0]]))
    >>> p = Plate(DiagonalGaussian.from_standard([[5.0], [0.0]], [[1.0], [1.0]]))
    >>> [(pair.a, pair.b, pair.kl.ab) for pair in diff(q, p).blocks[0].plate.pairs]
    [(0, 1, 0.0), (1, 0, 0.5)]
    """
    left = _law(a, "the first posterior")
    right = _law(b, "the second posterior")
    # Only coordinates are put in one order here; members of plates are matched below.
    names = {**coordinates_in(right), **coordinates_in(left)}
    left = ordered(left, names, "the first posterior", "the second")
    right = ordered(right, names, "the second posterior", "the first")
    if left.is_mixture or right.is_mixture:
        compared = [_mixtures(left, right, key, samples)]
    else:
        for law, place in ((left, "the first posterior"), (right, "the second posterior")):
            check_adds(law, place)
        mine = blocks(left)
        theirs = blocks(right)
        _check_alike(list(mine) == list(theirs), left, right, "")
        compared = [_block(mine[path], theirs[path], path) for path in mine]
    sites = [value.sites if isinstance(value, Ledger) else None for value in (a, b)]
    return Diff(tuple(compared), *sites)


def _law(value: Any, place: str) -> Any:
    if isinstance(value, Ledger):
        return value.posterior
    if not isinstance(value, Distribution):
        raise StructureError(
            found=f"a {type(value).__name__} in {place}",
            expected="a family, a Mixture or a Ledger, such as posterity.load returns",
        )
    check_proper(value, place)
    return at_rest(value)


def _block(a: Any, b: Any, path: str) -> BlockDiff:
    single = not (a.batch_shape or b.batch_shape)
    plates = a.is_plate and b.is_plate
    tied = a.is_tied and b.is_tied
    if single and (plates or tied):
        _check_alike(a.outline(plates=False) == b.outline(plates=False), a, b, path)
        return _plates(a, b, path) if plates else _tied(a, b, path)
    if single and a.network_layers is not None and b.network_layers is not None:
        a = a.plain
        b = in_order_of(b.plain, a)
    # A batch of plates has no common set of labels: it is compared without matching.
    _check_alike(structure(a) == structure(b), a, b, path)
    shifts = None
    if a.gaussian and a.names and not a.batch_shape:
        moved = (b.mean - a.mean) / np.sqrt(a.marginal_variance)
        shifts = dict(zip(a.names, moved.tolist(), strict=True))
    return BlockDiff(path, _called(a), Divergences.between(a, b), shifts=shifts)


def _called(law: Any) -> str:
    return f"Plate of {type(law.members).__name__}" if law.is_plate else type(law).__name__


def _check_alike(alike: bool, a: object, b: object, path: str) -> None:
    if not alike:
        place = f"block {path!r} of " if path else ""
        raise StructureError(
            found=f"{b!r} in {place}the second posterior",
            expected=f"the family, blocks and dimensions of the first: {a!r} "
            "(plates may differ in size)",
        )


def _kl(a: ExponentialFamily, b: ExponentialFamily) -> tuple[Array, Array]:
    same = (a.natural_parameters == b.natural_parameters).all(-1)
    ab = np.maximum(a.kl(b), 0.0)  # below zero is rounding
    ba = np.maximum(b.kl(a), 0.0)
    return np.where(same, 0.0, ab), np.where(same, 0.0, ba)


def _plates(a: Plate, b: Plate, path: str) -> BlockDiff:
    mine = _Labelled.of_plate(a)
    theirs = _Labelled.of_plate(b)
    if a.names and b.names:  # members with one name are matched, whatever their parameters
        pairs = [(i, b.names.index(name)) for i, name in enumerate(a.names) if name in b.names]
        known = f"the names {some(a.names)} in the first, {some(b.names)} in the second plate"
        StructureError.check((not pairs, known, "a member that both have"))
        rows, columns = np.array(pairs, dtype=int).T
    else:
        rows, columns = _match(mine, theirs)
    plate = _plate_diff(mine, theirs, rows, columns, _weights(a, b, rows, columns))
    terms = [pair.kl for pair in plate.pairs] + ([plate.weights] if plate.weights else [])
    return BlockDiff(path, _called(a), Divergences.total(terms), plate)


def _tied(a: HiddenMarkov, b: HiddenMarkov, path: str) -> BlockDiff:
    """Match states by their emissions, and compare the rest among the matched states."""
    mine = _Labelled.of_plate(a.as_plate())
    theirs = _Labelled.of_plate(b.as_plate())
    rows, columns = _match(mine, theirs)
    kl = Divergences.between(_among_labels(a, rows), _among_labels(b, columns))
    plate = _plate_diff(mine, theirs, rows, columns, None)
    members = Divergences.total(pair.kl for pair in plate.pairs)
    rest = Divergences(max(kl.ab - members.ab, 0.0), max(kl.ba - members.ba, 0.0))
    return BlockDiff(path, _called(a), kl, dataclasses.replace(plate, weights=rest))


def _among_labels(law: HiddenMarkov, kept: Array) -> HiddenMarkov:
    """Return the law restricted to these labels."""
    labels = np.full(law.states, -1)
    labels[kept] = np.arange(len(kept))
    return law.relabel(labels, len(kept))


class _Labelled(NamedTuple):
    """Components with arbitrary labels: their shares (K,), and contents (K, D) that distinguish
    them.
    """

    members: ExponentialFamily
    shares: Array
    contents: Array

    @classmethod
    def of_plate(cls, plate: Plate) -> "_Labelled":
        parts = [part.natural_parameters.reshape(plate.size, -1) for part in plate.parts()]
        return cls(plate.members, plate.mean_weights(), np.concatenate(parts, axis=1))

    @classmethod
    def of_mixture(cls, mixture: Mixture) -> "_Labelled":
        shares = mixture.weights
        members = mixture.components
        return cls(members, shares, np.column_stack([members.natural_parameters, shares]))

    @property
    def order(self) -> Array:
        """An order of the components that is determined by their contents."""
        return np.lexsort(self.contents.T[::-1])


def _match(a: _Labelled, b: _Labelled) -> tuple[Array, Array]:
    """Return the rows of matched components of both, in the order of ``a``."""
    rows = a.order
    columns = b.order
    if not np.array_equal(a.contents[rows], b.contents[columns]):
        # In an order by contents, so that ties do not depend on the order of components.
        one = a.members[rows]
        other = b.members[columns]
        cost = (kl_matrix(one, other, "reverse") + kl_matrix(one, other, "forward")).T
        cost = np.nan_to_num(cost, nan=HOPELESS, posinf=HOPELESS)
        picked, partners = scipy.optimize.linear_sum_assignment(cost)
        rows = rows[picked]
        columns = columns[partners]
    order = np.argsort(rows)
    return rows[order], columns[order]


def _plate_diff(
    a: _Labelled, b: _Labelled, rows: Array, columns: Array, weights: Divergences | None
) -> PlateDiff:
    ab, ba = _kl(a.members[rows], b.members[columns])
    matched = zip(rows.tolist(), columns.tolist(), ab.tolist(), ba.tolist(), strict=True)
    pairs = tuple(Pair(i, j, Divergences(x, y)) for i, j, x, y in matched)
    first, second = (
        {k: float(one.shares[k]) for k in range(len(one.shares)) if k not in own}
        for one, own in ((a, set(rows.tolist())), (b, set(columns.tolist())))
    )
    return PlateDiff(pairs, first, second, weights)


def _weights(a: Plate, b: Plate, rows: Array, columns: Array) -> Divergences | None:
    if a.weights is None or b.weights is None:
        return None
    mine = a.weights.among(rows)
    theirs = b.weights.among(columns)
    if mine is not None and theirs is not None:
        return Divergences.between(mine, theirs)
    if a.size == b.size and np.array_equal(rows, columns):
        return Divergences.between(a.weights, b.weights)
    return _among(a.mean_weights()[rows], b.mean_weights()[columns])


def _among(p: Array, q: Array) -> Divergences:
    """Return the divergences of shares after normalising them."""
    p = p / p.sum()
    q = q / q.sum()
    rel_entr = scipy.special.rel_entr
    return Divergences(float(rel_entr(p, q).sum()), float(rel_entr(q, p).sum()))


def _mixtures(a: Any, b: Any, key: KeyArray | None, samples: int) -> BlockDiff:
    """Estimate both directions by Monte Carlo in float64, with standard errors."""
    import jax

    # A member of a family is a mixture of one component.
    left, right = (q if q.is_mixture else Mixture(np.zeros(1), stack([q])) for q in (a, b))
    _check_alike(left.components.outline() == right.components.outline(), a, b, "")
    mine = _Labelled.of_mixture(left)
    theirs = _Labelled.of_mixture(right)
    # In an order by contents: equal mixtures are then equal to the last bit, and KL is zero.
    p, q = (
        Mixture(mixture.log_weights[own.order], mixture.components[own.order])
        for mixture, own in ((left, mine), (right, theirs))
    )
    with jax.enable_x64(True):
        key = jax.random.key(0) if key is None else key
        estimates = [one.kl(other, key=key, num_samples=samples) for one, other in ((p, q), (q, p))]
        values, errors = zip(*(map(float, estimate) for estimate in estimates), strict=True)
    plate = None
    if a.is_mixture and b.is_mixture:
        rows, columns = _match(mine, theirs)
        weights = _among(mine.shares[rows], theirs.shares[columns])
        plate = _plate_diff(mine, theirs, rows, columns, weights)
    name = f"Mixture of {type(left.components).__name__}"
    return BlockDiff("", name, Divergences(*values), plate, Divergences(*errors))
