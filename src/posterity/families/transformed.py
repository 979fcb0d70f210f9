"""Laws of images of unconstrained real vectors, with correlations between what is constrained."""

import math
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.tree import LABEL, labelled, static
from posterity.arrays.typing import Bool, Float, Floats, Index, Int, KeyArray, PyTree, Real, Shape
from posterity.errors import StructureError
from posterity.families.distribution import Distribution
from posterity.families.marginals import Marginal, Names, Sampled, Table, unknown
from posterity.families.names import called, with_names
from posterity.families.supports import (
    Continuous,
    PositiveDefiniteMatrices,
    Support,
    listed,
    map_supports,
)
from posterity.families.unconstrained import Supports, unconstrained


class Transformed(Distribution):
    """The law of ``z = f(u)``, where ``u`` follows ``law`` over unconstrained vectors (d,).

    ``f`` is the map of :func:`~posterity.families.unconstrained.unconstrained` onto ``supports``,
    and ``u`` is flat, part after part. Gaussians thus become laws of scales, probabilities and
    covariances with correlations between them. Names are those of the coordinates of ``u``. For
    ledgers and fusions use ``q.law``, the Gaussian of ``u``, which has the same names.

    Source: stan2024, section "Constraint Transforms".

    >>> from posterity.families import DiagonalGaussian, Gamma
    >>> scale = Gamma.from_standard(shape=2.0, rate=1.0)
    >>> q = Transformed.onto(scale, DiagonalGaussian.from_standard([0.0], [1.0]))
    >>> float(np.exp(q.log_prob(1.0)))  # a log-normal's density at one
    0.3989422804014327
    """

    law: Any
    supports: Supports = static()

    addend = "Take its .law everywhere: that of the unconstrained numbers."

    def __post_init__(self) -> None:
        fits = isinstance(self.law, Distribution) and isinstance(self.supports, Supports)
        size = self.supports.size if fits else None
        if not fits or self.law.event_shape != (size,):
            raise StructureError(
                found=f"a law {self.law!r}",
                expected=f"one of vectors of {size} numbers" if fits else "a law and Supports",
            )

    @classmethod
    def from_standard(cls, law: Distribution, supports: Any) -> Self:
        """Make a law from the law of ``u`` and a tree of supports, as in ``Distribution.support``;
        a StructureError if they are not supports or have another number of coordinates.
        """
        if not isinstance(supports, Supports):
            every = listed(supports)
            if not every or not all(isinstance(each, Support) for each in every):
                raise StructureError(
                    found=f"supports {supports!r}",
                    expected="what is in posterity.families.supports, or dictionaries and tuples "
                    "of such",
                )
            supports = Supports(supports)
        return cls(law, supports)

    @property
    def unmapped(self) -> tuple[Distribution, Any]:
        return self.law, self.supports

    @classmethod
    def onto(cls, like: Distribution, law: Distribution) -> Self:
        """Make a law from the law of ``u`` and the support of another law, such as a prior.

        Raises:
            UsageError: if that law has no continuous support.
            StructureError: if the law is of another number of coordinates.
        """
        return cls(law, unconstrained(like))

    def _take_names(self) -> None:
        law = self.__dict__["law"]
        names = self.__dict__.get(LABEL, ())
        fits = isinstance(law, Distribution) and (
            law.named_size == len(names) or len(law.named_parts()) == 1
        )
        if names and fits and law.names != names:
            object.__setattr__(self, "law", law.named(list(names)))

    def children(self) -> tuple[Any, ...]:
        """The law of ``u`` without names, which the transformed law has."""
        (law,) = super().children()
        return (with_names(law, {}) if isinstance(law, Distribution) and law.names else law,)

    @property
    def batch_shape(self) -> Shape:
        return self.law.batch_shape

    @property
    def support(self) -> Any:
        return self.supports.tree

    @property
    def named_size(self) -> int:
        return self.law.event_shape[0]

    def __getitem__(self, index: Index) -> Self:
        """Members of the batch, by NumPy's indexing rules."""
        made = type(self).of_children([self.law[index]], self.kept())
        return labelled(made, self.__dict__.get(LABEL, ()))

    def outline(self) -> Any:
        """The properties that two members must share to be stacked."""
        return (type(self), self.supports, self.law.outline())

    def is_proper(self) -> Bool[Real, "*batch"]:
        return self.law.is_proper()

    def moment_matched(self, weights: Float[Real, " k"]) -> Self:
        """The moment-matched law of ``u``, whose divergences are those of ``z``."""
        return type(self)(self.law.moment_matched(weights), self.supports)

    def _tables(self, names: Names, path: str, block: str) -> list[Table]:
        """Part by part of the event.

        Quantiles of numbers are those of the law of real vectors, mapped. What is mapped together,
        such as probabilities and covariances, is drawn 4,096 times, always with the same seed.
        """
        every = names.get(path, ())
        proper = bool(np.all(self.is_proper()))
        batch = self.batch_shape
        numbers = self.law.marginals()[0] if proper else unknown((*batch, self.supports.size))
        tables = []
        draws = None
        start = 0
        for index, (place, support) in enumerate(_paths(self.supports.tree, "")):
            where = slice(start, start + math.prod(support.free_shape))
            own = every[where]
            start = where.stop
            if support.normal_image is not None:
                place, own = _labelled(place, support, own)
                law = numbers.mapped_normal(support.normal_image).picked((..., where))
            else:
                if draws is None:  # of an improper law only shapes mean something
                    flat = np.zeros((1, *batch, self.supports.size))
                    if proper:
                        flat = self.law.numpy_draws(np.random.default_rng(0), self.marginal_draws)
                    draws = listed(self.supports.forward(self.supports.unravel(flat)))
                values = np.asarray(draws[index], float)
                if isinstance(support, PositiveDefiniteMatrices):  # symmetric: each entry once
                    values = values[(..., *np.triu_indices(support.shape[-1]))]
                values = values.reshape((*values.shape[: 1 + len(batch)], -1))
                own = _numbered(support)
                law = Sampled(values) if proper else unknown(values.shape[1:])
            tables.append(Table("/".join(filter(None, (block, place))), "", (), own, law))
        return tables

    def marginals(self) -> list[Marginal]:
        return [table.law for table in self._tables({}, "", "")]

    def _described(self, numbers: bool) -> str:
        sets = map_supports(lambda support: type(support).__name__, self.supports.tree)
        return called(self, [f"{self.law._described(numbers)} onto {sets}"])

    def sample(self, key: KeyArray, shape: Shape = ()) -> Any:
        return self.supports.forward(self.supports.unravel(self.law.sample(key, shape)))

    def sample_members(self, key: KeyArray, labels: Int[Real, "*shape"]) -> Any:
        return self.supports.forward(self.supports.unravel(self.law.sample_members(key, labels)))

    def _log_prob(self, z: PyTree) -> Floats:
        supports = self.supports
        inside = np.asarray(True)

        def one(support: Continuous, part: Real) -> Real:
            """The part, and where it is outside of its support some element of that."""
            nonlocal inside
            xp = namespace(part)
            holds = support.holds(xp, part)
            axes = tuple(range(-len(support.outer), 0))
            inside = inside & holds.all(axes)
            element = support.forward(xp, xp.np.zeros(support.free_shape, part.dtype))
            return xp.np.where(holds.reshape((*holds.shape, *(1,) * support.axes)), part, element)

        u = supports.inverse(map_supports(one, supports.tree, z))
        density = self.law.log_prob(supports.ravel(u)) - supports.log_det(u)
        return namespace(density).np.where(inside, density, -np.inf)


# --- tables of events ----------------------------------------------------------------------------


def _paths(tree: PyTree, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict | tuple):
        for name, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _paths(part, f"{path}/{name}" if path else str(name))
    elif tree is not None:
        yield path, tree


def _labelled(
    path: str, support: Continuous, names: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    """The block and labels of numbers; without names, one goes by its part's, several by place.

    Names that begin with their part's, ``sigma`` or ``beta[0]``, already say where they are.
    """
    head, _, last = path.rpartition("/")
    if names:
        within = last and all(name == last or name.startswith(f"{last}[") for name in names)
        return (head if within else path), names
    if not support.shape:
        return head, (last or "0",)
    return path, _numbered(support)


def _numbered(support: Support) -> tuple[str, ...]:
    """The places of the entries of an array; of a symmetric matrix each once."""
    if isinstance(support, PositiveDefiniteMatrices):
        pairs = np.argwhere(np.triu(np.ones(support.shape[-2:]))).tolist()
        places = [(*outer, *pair) for outer in np.ndindex(*support.outer) for pair in pairs]
    else:
        places = list(np.ndindex(*(support.shape or (1,))))
    return tuple(str(place[0]) if len(place) == 1 else str(place) for place in places)
