"""Families composed of independent parts, and products of named blocks."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Bool, Flat, Float, Floats, Int, KeyArray, PyTree, Real, Shape
from posterity.errors import StructureError
from posterity.families.base import ExponentialFamily
from posterity.families.coordinates import Coordinates
from posterity.families.distribution import Distribution
from posterity.families.marginals import Names, Table
from posterity.families.names import called, joined
from posterity.families.supports import map_supports
from posterity.runtime.lazy import jax
from posterity.runtime.text import short_name


class Composite(ExponentialFamily):
    """Base class of laws of independent parts: normalisers, entropies and divergences are summed,
    and flat parameters are concatenated.

    A subclass defines ``parts``, whose batch shapes start with the composite's, and ``rebuild``.
    """

    coordinates: ClassVar[Coordinates] = {}
    composed = True
    standard: ClassVar[Coordinates] = {}

    standard_parameters = Distribution.standard_parameters

    def __post_init__(self) -> None:
        """Nothing: parts have checked themselves."""

    @property
    def event_shape(self) -> Any:
        return self._joined("event_shape", lambda shape, inner: (*inner, *shape))

    @property
    def degrees_of_variation(self) -> int:
        return self._counted("degrees_of_variation")

    @property
    def reparameterized(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if draws of all parts are differentiable functions of the parameters."""
        return all(part.reparameterized for part in self.parts())

    @property
    def named_size(self) -> int | None:
        return None

    @property
    def event_size(self) -> int:
        return self._counted("event_size")

    def _counted(self, what: str) -> int:
        return sum(math.prod(self._inner(p)) * getattr(p, what) for p in self.parts())

    @property
    def dimension(self) -> int:
        return self._counted("dimension")

    @property
    def natural_parameters(self) -> Flat:
        return self._line_up([part.natural_parameters for part in self.parts()])

    def with_natural_parameters(self, vector: Flat) -> Self:
        self._check_length(vector)
        return self._of_pieces("natural", vector)

    @property
    def mean_parameters(self) -> Flat:
        return self._line_up([part.mean_parameters for part in self.parts()])

    def with_mean_parameters(self, vector: Flat) -> Self:
        self._check_length(vector)
        return self._of_pieces("mean", vector)

    def fisher_information(self) -> Float[Real, "*batch dim dim"]:
        """Return the block-diagonal information, part by part: one program of all parts would take
        minutes to compile if there are hundreds.
        """
        xp = self.xp.np
        size = self.dimension
        each = []
        for part, piece in self._cut(xp.eye(size, dtype=self.natural_parameters.dtype)):
            own = part.dimension
            blocks = part.fisher_information().reshape(*self.batch_shape, -1, own, own)
            columns = xp.einsum("kmi,...mij->...kmj", piece.reshape(size, -1, own), blocks)
            each.append(columns.reshape(*self.batch_shape, size, -1))
        return xp.concatenate(each, axis=-1)

    def squared_length(self, step: Self) -> Float[Real, ""]:
        pairs = zip(self.parts(), step.parts(), strict=True)
        return sum(part.squared_length(along) for part, along in pairs)  # pyright: ignore

    def inverse_fisher_product(self, vector: Flat) -> Flat:
        self._check_length(vector)
        pairs = self._cut(vector)
        return self._line_up([part.inverse_fisher_product(piece) for part, piece in pairs])

    def sufficient_statistics(self, z: PyTree) -> Float[Real, "*shape dim"]:
        flat = []
        for part, event in zip(self.parts(), self.split_event(z), strict=True):
            statistics = part.sufficient_statistics(event)
            inner = len(self._inner(part))
            flat.append(statistics.reshape(*statistics.shape[: -1 - inner], -1))
        return self.xp.np.concatenate(flat, axis=-1)

    def log_normalizer(self) -> Float[Real, "*batch"]:
        return self._total([part.log_normalizer() for part in self.parts()])

    def negative_entropy(self) -> Float[Real, "*batch"]:
        return self._total([part.negative_entropy() for part in self.parts()])

    def _kl(self, other: Self) -> Float[Real, "*batch"]:
        pairs = zip(self.parts(), other.parts(), strict=True)
        return self._total([mine._kl(theirs) for mine, theirs in pairs])

    def _log_prob(self, z: PyTree) -> Floats:
        pairs = zip(self.parts(), self.split_event(z), strict=True)
        return self._total([part._log_prob(event) for part, event in pairs])

    def log_base_measure(self) -> float:
        each = (math.prod(self._inner(p)) * p.log_base_measure() for p in self.parts())
        return float(sum(each))

    def is_proper(self) -> Bool[Real, "*batch"]:
        flags = [_over(len(self._inner(p)), p.is_proper(), "all") for p in self.parts()]
        return namespace(*flags).np.stack(flags).all(0)

    @property
    def support(self) -> Any:
        return self._joined("support", lambda support, inner: support.copies(inner))

    def _joined(self, what: str, copied: Callable[[Any, Shape], Any]) -> Any:
        """Join the trees of the parts, with each leaf copied for the members of a part's batch."""

        def one(part: ExponentialFamily) -> Any:
            return map_supports(lambda leaf: copied(leaf, self._inner(part)), getattr(part, what))

        return self.join_event(list(map(one, self.parts())))

    def sample(self, key: KeyArray, shape: Shape = ()) -> Any:
        return self._sampled(key, lambda part, key: part.sample(key, shape))

    def sample_members(self, key: KeyArray, labels: Int[Real, "*shape"]) -> Any:
        return self._sampled(key, lambda part, key: part.sample_members(key, labels))

    def _sampled(self, key: KeyArray, one: Callable[[Any, KeyArray], Any]) -> Any:
        parts = self.parts()
        keys = jax.random.split(key, len(parts))
        return self.join_event([one(part, key) for part, key in zip(parts, keys, strict=True)])

    def _inner(self, part: ExponentialFamily) -> Shape:
        """Return the axes of a part's batch that the composite's batch lacks."""
        return part.batch_shape[len(self.batch_shape) :]

    def _line_up(self, vectors: list[Real]) -> Real:
        own = len(self.batch_shape)
        flat = [vector.reshape(*vector.shape[:own], -1) for vector in vectors]
        return namespace(*flat).np.concatenate(flat, axis=-1)

    def _cut(self, vector: Real) -> list[tuple[ExponentialFamily, Real]]:
        """Return each part with its piece of a flat vector, shaped as the part's batch."""
        start = 0
        pairs = []
        for part in self.parts():
            inner = self._inner(part)
            own = part.dimension
            end = start + math.prod(inner) * own
            piece = vector[..., start:end].reshape(*vector.shape[:-1], *inner, own)
            pairs.append((part, piece))
            start = end
        return pairs

    def _of_pieces(self, kind: Literal["natural", "mean"], vector: Real) -> Self:
        """Rebuild the law from flat parameters of this kind."""
        pairs = self._cut(vector)
        return self.rebuild([getattr(p, f"with_{kind}_parameters")(piece) for p, piece in pairs])

    def _total(self, terms: list[Real]) -> Real:
        """Return the sum of the parts' terms, including over a part's own batch."""
        pairs = zip(self.parts(), terms, strict=True)
        sums = [_over(len(self._inner(part)), term, "sum") for part, term in pairs]
        return sum(sums[1:], start=sums[0])


def _over(inner: int, values: Real, reduced: str) -> Real:
    """Reduce over the last ``inner`` axes, by the method of this name."""
    return getattr(values, reduced)(tuple(range(-inner, 0))) if inner else values


class Product(Composite):
    """A product of independent blocks by name; an event is a dictionary with the same names.

    Blocks are sorted by name, so that equal products have equal files.

    >>> from posterity.families import Gamma, Gaussian
    >>> weight = Gaussian.from_standard([0.0], [[1.0]])
    >>> q = Product(noise=Gamma.from_standard(2.0, 1.0), weight=weight)
    >>> list(q.blocks)
    ['noise', 'weight']
    """

    blocks: Mapping[str, ExponentialFamily]

    def __init__(
        self, blocks: Mapping[str, ExponentialFamily] | None = None, **named: ExponentialFamily
    ):
        """Make a product from a mapping, keyword arguments, or both."""
        merged = {**(blocks or {}), **named}
        ordered = MappingProxyType({name: merged[name] for name in sorted(merged)})
        object.__setattr__(self, "blocks", ordered)
        strange = {n: type(b) for n, b in merged.items() if not isinstance(b, ExponentialFamily)}
        shapes = {} if strange else {name: b.batch_shape for name, b in self.blocks.items()}
        if strange or len(set(shapes.values())) != 1:
            raise StructureError(
                found=f"blocks of {f'types {strange}' if strange else f'batch shapes {shapes}'}",
                expected="at least one named block, all exponential families of one batch shape",
            )

    @classmethod
    def of_children(cls, children: PyTree, kept: tuple[Any, ...] = ()) -> Self:
        (own,) = children
        return super().of_children([MappingProxyType(own) if type(own) is dict else own], kept)

    def children(self) -> tuple[Any, ...]:
        """Return the blocks as a dictionary, which is a pytree in JAX."""
        blocks = self.__dict__["blocks"]
        return (dict(blocks) if isinstance(blocks, MappingProxyType) else blocks,)

    def __reduce__(self) -> Any:
        return type(self), (dict(self.blocks),)

    @classmethod
    def from_standard(cls, **blocks: ExponentialFamily) -> Self:
        """Make it from its blocks by name."""
        return cls(blocks)

    def standard_parameters(self) -> dict[str, Any]:
        return dict(self.blocks)

    def __getattr__(self, name: str) -> ExponentialFamily:
        blocks = self.__dict__.get("blocks", {})
        if name in blocks:
            return blocks[name]
        raise AttributeError(f"no block {name!r}; this Product has {sorted(blocks)}")

    @property
    def batch_shape(self) -> Shape:
        return next(iter(self.blocks.values())).batch_shape

    def observations(self) -> Float[Real, "*batch"] | None:
        """Return the least number over blocks with a location, or the average over all if none has
        one; None if it is undefined for one of these.
        """
        blocks = list(self.blocks.values())
        located = [block for block in blocks if block.location() is not None]
        numbers: Any = [block.observations() for block in located or blocks]
        if any(number is None for number in numbers):
            return None
        if not located:
            return sum(numbers) / len(numbers)
        return functools.reduce(self.xp.np.minimum, numbers)

    def outline(self, *, plates: bool = True) -> Any:
        inner = ((name, block.outline(plates=plates)) for name, block in self.blocks.items())
        return (type(self), *inner)

    def location(self) -> dict[str, Any] | None:
        places = {name: block.location() for name, block in self.blocks.items()}
        return None if all(place is None for place in places.values()) else places

    def _translate(self, offset: PyTree) -> Self:
        if self.location() is None:
            return super()._translate(offset)
        if not isinstance(offset, Mapping) or set(offset) - set(self.blocks):
            raise StructureError(
                found=f"offsets {offset}", expected=f"some by name, of {list(self.blocks)}"
            )
        return type(self)({n: b.translate(offset.get(n)) for n, b in self.blocks.items()})

    def relabel(self, labels: Int[np.ndarray, " k"], size: int, axes: Sequence[int] = (0,)) -> Self:
        return self.rebuild([block.relabel(labels, size, axes) for block in self.parts()])

    def named_parts(self) -> dict[str, Any]:
        return dict(self.blocks)

    def _tables(self, names: Names, path: str, block: str) -> list[Table]:
        result: list[Table] = []
        for name, part in self.blocks.items():
            inner = f"{block}/{name}" if block else name
            result += part._tables(names, joined(path, name), inner)
        return result

    def _described(self, numbers: bool) -> str:
        blocks = self.blocks.items()
        return called(self, [f"{short_name(k)}={v._described(numbers)}" for k, v in blocks])

    def independent_blocks(self) -> Mapping[str, ExponentialFamily]:
        return self.blocks

    def parts(self) -> Sequence[ExponentialFamily]:
        return list(self.blocks.values())

    def rebuild(self, parts: Sequence[ExponentialFamily]) -> Self:
        return type(self)(dict(zip(self.blocks, parts, strict=True)))

    def split_event(self, z: Mapping[str, Any]) -> Sequence[Any]:
        return [z[name] for name in self.blocks]

    def join_event(self, events: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.blocks, events, strict=True))
