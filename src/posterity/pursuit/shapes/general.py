"""Components of families at large: textbook parameters without bounds."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posterity.arrays.namespace import namespace
from posterity.families import ExponentialFamily
from posterity.families.composite import Composite
from posterity.families.coordinates import POSITIVE_DEFINITE, REAL
from posterity.families.supports import PositiveDefiniteMatrices
from posterity.pursuit.shapes.base import Shape


@dataclasses.dataclass(frozen=True)
class General(Shape):
    """Any other family whose draws are differentiable: its textbook parameters, unconstrained.

    Noise is a key for each draw.
    """

    structure: Any
    """Of the member as a pytree."""
    sizes: tuple[tuple[int, ...], ...]
    nodal: bool = False

    @classmethod
    def like(cls, law: ExponentialFamily) -> "General":
        """For members like this one."""
        leaves, structure = jax.tree.flatten(law)
        return cls(structure, tuple(np.shape(leaf) for leaf in leaves))

    @property
    def noise_size(self) -> int:
        """One key."""
        return 1

    @property
    def moves(self) -> int:
        """All free parameters."""
        template = self._template()
        with jax.enable_x64(True):
            return jax.eval_shape(lambda: _free(template)).shape[0]

    def of(self, law: Any) -> Any:
        """Free parameters."""
        return _free(jax.tree.map(jnp.asarray, law))

    def law(self, parameters: Any) -> Any:
        """From textbook parameters, member by member."""
        parameters = jnp.asarray(parameters)
        one = lambda own: _bound(self._template(), own)
        found = one(parameters) if parameters.ndim == 1 else jax.vmap(one)(parameters)
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), found)

    def draw(self, parameters: Any, noise: Any) -> Any:
        """By the family."""
        return _bound(self._template(), parameters).sample(noise)

    def log_prob(self, parameters: Any, z: Any) -> Float[jax.Array, ""]:
        """By the family."""
        return _bound(self._template(), parameters).log_prob(z)

    def entropy(self, parameters: Any) -> Float[jax.Array, ""]:
        """By the family."""
        return _bound(self._template(), parameters).entropy()

    def move(self, parameters: Any, v: Float[jax.Array, " p"]) -> Any:
        """By addition."""
        return parameters + v

    def place(self, z: Any, deviation: Any) -> Any:
        """Not known for families at large."""
        raise AssertionError("asked of shapes of nodes alone")

    def deviation(self, parameters: Any) -> Any:
        """Not known for families at large."""
        raise AssertionError("asked of shapes of nodes alone")

    def narrowest(self, parameters: Any, unit: Any) -> float:
        """Not known for families at large."""
        raise AssertionError("asked of shapes of nodes alone")

    def noise(self, key: jax.Array, number: int) -> Any:
        """A key a draw."""
        return jax.random.split(key, number)

    def _template(self) -> Any:
        return jax.tree.unflatten(self.structure, [jnp.ones(size) for size in self.sizes])


def _free(law: Any) -> Any:
    """Textbook parameters without bounds, flat."""
    if isinstance(law, Composite):
        return jnp.concatenate([_batched(_free, part) for part in law.parts()])
    found = []
    for name, coordinate in type(law).standard.items():
        value = jnp.asarray(law.standard_parameters()[name])
        if coordinate.domain is POSITIVE_DEFINITE:
            matrix = PositiveDefiniteMatrices(value.shape)
            value = matrix.inverse(namespace(value), value)
        elif coordinate.domain is not REAL:
            value = jnp.log(value - _bound_of(coordinate, law))
        found.append(value.ravel())
    return jnp.concatenate(found)


def _bound(template: Any, free: Any) -> Any:
    """The member like ``template`` with these free parameters."""
    if isinstance(template, Composite):
        made, start = [], 0
        for part in template.parts():
            one = part[(0,) * len(part.batch_shape)]
            size = jax.eval_shape(lambda one=one: _free(one)).shape[0]
            count = math.prod(part.batch_shape)
            own = free[start : start + size * count].reshape(*part.batch_shape, size)
            build = lambda free, one=one: _bound(one, free)
            for _ in part.batch_shape:
                build = jax.vmap(build)
            made.append(build(own))
            start += size * count
        return template.rebuild(made)
    values, start, size = {}, 0, template.own_size
    for name, coordinate in type(template).standard.items():
        shape = coordinate.shape(size)
        support = PositiveDefiniteMatrices(shape) if coordinate.axes == 2 else None
        shape = shape if support is None else support.free_shape
        own = free[start : start + math.prod(shape)].reshape(shape)
        start += math.prod(shape)
        if support is not None:
            own = support.forward(namespace(own), own)
        elif coordinate.domain is not REAL:
            own = jnp.exp(own) + _bound_of(coordinate, template)
        values[name] = own
    return type(template).from_standard(**values)


def _batched(function: Any, part: Any) -> Any:
    for _ in part.batch_shape:
        function = jax.vmap(function)
    return function(part).ravel()


def _bound_of(coordinate: Any, law: Any) -> float:
    above: Any = coordinate.domain.above
    bound: Any = above(law.own_size) if callable(above) else above
    return float(bound)
