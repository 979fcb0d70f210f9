"""Product: named, independent blocks (a mean-field posterior)."""

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from posterity.arrays.typing import Float, Int, PyTree, Real
from posterity.errors import StructureError
from posterity.families.base import ExponentialFamily
from posterity.families.composite import Composite
from posterity.families.description import called
from posterity.families.marginals import Names, Table
from posterity.families.names import joined
from posterity.text import short_name


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

    def free_form(self) -> Any:
        """Block by block."""
        from posterity.families.free_forms import ProductForm

        forms = {name: block.free_form() for name, block in self.blocks.items()}
        return None if None in forms.values() else ProductForm(tuple(forms), tuple(forms.values()))

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
