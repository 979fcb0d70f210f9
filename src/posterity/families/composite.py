"""Families built out of families, and products of named, independent blocks."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Bool, Flat, Float, Int, KeyArray, PyTree, Real
from posterity.errors import StructureError
from posterity.families.base import ExponentialFamily
from posterity.families.coordinates import Coordinates
from posterity.families.description import called
from posterity.families.distribution import Distribution
from posterity.families.marginals import Names, Table
from posterity.families.names import joined
from posterity.families.supports import map_supports
from posterity.lazy import jax
from posterity.text import short_name


class Composite(ExponentialFamily):
    """Independent parts: normalisers, entropies and divergences add, parameters line up.

    A subclass says what its ``parts`` are, each with a batch shape of its own that starts
    with the composite's, and rebuilds itself from new parts.
    """

    coordinates: ClassVar[Coordinates] = {}
    composed: ClassVar[bool] = True
    standard: ClassVar[Coordinates] = {}

    standard_parameters = Distribution.standard_parameters

    def __post_init__(self) -> None:
        """Parts have checked themselves."""

    @property
    def event_shape(self) -> Any:
        """The parts', with axes for the members of a part's own batch."""

        def copied(part: ExponentialFamily) -> Any:
            inner = self._inner(part)
            return map_supports(lambda shape: (*inner, *shape), part.event_shape)

        return self.join_event([copied(part) for part in self.parts()])

    @property
    def degrees_of_variation(self) -> int:
        """Those of all members of all parts."""
        parts = self.parts()
        return sum(math.prod(self._inner(part)) * part.degrees_of_variation for part in parts)

    @property
    def reparameterized(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if draws of all parts are differentiable functions of the parameters."""
        return all(part.reparameterized for part in self.parts())

    @property
    def named_size(self) -> int | None:
        """Only parts have coordinates."""
        return None

    @property
    def event_size(self) -> int:
        """Those of all members of all parts."""
        return sum(math.prod(part.batch_shape) * part.event_size for part in self.parts())

    @property
    def dimension(self) -> int:
        """That of all members of all parts."""
        return sum(math.prod(self._inner(part)) * part.dimension for part in self.parts())

    @property
    def natural_parameters(self) -> Flat:
        """Those of the parts, one after the other."""
        return self._line_up([part.natural_parameters for part in self.parts()])

    def with_natural_parameters(self, vector: Flat) -> Self:
        """Cut the flat vector into the parts'."""
        self._check_length(vector)
        return self._of_pieces("natural", vector)

    @property
    def mean_parameters(self) -> Flat:
        """Those of the parts, one after the other."""
        return self._line_up([part.mean_parameters for part in self.parts()])

    def with_mean_parameters(self, vector: Flat) -> Self:
        """Cut the flat vector into the parts'."""
        self._check_length(vector)
        return self._of_pieces("mean", vector)

    def fisher_information(self) -> Float[Real, "*batch dim dim"]:
        """Block-diagonal: parts are independent, and so are the members of a part's own batch."""
        xp, batch, total, start = self.xp.np, len(self.batch_shape), 0.0, 0
        for part in self.parts():
            blocks, size = part.fisher_information(), part.dimension
            blocks = blocks.reshape(*self.batch_shape, -1, size, size)
            for index in range(blocks.shape[batch]):
                around = (start, self.dimension - start - size)
                block = blocks[(slice(None),) * batch + (index,)]
                total = total + xp.pad(block, [(0, 0)] * batch + [around, around])
                start += size
        return total

    def squared_length(self, step: Self) -> Float[Real, ""]:
        """The sum over parts, and over the members of a part's own batch."""
        total: Any = 0.0
        for part, along in zip(self.parts(), step.parts(), strict=True):
            # A formula of a family's own is for one member; the general one takes them all.
            general = type(part).squared_length is ExponentialFamily.squared_length
            for index in [()] if general else np.ndindex(part.batch_shape):
                total = total + part[index].squared_length(along[index])
        return total

    def inverse_fisher_product(self, vector: Flat) -> Flat:
        """Part by part: the Fisher information of independent parts is block-diagonal."""
        self._check_length(vector)
        pieces = self._cut(vector, [part.dimension for part in self.parts()])
        pairs = zip(self.parts(), pieces, strict=True)
        return self._line_up([part.inverse_fisher_product(piece) for part, piece in pairs])

    def sufficient_statistics(self, z: PyTree) -> Float[Real, "*shape dim"]:
        """Those of the parts, one after the other."""
        flat = []
        for part, event in zip(self.parts(), self.split_event(z), strict=True):
            statistics = part.sufficient_statistics(event)
            inner = len(self._inner(part))
            flat.append(statistics.reshape(*statistics.shape[: -1 - inner], -1))
        return self.xp.np.concatenate(flat, axis=-1)

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """The sum over parts."""
        return self._total([part.log_normalizer() for part in self.parts()])

    def negative_entropy(self) -> Float[Real, "*batch"]:
        """The sum over parts."""
        return self._total([part.negative_entropy() for part in self.parts()])

    def _kl(self, other: Self) -> Float[Real, "*batch"]:
        pairs = zip(self.parts(), other.parts(), strict=True)
        return self._total([mine._kl(theirs) for mine, theirs in pairs])

    def _log_prob(self, z: PyTree) -> Float[Real, "..."]:
        pairs = zip(self.parts(), self.split_event(z), strict=True)
        return self._total([part._log_prob(event) for part, event in pairs])

    def log_base_measure(self) -> float:
        """The sum over parts."""
        copies = ((math.prod(self._inner(part)), part) for part in self.parts())
        return float(sum(n * part.log_base_measure() for n, part in copies))

    def is_proper(self) -> Bool[Real, "*batch"]:
        """True if all parts are distributions."""
        flags = []
        for part in self.parts():
            flag, inner = part.is_proper(), len(self._inner(part))
            flags.append(flag.all(tuple(range(-inner, 0))) if inner else flag)
        return namespace(*flags).np.stack(flags).all(0)

    @property
    def support(self) -> Any:
        """The parts', with axes for the members of a part's own batch."""

        def copied(part: ExponentialFamily) -> Any:
            inner = self._inner(part)
            return map_supports(lambda support: support.copies(inner), part.support)

        return self.join_event([copied(part) for part in self.parts()])

    def sample(self, key: KeyArray, shape: tuple[int, ...] = ()) -> Any:
        """Independent draws of the parts."""
        return self._sampled(key, lambda part, key: part.sample(key, shape))

    def sample_members(self, key: KeyArray, labels: Int[Real, "*shape"]) -> Any:
        """Independent draws of the parts' members."""
        return self._sampled(key, lambda part, key: part.sample_members(key, labels))

    def _sampled(self, key: KeyArray, one: Callable[[Any, KeyArray], Any]) -> Any:
        parts = self.parts()
        keys = jax.random.split(key, len(parts))
        return self.join_event([one(part, key) for part, key in zip(parts, keys, strict=True)])

    @property
    def free_size(self) -> int:
        """The number for all parts, the members of plates counted each."""
        return sum(math.prod(self._inner(part)) * part.free_size for part in self.parts())

    def free_parameters(self) -> Float[Real, "*batch free"]:
        """Part by part."""
        return self._line_up([part.free_parameters() for part in self.parts()])

    def with_free_parameters(self, free: Float[Real, "*batch free"]) -> Self:
        """Part by part."""
        return self._of_pieces("free", free)

    def _inner(self, part: ExponentialFamily) -> tuple[int, ...]:
        """The axes of a part's batch that the composite's lacks."""
        return part.batch_shape[len(self.batch_shape) :]

    def _line_up(self, vectors: list[Real]) -> Real:
        own = len(self.batch_shape)
        flat = [vector.reshape(*vector.shape[:own], -1) for vector in vectors]
        return namespace(*flat).np.concatenate(flat, axis=-1)

    def _cut(self, vector: Real, sizes: Sequence[int]) -> list[Real]:
        """The piece of a flat vector for each part, shaped as the part's own batch."""
        start, pieces = 0, []
        for part, size in zip(self.parts(), sizes, strict=True):
            inner = self._inner(part)
            end = start + math.prod(inner) * size
            pieces.append(vector[..., start:end].reshape(*vector.shape[:-1], *inner, size))
            start = end
        return pieces

    def _of_pieces(self, kind: Literal["natural", "mean", "free"], vector: Real) -> Self:
        """Parts made from flat parameters, each from its own piece."""
        parts = self.parts()
        sizes = [part.free_size if kind == "free" else part.dimension for part in parts]
        pairs = zip(parts, self._cut(vector, sizes), strict=True)
        return self.rebuild([getattr(p, f"with_{kind}_parameters")(piece) for p, piece in pairs])

    def _total(self, terms: list[Real]) -> Real:
        """The sum of the parts' terms, those of a part's own batch added up."""
        sums = []
        for part, term in zip(self.parts(), terms, strict=True):
            inner = len(self._inner(part))
            sums.append(term.sum(tuple(range(-inner, 0))) if inner else term)
        return sum(sums[1:], start=sums[0])


class Product(Composite):
    """Independent blocks by name; an event is a dictionary with the same names.

    Blocks are kept in the order of their names, so that equal products are equal files.

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
        """From a mapping, keyword arguments, or both."""
        merged = {**(blocks or {}), **named}
        ordered = MappingProxyType({name: merged[name] for name in sorted(merged)})
        object.__setattr__(self, "blocks", ordered)
        strange = {n: type(b) for n, b in merged.items() if not isinstance(b, ExponentialFamily)}
        shapes = {} if strange else {name: b.batch_shape for name, b in self.blocks.items()}
        if strange or len(set(shapes.values())) != 1:
            raise StructureError(
                found=f"blocks of types {strange}"
                if strange
                else f"blocks of batch shapes {shapes}",
                expected="at least one named block, all exponential families of one batch shape",
                fix="Give every block the same leading axes.",
            )

    @classmethod
    def of_children(cls, children: PyTree, kept: tuple[Any, ...] = ()) -> Self:
        """Around these blocks, unchecked."""
        (own,) = children
        return super().of_children([MappingProxyType(own) if type(own) is dict else own], kept)

    def children(self) -> tuple[Any, ...]:
        """The blocks, as the dictionary that JAX knows."""
        blocks = self.__dict__["blocks"]
        return (dict(blocks) if isinstance(blocks, MappingProxyType) else blocks,)

    def __reduce__(self) -> Any:
        return type(self), (dict(self.blocks),)

    @classmethod
    def from_standard(cls, **blocks: ExponentialFamily) -> Self:
        """From the blocks themselves."""
        return cls(blocks)

    def standard_parameters(self) -> dict[str, Any]:
        """The blocks."""
        return dict(self.blocks)

    def __getattr__(self, name: str) -> ExponentialFamily:
        blocks = self.__dict__.get("blocks", {})
        if name in blocks:
            return blocks[name]
        raise AttributeError(f"no block {name!r}; this Product has {sorted(blocks)}")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """That of every block."""
        return next(iter(self.blocks.values())).batch_shape

    def observations(self) -> Float[Real, "*batch"] | None:
        """The fewest that any block with a location is known from; None if one does not say."""
        located = [b.observations() for b in self.blocks.values() if b.location() is not None]
        if not located or any(number is None for number in located):
            return None
        return functools.reduce(self.xp.np.minimum, located)

    def outline(self, *, plates: bool = True) -> Any:
        """The blocks', by name."""
        inner = ((name, block.outline(plates=plates)) for name, block in self.blocks.items())
        return (type(self), *inner)

    def location(self) -> dict[str, Any] | None:
        """The blocks', by name; None where no block has one."""
        places = {name: block.location() for name, block in self.blocks.items()}
        return None if all(place is None for place in places.values()) else places

    def _translate(self, offset: PyTree) -> Self:
        if self.location() is None:
            return super()._translate(offset)
        if not isinstance(offset, Mapping) or set(offset) - set(self.blocks):
            raise StructureError(
                found=f"offsets {offset}",
                expected=f"offsets by name, for blocks among {list(self.blocks)}",
                fix="Shape the offset as location() is; blocks without one stay.",
            )
        return type(self)({n: b.translate(offset.get(n)) for n, b in self.blocks.items()})

    def relabel(
        self,
        labels: Int[np.ndarray, " k"],
        size: int,
        axes: Sequence[int] | Mapping[str, Sequence[int]] = (0,),
    ) -> Self:
        """Each block along its own axes; those that ``axes`` does not name stay.

        The states of a hidden Markov model are the members of the plates of emissions and of
        transitions, each state's own row, and the entries of those rows and of the initial
        probabilities; the units of a layer are the members of the weights that come in, and
        entries of those that go out.

        >>> from posterity.families import Dirichlet, Plate
        >>> rows = Plate(Dirichlet(np.array([[1.0, 2.0], [3.0, 4.0]])))
        >>> q = Product(initial=Dirichlet(np.array([5.0, 6.0])), transitions=rows)
        >>> q = q.relabel(np.array([1, 0]), 2, {"initial": (0,), "transitions": (0, 1)})
        >>> q.transitions.members.concentration_minus_one
        array([[4., 3.],
               [2., 1.]])
        """
        named = axes if isinstance(axes, Mapping) else dict.fromkeys(self.blocks, axes)
        if strangers := sorted(set(named) - set(self.blocks)):
            raise StructureError(
                found=f"axes of {strangers}",
                expected=f"axes of blocks among {list(self.blocks)}",
                fix="Name blocks of this product.",
            )
        return type(self)(
            {
                name: block.relabel(labels, size, named[name]) if name in named else block
                for name, block in self.blocks.items()
            }
        )

    def named_parts(self) -> dict[str, Any]:
        """The blocks."""
        return dict(self.blocks)

    def _tables(self, names: Names, path: str, block: str) -> list[Table]:
        """Block by block."""
        result: list[Table] = []
        for name, part in self.blocks.items():
            inner = f"{block}/{name}" if block else name
            result += part._tables(names, joined(path, name), inner)
        return result

    def _described(self, numbers: bool) -> str:
        blocks = self.blocks.items()
        return called(self, [f"{short_name(k)}={v._described(numbers)}" for k, v in blocks])

    def independent_blocks(self) -> Mapping[str, ExponentialFamily]:
        """The blocks."""
        return self.blocks

    def parts(self) -> Sequence[ExponentialFamily]:
        """The blocks."""
        return list(self.blocks.values())

    def rebuild(self, parts: Sequence[ExponentialFamily]) -> Self:
        """The same names, other blocks."""
        return type(self)(dict(zip(self.blocks, parts, strict=True)))

    def split_event(self, z: Mapping[str, Any]) -> Sequence[Any]:
        """The entries of the dictionary."""
        return [z[name] for name in self.blocks]

    def join_event(self, events: Sequence[Any]) -> dict[str, Any]:
        """A dictionary of the events."""
        return dict(zip(self.blocks, events, strict=True))
