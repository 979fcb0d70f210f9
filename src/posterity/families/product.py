"""Product: named, independent blocks (a mean-field posterior)."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import equinox as eqx

from posterity.errors import StructureError
from posterity.families.base import ExponentialFamily
from posterity.families.composite import Composite


class Product(Composite):
    """Independent blocks by name; an event is a dictionary with the same names.

    Blocks are kept in the order of their names, so that equal products are equal files.

    >>> from posterity.families import Gamma, Gaussian
    >>> weight = Gaussian.from_standard([0.0], [[1.0]])
    >>> q = Product(noise=Gamma.from_standard(2.0, 1.0), weight=weight)
    >>> list(q.blocks)
    ['noise', 'weight']
    """

    blocks: dict[str, ExponentialFamily] = eqx.field()

    def __init__(
        self, blocks: Mapping[str, ExponentialFamily] | None = None, **named: ExponentialFamily
    ):
        """From a mapping, keyword arguments, or both."""
        merged = {**(blocks or {}), **named}
        self.blocks = {name: merged[name] for name in sorted(merged)}

    def __check_init__(self) -> None:
        shapes = {name: block.batch_shape for name, block in self.blocks.items()}
        if len(set(shapes.values())) != 1:
            raise StructureError(
                found=f"blocks of batch shapes {shapes}",
                expected="at least one named block, all of one batch shape",
                fix="Give every block the same leading axes.",
            )

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

    def parts(self) -> Sequence[ExponentialFamily]:
        """The blocks."""
        return list(self.blocks.values())

    def rebuild(self, parts: Sequence[ExponentialFamily]) -> Self:
        """The same names, other blocks."""
        return type(self)(dict(zip(self.blocks, parts, strict=True)))

    def split_event(self, z: Mapping[str, Any]) -> Sequence[Any]:
        """By name."""
        return [z[name] for name in self.blocks]

    def join_event(self, events: Sequence[Any]) -> dict[str, Any]:
        """By name."""
        return dict(zip(self.blocks, events, strict=True))
