"""The vector space that everything else lives in: natural parameters of one family.

In an exponential family the density is ``q(z | eta) = h exp(eta . s(z) - A(eta))``. Natural
parameters ``eta`` add, subtract and scale; a difference of two posteriors, a *factor*, is an
element of the same space that need not be a distribution. All families here have a base
measure ``h`` that does not depend on ``z``.
"""

import abc
import operator
from typing import Any, ClassVar, Self, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Float, Key

from posterity.arrays.namespace import (
    Namespace,
    Real,
    half_vectorize,
    namespace,
    unhalf_vectorize,
)
from posterity.errors import StructureError

SCALAR, VECTOR, SYMMETRIC = 0, 1, 2
"""Shapes of a natural parameter: the number of its own axes, after those of the batch."""


Family = TypeVar("Family", bound="ExponentialFamily")


class ExponentialFamily(eqx.Module):
    """Natural parameters of one exponential family, for a batch of members at once.

    Leaves are the natural parameters, NumPy or JAX arrays of shape ``batch + own``. Authors
    of a family list their leaves in ``coordinates`` and write the formulas marked abstract,
    over any leading batch axes; all else is derived here. See ``docs/new-family.md``.

    Flat vectors (``natural_parameters``, ``mean_parameters``, ``sufficient_statistics``) hold
    a symmetric matrix as its upper triangle, scaled so that inner products are kept.

    Source: wainwright2008, chapter 3.
    """

    coordinates: ClassVar[dict[str, int]]
    reparameterized: ClassVar[bool] = True
    """Whether draws are differentiable functions of the parameters."""

    # Equinox wraps every access of a method in a new Module, which costs more than the formulas
    # themselves on small members; a plain bound method does (docs/decisions.md).
    __getattribute__ = object.__getattribute__

    # --- what the author of a family writes -------------------------------------------------

    @classmethod
    @abc.abstractmethod
    def from_standard(cls, *args: Any, **kwargs: Any) -> Self:
        """From the parameters that textbooks use."""

    @abc.abstractmethod
    def standard_parameters(self) -> dict[str, Real]:
        """The parameters that textbooks use, by the names that ``from_standard`` takes."""

    @abc.abstractmethod
    def log_normalizer(self) -> Float[Real, "*batch"]:
        """``A(eta)``, in nats; without meaning where improper, see ``is_proper``."""

    @property
    @abc.abstractmethod
    def mean_parameters(self) -> Float[Real, "*batch dim"]:
        """``mu = grad A(eta) = E[s(z)]``, flat."""

    @abc.abstractmethod
    def with_mean_parameters(self, vector: Float[Real, "*batch dim"]) -> Self:
        """The member that has these mean parameters: the inverse map, ``grad A*``."""

    @abc.abstractmethod
    def sufficient_statistics(self, z: Any) -> Float[Real, "*shape dim"]:
        """``s(z)``, flat."""

    @abc.abstractmethod
    def log_base_measure(self) -> float:
        """``log h``, in nats."""

    @abc.abstractmethod
    def is_proper(self) -> Bool[Real, "*batch"]:
        """Whether each member is a distribution; a factor may well not be."""

    @abc.abstractmethod
    def sample(self, key: Key[jax.Array, ""], shape: tuple[int, ...] = ()) -> Any:
        """Independent draws, of shape ``shape + batch + event``; needs proper members."""

    def __check_init__(self) -> None:
        shapes = {name: np.shape(getattr(self, name)) for name in self.coordinates}
        if not _fits(shapes, self.coordinates):
            raise StructureError(
                found=f"{type(self).__name__} with natural parameters of shapes {shapes}",
                expected="one batch shape followed by vectors of one length d, d x d matrices "
                "where symmetric, and nothing for scalars",
                fix="Check the shapes of the parameters that it was made from.",
            )

    # --- shapes ------------------------------------------------------------------------------

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The axes before those of one member."""
        name, own = next(iter(self.coordinates.items()))
        shape = np.shape(getattr(self, name))
        return shape[: len(shape) - own]

    @property
    def dimension(self) -> int:
        """Length of the flat vector of natural parameters."""
        return self.natural_parameters.shape[-1]

    @property
    def xp(self) -> Namespace:
        """The array functions that fit the leaves."""
        if self.coordinates:
            return namespace(getattr(self, next(iter(self.coordinates))))
        return namespace(*jax.tree.leaves(self))

    def __getitem__(self, index: Any) -> Self:
        """Members of the batch, by NumPy's indexing rules."""
        index = _batch_index(index, self.batch_shape)
        return jax.tree.map(lambda leaf: _array(leaf[index]), self)

    # --- the vector space --------------------------------------------------------------------

    def __add__(self, other: Self) -> Self:
        return _zip(operator.add, self, other)

    def __sub__(self, other: Self) -> Self:
        return _zip(operator.sub, self, other)

    def __mul__(self, scalar: int | float | Real) -> Self:
        return self._scale(operator.mul, scalar)

    __rmul__ = __mul__
    __array_ufunc__ = None  # a NumPy scalar or array on the left leaves the product to us

    def __truediv__(self, scalar: int | float | Real) -> Self:
        return self._scale(operator.truediv, scalar)

    def __neg__(self) -> Self:
        return jax.tree.map(lambda leaf: _array(-leaf), self)

    def zero(self) -> Self:
        """The factor that changes nothing."""
        return jax.tree.map(lambda leaf: namespace(leaf).np.zeros_like(leaf), self)

    def _scale(self, operation: Any, scalar: Any) -> Self:
        # An array of scalars goes along the batch, never along a member's own axes.
        batch, axes = len(self.batch_shape), np.ndim(scalar)

        def one(leaf: Real) -> Real:
            own = (1,) * (np.ndim(leaf) - batch) if axes else ()
            return _array(operation(leaf, scalar.reshape(scalar.shape + own) if own else scalar))

        return jax.tree.map(one, self)

    @property
    def natural_parameters(self) -> Float[Real, "*batch dim"]:
        """``eta``, flat."""
        return self.flatten(**{name: getattr(self, name) for name in self.coordinates})

    def with_natural_parameters(self, vector: Float[Real, "*batch dim"]) -> Self:
        """A member of the same family from a flat vector: inverse of ``natural_parameters``."""
        return type(self)(**self.unflatten(vector))

    def flatten(self, **parts: Real) -> Float[Real, "*batch dim"]:
        """One flat vector from arrays named and shaped like the leaves."""
        xp = namespace(*parts.values()).np
        columns = [_to_columns(parts[name], own) for name, own in self.coordinates.items()]
        batch = np.broadcast_shapes(*(column.shape[:-1] for column in columns))
        columns = [xp.broadcast_to(column, batch + column.shape[-1:]) for column in columns]
        return xp.concatenate(columns, axis=-1)

    def unflatten(self, vector: Float[Real, "*batch dim"]) -> dict[str, Real]:
        """Arrays named and shaped like the leaves from one flat vector."""
        parts, start = {}, 0
        for name, own in self.coordinates.items():
            event = np.shape(getattr(self, name))[len(self.batch_shape) :]
            size = 1 if own == SCALAR else event[0] if own == VECTOR else triangle(event[0])
            parts[name] = _from_columns(vector[..., start : start + size], own, event)
            start += size
        return parts

    # --- derived from the author's formulas --------------------------------------------------

    def log_prob(self, z: Any) -> Float[Real, "..."]:
        """Log density at ``z``, in nats."""
        inner = (self.natural_parameters * self.sufficient_statistics(z)).sum(-1)
        return inner + self.log_base_measure() - self.log_normalizer()

    def negative_entropy(self) -> Float[Real, "*batch"]:
        """``A*(mu) = eta . mu - A(eta)``, the convex conjugate, without the base measure."""
        inner = (self.natural_parameters * self.mean_parameters).sum(-1)
        return inner - self.log_normalizer()

    def entropy(self) -> Float[Real, "*batch"]:
        """Differential entropy, in nats."""
        return -self.negative_entropy() - self.log_base_measure()

    def kl(self, other: Self) -> Float[Real, "*batch"]:
        """``KL(self || other)`` in nats, member by member; never negative but for rounding.

        The Bregman divergence of ``A`` (wainwright2008, section 5.2.2).
        """
        step = other.natural_parameters - self.natural_parameters
        gap = other.log_normalizer() - self.log_normalizer()
        return gap - (step * self.mean_parameters).sum(-1)

    def fisher_information(self) -> Float[Real, "*batch dim dim"]:
        """``hessian A(eta) = Cov[s(z)]``, in flat coordinates."""
        vector = self.natural_parameters
        template = _template(self)

        def log_normalizer(eta: jax.Array) -> jax.Array:
            return template.with_natural_parameters(eta).log_normalizer()

        flat = vector.reshape(-1, vector.shape[-1])
        with jax.enable_x64(flat.dtype == np.float64):
            hessians = jax.lax.map(jax.hessian(log_normalizer), jax.numpy.asarray(flat))
        hessians = hessians.reshape(*vector.shape, vector.shape[-1])
        return np.asarray(hessians) if self.xp.np is np else hessians

    def inverse_fisher_product(
        self, vector: Float[Real, "*batch dim"]
    ) -> Float[Real, "*batch dim"]:
        """``F(η)⁻¹ v``: a gradient in ``η`` becomes the natural gradient, the one in ``μ``."""
        return self.xp.solve_vectors(self.fisher_information(), vector)


def concatenate(members: list[Family]) -> Family:
    """One batch from several, along the first batch axis."""
    xp = members[0].xp.np
    return jax.tree.map(lambda *leaves: xp.concatenate(leaves), *members)


def stack(members: list[Family]) -> Family:
    """One batch, with a new first axis, from several members of equal shape."""
    xp = members[0].xp.np
    return jax.tree.map(lambda *leaves: xp.stack(leaves), *members)


def at_rest(family: Family) -> Family:
    """The same parameters as NumPy float64 arrays, copied; no zero has a sign."""
    # Adding 0 turns -0 into 0: parameters that are equal then have equal bytes.
    return jax.tree.map(lambda leaf: np.asarray(np.array(leaf, dtype=np.float64) + 0.0), family)


def triangle(dimension: int) -> int:
    """Entries in the upper triangle of a square matrix."""
    return dimension * (dimension + 1) // 2


def _fits(shapes: dict[str, tuple[int, ...]], coordinates: dict[str, int]) -> bool:
    """Whether leaves share their batch shape and their own size."""
    batches, sizes = set(), set()
    for name, own in coordinates.items():
        shape = shapes[name]
        if len(shape) < own:
            return False
        batches.add(shape[: len(shape) - own])
        sizes.update(shape[len(shape) - own :])
    return len(batches) <= 1 and len(sizes) <= 1


def _batch_index(index: Any, batch: tuple[int, ...]) -> tuple[Any, ...]:
    """``index`` as a tuple that stays within the axes of the batch."""
    index = index if isinstance(index, tuple) else (index,)
    used = sum(0 if i is None or i is ... else _axes(i) for i in index)
    if used > len(batch):
        raise IndexError(f"{used} indices for a batch of shape {batch}")
    rest = (slice(None),) * (len(batch) - used)
    at = next((n for n, i in enumerate(index) if i is ...), None)
    return index if at is None else (*index[:at], *rest, *index[at + 1 :])


def _axes(index: Any) -> int:
    """How many axes one index takes: a mask as many as it has."""
    if isinstance(index, slice):
        return 1
    kind = index.dtype if hasattr(index, "dtype") else np.asarray(index).dtype
    return np.ndim(index) if np.issubdtype(kind, np.bool_) else 1


def _array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else np.asarray(value)


def _zip(operation: Any, left: Any, right: Any) -> Any:
    if type(left) is not type(right):
        return NotImplemented
    return jax.tree.map(lambda a, b: _array(operation(a, b)), left, right)


def _to_columns(leaf: Real, own: int) -> Real:
    if own == SCALAR:
        return leaf[..., None]
    return half_vectorize(leaf) if own == SYMMETRIC else leaf


def _from_columns(columns: Real, own: int, event: tuple[int, ...]) -> Real:
    if own == SCALAR:
        return columns[..., 0]
    return unhalf_vectorize(columns, event[0]) if own == SYMMETRIC else columns


def _template(family: Family) -> Family:
    """One unbatched member, to take shapes from."""
    return family[(0,) * len(family.batch_shape)] if family.batch_shape else family
