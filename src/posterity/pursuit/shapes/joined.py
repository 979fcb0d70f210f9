"""Components of several blocks."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posterity.families import Product
from posterity.pursuit.shapes.base import Shape


@dataclasses.dataclass(frozen=True)
class Joined(Shape):
    """Independent blocks, each of its own shape: events are dictionaries."""

    names: tuple[str, ...]
    parts: tuple[Shape, ...]

    @property
    def nodal(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """If all blocks are."""
        return all(part.nodal for part in self.parts)

    @property
    def noise_size(self) -> int:
        """Of all blocks."""
        return sum(part.noise_size for part in self.parts)

    @property
    def moves(self) -> int:
        """Of all blocks."""
        return sum(part.moves for part in self.parts)

    def of(self, law: Product) -> Any:
        """Block by block."""
        return tuple(part.of(law.blocks[name]) for name, part in self._pairs())

    def law(self, parameters: Any) -> Product:
        """Block by block."""
        rows = zip(self.names, self.parts, parameters, strict=True)
        return Product({name: part.law(own) for name, part, own in rows})

    def draw(self, parameters: Any, noise: Any) -> Any:
        """Block by block."""
        rows = zip(self._pairs(), parameters, self._split(noise), strict=True)
        return {name: part.draw(own, some) for (name, part), own, some in rows}

    def log_prob(self, parameters: Any, z: Any) -> Float[jax.Array, ""]:
        """The sum over blocks."""
        rows = zip(self._pairs(), parameters, strict=True)
        return sum(part.log_prob(own, z[name]) for (name, part), own in rows)  # pyright: ignore

    def entropy(self, parameters: Any) -> Float[jax.Array, ""]:
        """The sum over blocks."""
        rows = zip(self.parts, parameters, strict=True)
        return sum(part.entropy(own) for part, own in rows)  # pyright: ignore

    def move(self, parameters: Any, v: Float[jax.Array, " p"]) -> Any:
        """Block by block."""
        ends = np.cumsum([part.moves for part in self.parts])[:-1].tolist()
        rows = zip(self.parts, parameters, jnp.split(v, ends), strict=True)
        return tuple(part.move(own, some) for part, own, some in rows)

    def place(self, z: Any, deviation: Any) -> Any:
        """Block by block."""
        return tuple(part.place(z[name], deviation[name]) for name, part in self._pairs())

    def deviation(self, parameters: Any) -> Any:
        """Block by block."""
        rows = zip(self._pairs(), parameters, strict=True)
        return {name: part.deviation(own) for (name, part), own in rows}

    def narrowest(self, parameters: Any, unit: Any) -> float:
        """Of all blocks; ``unit`` is flat, in the order of sorted names."""
        found, start = [], 0
        rows = zip(self._pairs(), parameters, strict=True)
        for (_, part), own in sorted(rows, key=lambda row: row[0][0]):
            size = sum(np.size(leaf) for leaf in jax.tree.leaves(part.deviation(own)))
            found.append(part.narrowest(own, unit[start : start + size]))
            start += size
        return min(found)

    def noise(self, key: jax.Array, number: int) -> Any:
        """Normal noise, or a tuple of each block's where one needs its own."""
        if self.nodal:
            return super().noise(key, number)
        keys = jax.random.split(key, len(self.parts))
        return tuple(part.noise(own, number) for part, own in zip(self.parts, keys, strict=True))

    def _split(self, noise: Any) -> Any:
        if isinstance(noise, tuple):
            return noise
        ends = np.cumsum([part.noise_size for part in self.parts])[:-1].tolist()
        return jnp.split(noise, ends)

    def _pairs(self) -> list[tuple[str, Shape]]:
        return list(zip(self.names, self.parts, strict=True))
