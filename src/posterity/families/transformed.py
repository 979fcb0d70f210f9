"""Laws of bounded events: a law of real vectors, seen through a smooth one-to-one map."""

import dataclasses
from typing import Any, ClassVar, Self

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.tree import LABEL, labelled, static
from posterity.arrays.typing import Bool, Float, Int, KeyArray, Real
from posterity.errors import StructureError
from posterity.families.description import called, supports
from posterity.families.distribution import Distribution
from posterity.families.event_tables import event_tables
from posterity.families.marginals import Marginal, Names, Table
from posterity.families.names import not_reordered, with_names
from posterity.families.supports import Continuous, Support, map_supports
from posterity.families.unconstrained import Bijection, unconstrained


@dataclasses.dataclass(frozen=True)
class Supports:
    """A tree of supports that can be hashed and compared: what is static in a :class:`Transformed`.

    ``parts`` are a support, a tuple of trees, or pairs of name and tree.
    """

    parts: Any
    names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, tree: Any) -> "Supports":
        """From a tree of dictionaries, tuples and supports."""
        if isinstance(tree, dict):
            return cls(tuple(cls.of(part) for part in tree.values()), tuple(tree))
        if isinstance(tree, tuple):
            return cls(tuple(cls.of(part) for part in tree))
        return cls(tree)

    @property
    def tree(self) -> Any:
        """The tree it was made of."""
        if isinstance(self.parts, Support) or self.parts is None:
            return self.parts
        trees = tuple(part.tree for part in self.parts)
        return trees if self.names is None else dict(zip(self.names, trees, strict=True))


class Transformed(Distribution):
    """The law of ``z = f(u)``, where ``u`` follows ``law`` over vectors (d,) without bounds.

    ``f`` is the map of :func:`~posterity.families.unconstrained.unconstrained` onto ``supports``;
    ``u`` lies flat, its parts one after the other. So Gaussians become laws of scales,
    probabilities and covariances, with correlations between them. Names are those of ``u``, so
    ``q.law`` has them too: a Gaussian of unconstrained numbers, which ledgers and fusions take.

    Source: stan2024, section "Constraint Transforms".

    >>> from posterity.families import DiagonalGaussian, Gamma
    >>> scale = Gamma.from_standard(shape=2.0, rate=1.0)
    >>> q = Transformed.onto(scale, DiagonalGaussian.from_standard([0.0], [1.0]))
    >>> float(np.exp(q.log_prob(1.0)))  # a log-normal's density at one
    0.3989422804014327
    """

    law: Any
    supports: Supports = static()

    addend: ClassVar[str] = "Take its .law everywhere: that of the unconstrained numbers."

    def __post_init__(self) -> None:
        fits = isinstance(self.law, Distribution) and isinstance(self.supports, Supports)
        size = Bijection(self.supports.tree).size if fits else None
        if not fits or self.law.event_shape != (size,):
            raise StructureError(
                found=f"a law {self.law!r}",
                expected=f"one of vectors of {size} numbers" if fits else "a law and Supports",
                fix="Count the unconstrained numbers: unconstrained(prior).size.",
            )

    @classmethod
    def from_standard(cls, law: Distribution, supports: Any) -> Self:
        """From the law of ``u`` and a tree of supports, as ``Distribution.support`` is."""
        return cls(law, supports if isinstance(supports, Supports) else Supports.of(supports))

    @classmethod
    def onto(cls, like: Distribution, law: Distribution) -> Self:
        """The law of ``u`` on the support of another law, such as a prior.

        Raises:
            UsageError: if that law has no continuous support.
            StructureError: if the law is of another number of coordinates.
        """
        return cls.from_standard(law, unconstrained(like).support)

    def standard_parameters(self) -> dict[str, Any]:
        """``law`` and ``supports``."""
        return {"law": self.law, "supports": self.supports}

    def _take_names(self) -> None:
        """Give the law of ``u`` the names that this one was given."""
        law, names = self.__dict__["law"], self.__dict__.get(LABEL, ())
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
    def bijection(self) -> Bijection:
        """The map ``f``."""
        return Bijection(self.supports.tree)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """That of the law of ``u``."""
        return self.law.batch_shape

    @property
    def event_shape(self) -> Any:
        """The shape of ``z``."""
        return map_supports(lambda support: support.shape, self.supports.tree)

    @property
    def support(self) -> Any:
        """Where ``z`` lies."""
        return self.supports.tree

    @property
    def named_size(self) -> int:
        """The coordinates of ``u``."""
        return self.law.event_shape[0]

    def reordered(self, places: Int[np.ndarray, " d"]) -> Self:
        """Entries of dictionaries as a whole, and numbers within one array that has one axis.

        Raises:
            StructureError: if entries are torn apart, or what is mapped together changes places.
        """
        tree = _moved(self.supports.tree, np.asarray(places))
        if tree is _TORN:
            raise not_reordered(self, places)
        return type(self)(self.law.reordered(places), Supports.of(tree))

    def __getitem__(self, index: Any) -> Self:
        """Members of the batch, by NumPy's indexing rules."""
        made = type(self).of_children([self.law[index]], self.kept())
        return labelled(made, self.__dict__.get(LABEL, ()))

    def outline(self) -> Any:
        """What two members must share to be stacked."""
        return (type(self), self.supports, self.law.outline())

    def is_proper(self) -> Bool[Real, "*batch"]:
        """Whether the law of ``u`` is."""
        return self.law.is_proper()

    def moment_matched(self, weights: Float[Real, " k"]) -> Self:
        """As the law of ``u``, whose divergences are those of ``z``."""
        return type(self)(self.law.moment_matched(weights), self.supports)

    def _tables(self, names: Names, path: str, block: str) -> list[Table]:
        """Part by part of the event."""
        return list(event_tables(self, names.get(path, ()), block))

    def marginals(self) -> list[Marginal]:
        """Of each part of the event."""
        return [table.law for table in self._tables({}, "", "")]

    def _described(self, numbers: bool) -> str:
        return called(self, [f"{self.law._described(numbers)} onto {supports(self.supports.tree)}"])

    def sample(self, key: KeyArray, shape: tuple[int, ...] = ()) -> Any:
        """``f`` of draws of ``u``."""
        bijection = self.bijection
        return bijection.forward(bijection.unravel(self.law.sample(key, shape)))

    def _log_prob(self, z: Any) -> Float[Real, "..."]:
        """``log q(u) - log |det dz/du|``; minus infinity outside of the support."""
        bijection = self.bijection
        inside: Any = np.asarray(True)

        def one(support: Any, part: Any) -> Any:
            nonlocal inside
            xp = namespace(part)
            holds = support.holds(xp, part)
            axes = tuple(range(-len(support.outer), 0))
            inside = inside & (holds.all(axes) if axes else holds)
            return xp.np.where(
                holds.reshape((*holds.shape, *(1,) * support.axes)), part, _inner(support, part)
            )

        u = bijection.inverse(map_supports(one, self.supports.tree, z))
        found = self.law.log_prob(bijection.ravel(u)) - bijection.log_det(u)
        return namespace(found).np.where(inside, found, -np.inf)


_TORN = object()


def _size(tree: Any) -> int:
    return Bijection(tree).size if tree is not None else 0


def _moved(tree: Any, places: Int[np.ndarray, " d"]) -> Any:
    """The tree of which the numbers lie at these places of the old one's, or ``_TORN``."""
    if not isinstance(tree, dict | tuple):
        one_by_one = isinstance(tree, Continuous) and not tree.axes and len(tree.shape) <= 1
        return tree if one_by_one or np.array_equal(places, np.arange(len(places))) else _TORN
    items = dict(tree) if isinstance(tree, dict) else dict(enumerate(tree))
    sizes = {name: _size(part) for name, part in items.items()}
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()])[:-1], strict=True))
    found: dict[Any, Any] = {}
    begin = 0
    while begin < len(places):
        name = next(n for n in items if 0 <= places[begin] - starts[n] < sizes[n])
        inner = places[begin : begin + sizes[name]] - starts[name]
        if name in found or inner.min() < 0 or inner.max() >= sizes[name]:
            return _TORN
        found[name] = _moved(items[name], inner)
        if found[name] is _TORN:
            return _TORN
        begin += sizes[name]
    found |= {name: part for name, part in items.items() if name not in found}
    if isinstance(tree, dict):
        return found
    numbered = [name for name in found if sizes[name]]
    return tuple(found[i] for i in range(len(tree))) if numbered == sorted(numbered) else _TORN


def _inner(support: Any, part: Any) -> Any:
    """Some element of the support, to stand where there is none."""
    xp = namespace(part)
    return support.forward(xp, xp.np.zeros(support.free_shape, part.dtype))
