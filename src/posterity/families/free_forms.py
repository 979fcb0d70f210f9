"""Unconstrained parameters of members of a family, for searches over laws.

A :class:`FreeForm` has the functions that all members of one structure share: from parameters to
draws, densities and entropies, and how a vector of unconstrained numbers moves the parameters.
Moves are relative to their start, means in standard deviations and scales as ratios, so that a step
of 1 has about the same length in any units. Parameters of one member are a pytree, of NumPy arrays
if they come from a law; events are vectors of all their numbers (see :func:`flat`). Draws,
densities, entropies and moves are pure functions and can be traced.
"""

import abc
import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float

from posterity.arrays.jax_namespace import cholesky, inverse_lower
from posterity.arrays.linear_algebra import triangle
from posterity.arrays.namespace import namespace
from posterity.arrays.typing import PyTree, Real
from posterity.families.base import ExponentialFamily
from posterity.families.composite import Product
from posterity.families.distribution import Distribution
from posterity.families.gaussian import LOG_2PI, AnyGaussian
from posterity.families.low_rank_gaussian import LowRankGaussian


class FreeForm(abc.ABC):
    """The unconstrained parameters of one family; hashable, and without arrays."""

    smooth: bool = False
    """True of a :class:`SmoothForm`; otherwise the noise of a draw is a random key."""

    size: int
    """Numbers of one event."""

    @property
    @abc.abstractmethod
    def noise_size(self) -> int:
        """Number of normal random numbers for one draw, if draws are smooth."""

    @property
    @abc.abstractmethod
    def moves(self) -> int:
        """Number of coordinates of a move of one member."""

    @abc.abstractmethod
    def parameters(self, law: Any) -> Any:
        """Return the parameters of a member."""

    @abc.abstractmethod
    def law(self, parameters: PyTree, like: Any) -> Any:
        """Return the member, or a batch (K,) of them, as NumPy arrays, of the kind of ``like``."""

    @abc.abstractmethod
    def draw(self, parameters: PyTree, noise: Real) -> Any:
        """Map noise (noise_size,), or a key, to an event (size,)."""

    @abc.abstractmethod
    def log_prob(self, parameters: PyTree, z: Real) -> Float[jax.Array, ""]:
        """Return the log density of one event (size,), in nats."""

    @abc.abstractmethod
    def entropy(self, parameters: PyTree) -> Float[jax.Array, ""]:
        """Return the differential entropy, in nats."""

    @abc.abstractmethod
    def move(self, parameters: PyTree, v: Real) -> Any:
        """Return the parameters after a move ``v``; a move of zero changes nothing."""


class SmoothForm(FreeForm):
    """A form whose draws are smooth functions of standard normal noise.

    Its members can be placed around an event, and have standard deviations.
    """

    smooth = True

    @abc.abstractmethod
    def place(self, z: Real, deviation: Real, root: np.ndarray | None = None) -> Any:
        """Return parameters around an event (size,), with standard deviations (size,).

        If the family has correlations, they are those of ``root @ root.T`` (d, d), if it is given.
        """

    @abc.abstractmethod
    def deviation(self, parameters: PyTree) -> Any:
        """Return the standard deviations of the coordinates (size,)."""

    @abc.abstractmethod
    def narrowed(self, parameters: PyTree) -> Any:
        """Return parameters with half the standard deviations, around the same event."""

    @abc.abstractmethod
    def narrowest(self, parameters: PyTree, unit: Float[np.ndarray, " d"]) -> float:
        """Return the least standard deviation in any direction, in these units."""


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
        return (_Diagonal if law.diagonal else _Full)(law.own_size)
    if isinstance(law, LowRankGaussian):
        return _LowRank(law.event_shape[0], law.rank)
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


class ExactForm(SmoothForm):
    """Gaussians ``mean + root @ noise`` whose roots have inverses: methods take NumPy's arrays as
    well as JAX's, events and noise in rows too, and gradients have closed forms.
    """

    @property
    @abc.abstractmethod
    def widening(self) -> Float[np.ndarray, " moves"]:
        """The gradient of the entropy in moves."""

    @abc.abstractmethod
    def standardised(self, parameters: PyTree, away: Real) -> Any:
        """Return ``root⁻¹ away`` of differences (..., d) from the mean."""

    @abc.abstractmethod
    def pulled(self, parameters: PyTree, away: Real) -> Any:
        """Return ``root⁻ᵀ away``: minus the slope of the log density at standardised ``away``."""

    @abc.abstractmethod
    def pull(self, parameters: PyTree, v: Real, noise: Real, slopes: Real) -> Any:
        """Return the gradient in moves ``v`` of ``Σ slopes · draws``, for rows of both."""


@dataclasses.dataclass(frozen=True)
class _Gaussian(SmoothForm):
    """``mean + root @ noise``; the mean (d,) is the first of the parameters."""

    size: int

    @property
    def noise_size(self) -> int:
        return self.size

    def draw(self, parameters: PyTree, noise: Real) -> Any:
        return parameters[0] + self._scattered(parameters, noise)

    def log_prob(self, parameters: PyTree, z: Real) -> Any:
        squared = self._squared(parameters, z - parameters[0])
        return -squared / 2 - self._log_volume(parameters) - self.size * LOG_2PI / 2

    def entropy(self, parameters: PyTree) -> Any:
        return self._log_volume(parameters) + self.size * (1 + LOG_2PI) / 2

    @property
    def widening(self) -> Float[np.ndarray, " moves"]:
        """The move by one of all logarithms of deviations, which come after the mean."""
        at = np.arange(self.moves)
        return ((at >= self.size) & (at < 2 * self.size)).astype(np.float64)

    def narrowed(self, parameters: PyTree) -> Any:
        halved = -math.log(2) * self.widening
        return self.move(parameters, namespace(parameters[0]).np.asarray(halved))

    @abc.abstractmethod
    def _scattered(self, parameters: PyTree, noise: Real) -> Any:
        """Return ``root @ noise`` (d,)."""

    @abc.abstractmethod
    def _squared(self, parameters: PyTree, away: Real) -> Any:
        """Return the squared length of a difference (d,) from the mean, in deviations."""

    @abc.abstractmethod
    def _log_volume(self, parameters: PyTree) -> Any:
        """Return half the log determinant of the covariance."""


class _Diagonal(_Gaussian, ExactForm):
    """Independent Gaussian coordinates: means (d,) and logarithms of standard deviations (d,)."""

    @property
    def moves(self) -> int:
        return 2 * self.size

    def parameters(self, law: Any) -> Any:
        return np.asarray(law.mean), np.log(np.asarray(law.variance)) / 2

    def law(self, parameters: PyTree, like: Any) -> Any:
        mean, log_deviation = (np.asarray(leaf, np.float64) for leaf in parameters)
        return like.with_moments(mean, np.exp(2 * log_deviation))

    def move(self, parameters: PyTree, v: Real) -> Any:
        mean, log_deviation = parameters
        moved = v[: self.size]
        wider = v[self.size :]
        return mean + self.deviation(parameters) * moved, log_deviation + wider

    def place(self, z: Real, deviation: Real, root: np.ndarray | None = None) -> Any:
        del root
        return z, np.log(deviation)

    def deviation(self, parameters: PyTree) -> Any:
        return namespace(parameters[1]).np.exp(parameters[1])

    def narrowest(self, parameters: PyTree, unit: Float[np.ndarray, " d"]) -> float:
        return float((np.exp(np.asarray(parameters[1])) / unit).min())

    def _scattered(self, parameters: PyTree, noise: Real) -> Any:
        return self.deviation(parameters) * noise

    def standardised(self, parameters: PyTree, away: Real) -> Any:
        return away / self.deviation(parameters)

    pulled = standardised

    def pull(self, parameters: PyTree, v: Real, noise: Real, slopes: Real) -> Any:
        unit = self.deviation(parameters)
        wider = np.exp(v[self.size :])
        return np.concatenate([unit * slopes.sum(0), unit * wider * (slopes * noise).sum(0)])

    def _squared(self, parameters: PyTree, away: Real) -> Any:
        return (self.standardised(parameters, away) ** 2).sum(-1)

    def _log_volume(self, parameters: PyTree) -> Any:
        return parameters[1].sum()


class _Full(_Gaussian, ExactForm):
    """Gaussians of any covariance ``S Sᵀ``: means (d,) and lower triangles ``S`` (d, d)."""

    @property
    def moves(self) -> int:
        return self.size + triangle(self.size)

    def parameters(self, law: Any) -> Any:
        return np.asarray(law.mean), np.linalg.cholesky(np.asarray(law.covariance))

    def law(self, parameters: PyTree, like: Any) -> Any:
        mean, factor = (np.asarray(leaf, np.float64) for leaf in parameters)
        return like.with_moments(mean, factor @ factor.mT)

    def move(self, parameters: PyTree, v: Real) -> Any:
        """Return ``m + S a`` and ``S T``, for a triangle ``T`` whose diagonal is an exponential."""
        mean, factor = parameters
        return mean + factor @ v[: self.size], factor @ self._unit(v)

    def _unit(self, v: Real) -> Any:
        np_ = namespace(v).np
        size = self.size
        numbers = [np_.exp(v[size : 2 * size]), v[2 * size :], np_.zeros(1)]
        return np_.concatenate(numbers)[_triangle_places(size)]

    def _inverse(self, factor: Real) -> Any:
        if not isinstance(factor, np.ndarray):
            return inverse_lower(factor)
        # Elimination with pivots, as of a general matrix, is inexact for badly scaled triangles.
        solve = scipy.linalg.lapack.dtrtri  # pyright: ignore[reportAttributeAccessIssue]
        inverse, singular = solve(factor, lower=1)
        return np.full_like(factor, np.nan) if singular else inverse

    def place(self, z: Real, deviation: Real, root: np.ndarray | None = None) -> Any:
        if root is None:
            return z, np.diag(deviation)
        upper = np.asarray(np.linalg.qr(root.T, mode="r"))
        return z, (upper * np.sign(np.diagonal(upper))[:, None]).T

    def deviation(self, parameters: PyTree) -> Any:
        return namespace(parameters[1]).np.sqrt((parameters[1] ** 2).sum(-1))

    def narrowest(self, parameters: PyTree, unit: Float[np.ndarray, " d"]) -> float:
        """Return the least singular value."""
        scaled = np.asarray(parameters[1]) / unit[:, None]
        return float(np.linalg.svd(scaled, compute_uv=False).min())

    def _scattered(self, parameters: PyTree, noise: Real) -> Any:
        return noise @ parameters[1].T

    def standardised(self, parameters: PyTree, away: Real) -> Any:
        return away @ self._inverse(parameters[1]).T

    def pulled(self, parameters: PyTree, away: Real) -> Any:
        return away @ self._inverse(parameters[1])

    def pull(self, parameters: PyTree, v: Real, noise: Real, slopes: Real) -> Any:
        _, factor = parameters
        turned = factor.T @ (slopes.T @ noise)
        wider = np.diagonal(turned) * np.exp(v[self.size : 2 * self.size])
        below = turned[np.tril_indices(self.size, -1)]
        return np.concatenate([slopes.sum(0) @ factor, wider, below])

    def _squared(self, parameters: PyTree, away: Real) -> Any:
        return (self.standardised(parameters, away) ** 2).sum(-1)

    def _log_volume(self, parameters: PyTree) -> Any:
        return namespace(parameters[1]).np.log(parameters[1].diagonal()).sum()


@functools.cache
def _triangle_places(size: int) -> np.ndarray:
    """Places (d, d) in a diagonal, the rows of the triangle below it, and a zero, of a triangle."""
    below = np.tril_indices(size, -1)
    places = np.full((size, size), triangle(size))
    places[np.diag_indices(size)] = np.arange(size)
    places[below] = size + np.arange(len(below[0]))
    return places.astype(np.int32)


@dataclasses.dataclass(frozen=True)
class _LowRank(_Gaussian):
    """Covariance ``F Fᵀ + diag(s²)``: means (d,), ``F`` (d, r) and ``log s`` (d,)."""

    rank: int
    scatter: ClassVar[float] = 0.1
    """Initial size of a factor's columns, in standard deviations; at zero the slope vanishes."""

    @property
    def noise_size(self) -> int:
        return self.rank + self.size

    @property
    def moves(self) -> int:
        return (2 + self.rank) * self.size

    def parameters(self, law: Any) -> Any:
        mean, factor, variance = (np.asarray(leaf) for leaf in law.children())
        if not np.any(factor):
            return self.place(mean, np.sqrt(variance))
        return mean, factor, np.log(variance) / 2

    def law(self, parameters: PyTree, like: Any) -> Any:
        mean, factor, log_deviation = (np.asarray(leaf, np.float64) for leaf in parameters)
        return type(like).from_standard(mean, factor, np.exp(2 * log_deviation))

    def move(self, parameters: PyTree, v: Real) -> Any:
        """Move the mean and the columns in units of standard deviations, and multiply ``s``."""
        mean, factor, log_deviation = parameters
        unit = self.deviation(parameters)
        moved, wider, turned = jnp.split(v, [self.size, 2 * self.size])
        turned = turned.reshape(self.size, self.rank)
        return mean + unit * moved, factor + unit[:, None] * turned, log_deviation + wider

    def place(self, z: Real, deviation: Real, root: np.ndarray | None = None) -> Any:
        """Place the mean at the event, with small random columns."""
        del root
        scatter = np.random.default_rng(0).standard_normal((self.size, self.rank))
        return z, self.scatter * deviation[:, None] * scatter, np.log(deviation)

    def deviation(self, parameters: PyTree) -> Any:
        _, factor, log_deviation = parameters
        np_ = namespace(factor).np
        return np_.sqrt((factor**2).sum(-1) + np_.exp(2 * log_deviation))

    def narrowest(self, parameters: PyTree, unit: Float[np.ndarray, " d"]) -> float:
        """Return the least deviation without the columns, which affect few directions."""
        return float((np.exp(np.asarray(parameters[2])) / unit).min())

    def _scattered(self, parameters: PyTree, noise: Real) -> Any:
        _, factor, log_deviation = parameters
        return factor @ noise[: self.rank] + jnp.exp(log_deviation) * noise[self.rank :]

    def _squared(self, parameters: PyTree, away: Real) -> Any:
        inner, scaled = self._woodbury(parameters)
        standardised = away * jnp.exp(-parameters[2])
        half = inverse_lower(inner)
        along = half.T @ (half @ (scaled.T @ standardised))
        # As squares: a difference loses its digits where columns are long.
        rest = standardised - scaled @ along
        return (rest**2).sum() + (along**2).sum()

    def _log_volume(self, parameters: PyTree) -> Any:
        inner, _ = self._woodbury(parameters)
        return jnp.log(jnp.diagonal(inner)).sum() + parameters[2].sum()

    def _woodbury(self, parameters: PyTree) -> tuple[Any, Any]:
        """Return a root of ``I + Wᵀ W`` (r, r) and the columns ``W`` (d, r) in units of ``s``."""
        _, factor, log_deviation = parameters
        scaled = factor * jnp.exp(-log_deviation)[:, None]
        return cholesky(scaled.T @ scaled + jnp.eye(self.rank)), scaled


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
    shapes: tuple[tuple[int, ...], ...]
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
