"""Which numbers a law is over, by name, and the marginal law of each."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from posterity.families import (
    Beta,
    Categorical,
    Dirichlet,
    Gamma,
    HiddenMarkov,
    LowRankGaussian,
    Mixture,
    Network,
    NormalGamma,
    NormalWishart,
    Plate,
    Product,
    Transformed,
    Wishart,
)
from posterity.families.gaussian import AnyGaussian
from posterity.families.names import names_of
from posterity.summary import marginals as m
from posterity.summary import mixed
from posterity.summary.transformed import parts_of_event

Names = Mapping[str, tuple[str, ...]]
WEIGHT = "weight"


class Row(NamedTuple):
    """What a posterior says of one number.

    Attributes:
        block: path of the block of a product that it is in, ``""`` without blocks.
        member: of a plate, by its name or number; ``""`` elsewhere.
        quantity: what of it: ``mean``, ``variance``, ``precision``, ``probability``, ``weight``;
            ``""`` is the coordinate itself.
        name: of the coordinate, or its number; ``""`` where there is but one and it has no name.
        mean: expected value; NaN where there is none.
        sd: standard deviation; infinite or NaN where there is none.
        low: where the equal-tailed interval begins; NaN where there is none.
        high: where it ends.
    """

    block: str
    member: str
    quantity: str
    name: str
    mean: float
    sd: float
    low: float
    high: float

    @property
    def label(self) -> str:
        """All that tells it from other rows, in one line."""
        inner = f"{self.quantity} of {self.name}" if self.quantity else self.name
        return ": ".join(part for part in (self.block, self.member, inner) if part) or "value"


@dataclasses.dataclass(frozen=True)
class Table:
    """Numbers of one block: ``law`` has an axis for each of ``axes``, then one for ``names``."""

    block: str
    quantity: str
    axes: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    law: m.Marginal

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(map(len, self.axes)) * len(self.names)

    def labels(self, index: int) -> tuple[str, str]:
        """Member and name of one of them, counted along the last axis first."""
        *members, name = np.unravel_index(index, (*map(len, self.axes), len(self.names)))
        told = (axis[i] for axis, i in zip(self.axes, members, strict=True))
        return ", ".join(told), self.names[int(name)]

    def rows(self, level: float, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        """Some of the rows; quantiles are found of these alone."""
        stop = self.size if stop is None else min(stop, self.size)
        with np.errstate(all="ignore"):
            some = self.law.reshaped((self.size,)).picked(slice(start, stop))
            columns = [some.mean, some.sd, *some.interval(level)]
        for index, values in enumerate(zip(*(c.tolist() for c in columns), strict=True), start):
            yield Row(self.block, self.labels(index)[0], self.quantity,
                      self.labels(index)[1], *values)  # fmt: skip


def tables_of(law: Any, names: Names | None = None) -> tuple[Table, ...]:
    """All numbers that a law is over, block by block; of a batch, with an axis for each of its own.

    Args:
        law: any family; improper parts have NaN.
        names: by path, of what has no names of its own.
    """
    known = {**(names or {}), **names_of(law)}
    batch = tuple(map(numbers, law.batch_shape))
    with np.errstate(all="ignore"):
        found = _tables(law, known, "", "")
    return tuple(dataclasses.replace(t, axes=(*batch, *t.axes)) for t in found)


def numbers(size: int) -> tuple[str, ...]:
    """Names of what has none."""
    return tuple(map(str, range(size)))


def joined(*parts: str) -> str:
    """A path."""
    return "/".join(part for part in parts if part)


@functools.singledispatch
def _tables(law: Any, names: Names, path: str, block: str) -> list[Table]:
    """Of a law without parts: improper members have NaN."""
    kinds = list(_quantities(law, names.get(path, ())))
    proper = np.asarray(law.is_proper())
    if proper.all():
        found = _marginals(law)
    elif not proper.any():
        found = [m.unknown((*proper.shape, len(own))) for _, own in kinds]
    else:
        found = [_scattered(one, proper) for one in _marginals(law[proper])]
    return [
        Table(block, quantity, (), own, one.reshaped((*law.batch_shape, len(own))))
        for (quantity, own), one in zip(kinds, found, strict=True)
    ]


def _scattered(law: m.Marginal, mask: np.ndarray) -> m.Marginal:
    def one(array: np.ndarray) -> np.ndarray:
        whole = np.full((*mask.shape, *array.shape[1:]), np.nan)
        whole[mask] = array
        return whole

    return law.mapped(one)


@_tables.register
def _(law: Product, names: Names, path: str, block: str) -> list[Table]:
    if isinstance(law, HiddenMarkov) and not path:
        states = names.get("emissions") or numbers(law.states)
        paths = ("emissions", "initial", "transitions", "transitions/members")
        names = {**dict.fromkeys(paths, states), **names}
    found = (
        _tables(part, names, joined(path, name), joined(block, name))
        for name, part in law.blocks.items()
    )
    return [table for part in found for table in part]


@_tables.register
def _(law: Plate, names: Names, path: str, block: str) -> list[Table]:
    labels = names.get(path) or numbers(law.size)
    inner = _tables(law.members, names, joined(path, "members"), block)
    found = [dataclasses.replace(table, axes=(labels, *table.axes)) for table in inner]
    if law.weights is not None:
        found.append(Table(block, WEIGHT, (), labels, _weights(law.weights)))
    return found


@_tables.register
def _(law: Mixture, names: Names, path: str, block: str) -> list[Table]:
    inner = _tables(law.components, names, joined(path, "components"), block)
    return [
        dataclasses.replace(t, law=mixed.Mixed(np.asarray(law.weights, float), t.law))
        for t in inner
    ]


@_tables.register
def _(law: Network, names: Names, path: str, block: str) -> list[Table]:
    """None: weights of networks are told by layer."""
    del law, names, path, block
    return []


@_tables.register
def _(law: Transformed, names: Names, path: str, block: str) -> list[Table]:
    return [
        Table(joined(block, place), "", (), own, one)
        for place, own, one in parts_of_event(law, names.get(path, ()))
    ]


def _weights(weights: Any) -> m.Marginal:
    """Mixing weights; those of sticks without quantiles."""
    if not np.all(weights.is_proper()):
        return m.unknown(weights.weights_shape)
    if isinstance(weights, Dirichlet):
        return _marginals(weights)[0]
    mean = np.asarray(weights.mean_weights(), float)
    if not isinstance(weights, Beta):
        return m.Known(mean, np.full(mean.shape, np.nan))
    a, b = m.same_shape(weights.a, weights.b)
    square, ones = (a + b) * (a + b + 1), np.ones((*a.shape[:-1], 1))
    before = lambda left: np.concatenate([ones, np.cumprod(left, axis=-1)[..., :-1]], axis=-1)
    first = a / (a + b) * before(b / (a + b))
    second = a * (a + 1) / square * before(b * (b + 1) / square)
    return m.Known(mean, np.sqrt(np.maximum(second - first**2, 0.0)))


# --- laws without parts --------------------------------------------------------------------------


def _quantities(law: Any, names: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What the numbers of a law are, and their names."""
    if isinstance(law, Categorical):
        size = law.own_size + 1
        yield "probability", names if len(names) == size else numbers(size)
    elif isinstance(law, Wishart):
        own = names or numbers(law.own_size)
        pairs = zip(*np.triu_indices(law.own_size), strict=True)
        yield "precision", tuple(own[i] if i == j else f"{own[i]}, {own[j]}" for i, j in pairs)
    else:
        # What is but a number goes by its block.
        scalar = isinstance(law, Gamma | Beta)
        own = names or (("",) if scalar else numbers(law.named_size))
        yield _first_quantity(law), own
        if isinstance(law, NormalGamma | NormalWishart):
            yield "variance", own


def _first_quantity(law: Any) -> str:
    if isinstance(law, NormalGamma | NormalWishart):
        return "mean"
    return "probability" if isinstance(law, Dirichlet) else ""


def _marginals(law: Any) -> list[m.Marginal]:
    """The laws of these numbers, (..., n); of proper members."""
    for family, rule in _RULES:
        if isinstance(law, family):
            return [made if made.shape[len(law.batch_shape) :] else made.reshaped((*made.shape, 1))
                    for made in rule(law)]  # fmt: skip
    size = law.named_size or 1  # a user's own family: nobody says what its numbers are
    return [m.unknown((*law.batch_shape, size))]


def _gaussian(q: Any) -> list[m.Marginal]:
    variance = q.variance if q.diagonal else np.diagonal(q.covariance, axis1=-2, axis2=-1)
    return [m.Normal(*m.same_shape(q.mean, np.sqrt(variance)))]


def _low_rank(q: LowRankGaussian) -> list[m.Marginal]:
    variance = np.asarray(q.variance) + (np.asarray(q.factor) ** 2).sum(-1)
    return [m.Normal(*m.same_shape(q.mean, np.sqrt(variance)))]


def _dirichlet(q: Dirichlet) -> list[m.Marginal]:
    alpha = np.asarray(q.concentration, float)
    # What the others have, summed and not subtracted, keeps its digits.
    first = np.concatenate([np.zeros((*alpha.shape[:-1], 1)), np.cumsum(alpha, -1)[..., :-1]], -1)
    back = np.cumsum(alpha[..., ::-1], -1)[..., ::-1]
    later = np.concatenate([back[..., 1:], np.zeros((*alpha.shape[:-1], 1))], -1)
    return [m.BetaLaw(alpha, first + later)]


def _categorical(q: Categorical) -> list[m.Marginal]:
    p = np.asarray(q.probabilities, float)
    return [m.Known(p, np.sqrt(p * (1 - p)))]


def _normal_gamma(q: NormalGamma) -> list[m.Marginal]:
    mean, kappa, s, nu = m.same_shape(
        q.mean, q.mean_precision, q.inverse_scale, q.degrees_of_freedom
    )
    return [m.StudentT(mean, np.sqrt(s / (kappa * nu)), nu), m.InverseGamma(nu / 2, s / 2)]


def _normal_wishart(q: NormalWishart) -> list[m.Marginal]:
    """Of the mean, and of each variance on the diagonal of the inverse Wishart."""
    size, scatter = q.own_size, np.diagonal(q.inverse_scale, axis1=-2, axis2=-1)
    degrees = np.asarray(q.degrees_of_freedom, float)[..., None] - size + 1
    kappa = np.asarray(q.mean_precision, float)[..., None]
    mean, s, kappa, nu = m.same_shape(q.mean, scatter, kappa, degrees)
    return [m.StudentT(mean, np.sqrt(s / (kappa * nu)), nu), m.InverseGamma(nu / 2, s / 2)]


def _wishart(q: Wishart) -> list[m.Marginal]:
    scale = np.asarray(q.scale, float)
    rows, columns = np.triu_indices(q.own_size)
    diagonal = np.diagonal(scale, axis1=-2, axis2=-1)
    size = np.sqrt(diagonal[..., rows] * diagonal[..., columns])
    rho = np.clip(scale[..., rows, columns] / size, -1.0, 1.0)
    nu = np.asarray(q.degrees_of_freedom, float)[..., None]
    return [_Entries(*m.same_shape(size, rho, nu))]


class _Entries(mixed.Product2):
    """A diagonal entry is Gamma, the case of a correlation of one."""

    def quantile(self, p: float) -> np.ndarray:
        """Exact on the diagonal."""
        own = self.s * 2 * m.special.gammaincinv(self.nu / 2, p)
        whole = self.rho >= 1
        if whole.all():
            return own
        return np.where(whole, own, super().quantile(p))


_RULES: list[tuple[Any, Any]] = [
    (AnyGaussian, _gaussian),
    (LowRankGaussian, _low_rank),
    (Dirichlet, _dirichlet),
    (Categorical, _categorical),
    (NormalGamma, _normal_gamma),
    (NormalWishart, _normal_wishart),
    (Wishart, _wishart),
    (Gamma, lambda q: [m.GammaLaw(*m.same_shape(q.shape, q.rate))]),
    (Beta, lambda q: [m.BetaLaw(*m.same_shape(q.a, q.b))]),
]
