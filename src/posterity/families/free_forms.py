"""The form of the members of a family (:mod:`posterity.families.forms`), and flat events."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import PyTree, Real, Shape
from posterity.families.base import ExponentialFamily
from posterity.families.composite import Product
from posterity.families.distribution import Distribution
from posterity.families.forms import FreeForm, SmoothForm
from posterity.families.gaussian import AnyGaussian
from posterity.families.gaussian_forms import DiagonalForm, FullForm, LowRankForm
from posterity.families.low_rank_gaussian import LowRankGaussian


def event_of(law: Distribution) -> Any:
    """Return the shapes of one event of a law."""
    return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, law).sample(jax.random.key(0)))


def flat(event: PyTree) -> Any:
    """Return the numbers of an event as one vector (size,)."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(event)])


def shaped(z: Real, like: PyTree) -> Any:
    """Return an event like another from a vector of its numbers (..., size)."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])[:-1].tolist()
    parts = zip(namespace(z).np.split(z, ends, axis=-1), leaves, strict=True)
    rows = [part.reshape(*z.shape[:-1], *leaf.shape) for part, leaf in parts]
    return jax.tree.unflatten(structure, rows)


def form_of(law: Distribution) -> FreeForm | None:
    """Return the form of members like this one; None if draws cannot be differentiated."""
    if isinstance(law, AnyGaussian):
        return (DiagonalForm if law.diagonal else FullForm)(law.own_size)
    if isinstance(law, LowRankGaussian):
        return LowRankForm(law.event_shape[0], law.rank)
    if isinstance(law, Product):
        forms = {name: form_of(law.blocks[name]) for name in sorted(law.blocks)}
        whole: Any = tuple(forms.values())
        if None in whole:
            return None
        smooth = all(isinstance(part, SmoothForm) for part in whole)
        size = sum(part.size for part in whole)
        return (_SmoothProduct if smooth else _Product)(tuple(forms), whole, size)
    if isinstance(law, ExponentialFamily) and law.reparameterized:
        leaves, structure = jax.tree.flatten(law)
        size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(event_of(law)))
        return _Standard(structure, tuple(map(np.shape, leaves)), size)
    return None


@dataclasses.dataclass(frozen=True)
class _Product(FreeForm):
    """Independent blocks in the order of their names, each with its own form."""

    names: tuple[str, ...]
    parts: tuple[FreeForm, ...]
    size: int

    @property
    def noise_size(self) -> int:
        return sum(self._sizes("noise_size"))

    @property
    def moves(self) -> int:
        return sum(self._sizes("moves"))

    def _sizes(self, kind: str) -> list[int]:
        return [getattr(part, kind) for part in self.parts]

    def _rows(self, parameters: PyTree, *split: tuple[Real, str]) -> list[tuple[Any, ...]]:
        """Return for each block its form, its parameters, and its share of each vector."""
        vectors = (_split(vector, self._sizes(kind)) for vector, kind in split)
        return list(zip(self.parts, parameters, *vectors, strict=True))

    def parameters(self, law: Any) -> Any:
        blocks = zip(self.names, self.parts, strict=True)
        return tuple(part.parameters(law.blocks[name]) for name, part in blocks)

    def law(self, parameters: PyTree, like: Any) -> Any:
        rows = zip(self.names, self._rows(parameters), strict=True)
        return type(like)({name: part.law(own, like.blocks[name]) for name, (part, own) in rows})

    def draw(self, parameters: PyTree, noise: Real) -> Any:
        if self.smooth:
            rows = self._rows(parameters, (noise, "noise_size"))
            return jnp.concatenate([part.draw(own, some) for part, own, some in rows])
        every = zip(self._rows(parameters), jax.random.split(noise, len(self.parts)), strict=True)

        def normal(part, key):
            return jax.random.normal(key, (part.noise_size,))

        return jnp.concatenate([
            part.draw(own, normal(part, key) if part.smooth else key)
            for (part, own), key in every
        ])  # fmt: skip

    def log_prob(self, parameters: PyTree, z: Real) -> Float[jax.Array, ""]:
        rows = self._rows(parameters, (z, "size"))
        return sum((part.log_prob(own, some) for part, own, some in rows), jnp.zeros(()))

    def entropy(self, parameters: PyTree) -> Float[jax.Array, ""]:
        return sum((part.entropy(own) for part, own in self._rows(parameters)), jnp.zeros(()))

    def move(self, parameters: PyTree, v: Real) -> Any:
        rows = self._rows(parameters, (v, "moves"))
        return tuple(part.move(own, some) for part, own, some in rows)


@dataclasses.dataclass(frozen=True)
class _SmoothProduct(_Product, SmoothForm):
    """Independent blocks whose forms are all smooth."""

    parts: tuple[SmoothForm, ...]

    def place(self, z: Real, deviation: Real, root: np.ndarray | None = None) -> Any:
        del root
        events = (_split(vector, self._sizes("size")) for vector in (z, deviation))
        return tuple(part.place(*own) for part, *own in zip(self.parts, *events, strict=True))

    def deviation(self, parameters: PyTree) -> Any:
        np_ = namespace(*jax.tree.leaves(parameters)).np
        return np_.concatenate([part.deviation(own) for part, own in self._rows(parameters)])

    def narrowed(self, parameters: PyTree) -> Any:
        return tuple(part.narrowed(own) for part, own in self._rows(parameters))

    def narrowest(self, parameters: PyTree, unit: Float[np.ndarray, " d"]) -> float:
        """Return the least deviation over all blocks."""
        rows = self._rows(parameters, (unit, "size"))
        return min(part.narrowest(own, some) for part, own, some in rows)


def _split(array: Real, sizes: list[int]) -> list[Real]:
    return namespace(array).np.split(array, np.cumsum(sizes)[:-1].tolist())


@dataclasses.dataclass(frozen=True)
class _Standard(FreeForm):
    """Any other family with differentiable draws, by its unconstrained standard parameters."""

    structure: Any
    """The structure of the member as a pytree."""
    shapes: tuple[Shape, ...]
    size: int

    @property
    def noise_size(self) -> int:
        return 1

    @property
    def moves(self) -> int:
        return self._template().free_size

    def parameters(self, law: Any) -> Any:
        return np.asarray(law.free_parameters())

    def law(self, parameters: PyTree, like: Any) -> Any:
        return like.with_free_parameters(np.asarray(parameters, np.float64))

    def draw(self, parameters: PyTree, noise: Real) -> Any:
        return flat(self._member(parameters).sample(noise))

    def log_prob(self, parameters: PyTree, z: Real) -> Float[jax.Array, ""]:
        return self._member(parameters).log_prob(shaped(z, event_of(self._template())))

    def entropy(self, parameters: PyTree) -> Float[jax.Array, ""]:
        return self._member(parameters).entropy()

    def move(self, parameters: PyTree, v: Real) -> Any:
        return parameters + v

    def _member(self, parameters: PyTree) -> Any:
        return self._template().with_free_parameters(parameters)

    def _template(self) -> Any:
        return jax.tree.unflatten(self.structure, [jnp.ones(shape) for shape in self.shapes])
