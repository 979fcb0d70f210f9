"""Components as the search moves them: parameters that nothing bounds, in units of their own.

A :class:`Shape` says for one kind of law how parameters become draws, densities and entropies, and
how a vector of plain numbers moves them. Moves are relative to where the search began: means in
its standard deviations, scales as ratios; so steps fit whatever the units of the target are.
"""

import abc
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posterity.arrays.linear_algebra import triangle
from posterity.arrays.namespace import namespace
from posterity.errors import UsageError
from posterity.families import (
    DiagonalGaussian,
    Distribution,
    ExponentialFamily,
    Gaussian,
    LowRankGaussian,
    Product,
)
from posterity.families.composite import Composite
from posterity.families.coordinates import POSITIVE_DEFINITE, REAL
from posterity.families.gaussian import LOG_2PI
from posterity.families.supports import PositiveDefiniteMatrices
from posterity.models.cubature import normal_pairs

QUASI = 21_000
"""Numbers of noise beyond which there are no quasi-random sequences."""
SCATTER = 0.1
"""Of the standard deviation: columns of a factor to begin with, as at zero none has a slope."""


class Shape(abc.ABC):
    """How members of one family are parametrised; hashable, and without arrays.

    Parameters are a pytree for one component; functions are pure and traceable.
    """

    nodal: bool = True
    """Whether draws are smooth functions of normal noise: sums over fixed nodes serve then."""

    @property
    @abc.abstractmethod
    def noise_size(self) -> int:
        """Numbers of normal noise that one draw takes."""

    @property
    @abc.abstractmethod
    def moves(self) -> int:
        """Numbers that move one component."""

    @abc.abstractmethod
    def of(self, law: Any) -> Any:
        """The parameters of a member."""

    @abc.abstractmethod
    def law(self, parameters: Any) -> Any:
        """The member, or the batch (K,) of them."""

    @abc.abstractmethod
    def draw(self, parameters: Any, noise: Any) -> Any:
        """The event that the noise becomes."""

    @abc.abstractmethod
    def log_prob(self, parameters: Any, z: Any) -> Float[jax.Array, ""]:
        """Log density of one event, in nats."""

    @abc.abstractmethod
    def entropy(self, parameters: Any) -> Float[jax.Array, ""]:
        """Differential entropy, in nats."""

    @abc.abstractmethod
    def move(self, parameters: Any, v: Float[jax.Array, " p"]) -> Any:
        """The parameters moved; not at all by zero."""

    @abc.abstractmethod
    def place(self, z: Any, deviation: Any) -> Any:
        """Parameters about an event, with these standard deviations, shaped as the event.

        Only where ``nodal``.
        """

    def fit(self, z: Any, deviation: Any, root: np.ndarray) -> Any:
        """As :meth:`place`, where a root (d, d) of a whole covariance is known, too."""
        del root
        return self.place(z, deviation)

    @abc.abstractmethod
    def deviation(self, parameters: Any) -> Any:
        """Standard deviations of the coordinates, shaped as an event; only where ``nodal``."""

    def noise(self, key: jax.Array, number: int) -> Any:
        """Fresh noise for so many draws; traced."""
        return jax.random.normal(key, (number, self.noise_size))

    def fixed_noise(self, key: jax.Array, number: int) -> Any:
        """The same outside of compiled code."""
        if not self.nodal:
            return self.noise(key, number)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key), np.uint32))
        return jnp.asarray(rng.standard_normal((number, self.noise_size)))

    def nodes(self, number: int) -> Float[np.ndarray, "n noise"]:
        """Noise that does not change: a quasi-random sample in mirrored pairs, of unit variances.

        Of unit covariance where there are as many pairs as numbers.
        """
        pairs = max(number // 2, 1)
        if self.noise_size > QUASI:
            half = np.random.default_rng(0).standard_normal((pairs, self.noise_size))
            nodes = np.concatenate([half, -half])
        else:
            nodes = normal_pairs(self.noise_size, pairs)
        return nodes / nodes.std(0)

    @abc.abstractmethod
    def narrowest(self, parameters: Any, unit: Any) -> float:
        """The least deviation in any direction, in units (d,) of its coordinates; if ``nodal``."""


@dataclasses.dataclass(frozen=True)
class Diagonal(Shape):
    """Independent Gaussian coordinates: means (d,) and logarithms of standard deviations (d,)."""

    size: int

    @property
    def noise_size(self) -> int:
        """``d``."""
        return self.size

    @property
    def moves(self) -> int:
        """``2 d``."""
        return 2 * self.size

    def of(self, law: DiagonalGaussian) -> Any:
        """From moments."""
        return jnp.asarray(law.mean), -jnp.log(jnp.asarray(law.precision)) / 2

    def law(self, parameters: Any) -> DiagonalGaussian:
        """From moments."""
        mean, log_deviation = (np.asarray(leaf, np.float64) for leaf in parameters)
        return DiagonalGaussian.from_standard(mean, np.exp(2 * log_deviation))

    def draw(self, parameters: Any, noise: Any) -> Any:
        """``m + s ε``."""
        mean, log_deviation = parameters
        return mean + jnp.exp(log_deviation) * noise

    def log_prob(self, parameters: Any, z: Any) -> Float[jax.Array, ""]:
        """Centred."""
        mean, log_deviation = parameters
        standardised = (z - mean) * jnp.exp(-log_deviation)
        return -(standardised**2 / 2 + log_deviation).sum() - self.size * LOG_2PI / 2

    def entropy(self, parameters: Any) -> Float[jax.Array, ""]:
        """``Σ log s``, and a constant."""
        return parameters[1].sum() + self.size * (1 + LOG_2PI) / 2

    def move(self, parameters: Any, v: Float[jax.Array, " p"]) -> Any:
        """Means by standard deviations, which are multiplied."""
        mean, log_deviation = parameters
        moved, wider = jnp.split(v, 2)
        return mean + jnp.exp(log_deviation) * moved, log_deviation + wider

    def place(self, z: Any, deviation: Any) -> Any:
        """There."""
        return z, jnp.log(deviation)

    def deviation(self, parameters: Any) -> Any:
        """``s``."""
        return jnp.exp(parameters[1])

    def narrowest(self, parameters: Any, unit: Any) -> float:
        """Along a coordinate."""
        return float((np.exp(np.asarray(parameters[1])) / unit).min())


@dataclasses.dataclass(frozen=True)
class Full(Shape):
    """Gaussians of any covariance ``S Sᵀ``: means (d,) and lower triangles ``S`` (d, d)."""

    size: int

    @property
    def noise_size(self) -> int:
        """``d``."""
        return self.size

    @property
    def moves(self) -> int:
        """``d + d(d + 1)/2``."""
        return self.size + triangle(self.size)

    def of(self, law: Gaussian) -> Any:
        """From moments."""
        return jnp.asarray(law.mean), jnp.linalg.cholesky(jnp.asarray(law.covariance))

    def law(self, parameters: Any) -> Gaussian:
        """From moments."""
        mean, factor = (np.asarray(leaf, np.float64) for leaf in parameters)
        return Gaussian.from_standard(mean, factor @ np.swapaxes(factor, -1, -2))

    def draw(self, parameters: Any, noise: Any) -> Any:
        """``m + S ε``."""
        mean, factor = parameters
        return mean + factor @ noise

    def log_prob(self, parameters: Any, z: Any) -> Float[jax.Array, ""]:
        """Centred."""
        mean, factor = parameters
        standardised = jax.scipy.linalg.solve_triangular(factor, z - mean, lower=True)
        logs = jnp.log(jnp.diagonal(factor)).sum()
        return -(standardised**2).sum() / 2 - logs - self.size * LOG_2PI / 2

    def entropy(self, parameters: Any) -> Float[jax.Array, ""]:
        """``log det S``, and a constant."""
        return jnp.log(jnp.diagonal(parameters[1])).sum() + self.size * (1 + LOG_2PI) / 2

    def move(self, parameters: Any, v: Float[jax.Array, " p"]) -> Any:
        """``m + S a`` and ``S T``, of a triangle ``T`` whose diagonal is an exponential."""
        mean, factor = parameters
        rows, columns = _below(self.size)
        unit = jnp.diag(jnp.exp(v[self.size : 2 * self.size]))
        unit = unit.at[rows, columns].set(v[2 * self.size :])
        return mean + factor @ v[: self.size], factor @ unit

    def place(self, z: Any, deviation: Any) -> Any:
        """There, without correlations."""
        return z, jnp.diag(deviation)

    def fit(self, z: Any, deviation: Any, root: np.ndarray) -> Any:
        """There, with all correlations."""
        upper = np.asarray(np.linalg.qr(root.T, mode="r"))
        return z, jnp.asarray((upper * np.sign(np.diagonal(upper))[:, None]).T)

    def deviation(self, parameters: Any) -> Any:
        """Of each coordinate."""
        return jnp.sqrt((parameters[1] ** 2).sum(-1))

    def narrowest(self, parameters: Any, unit: Any) -> float:
        """The least singular value."""
        scaled = np.asarray(parameters[1]) / unit[:, None]
        return float(np.linalg.svd(scaled, compute_uv=False).min())


@dataclasses.dataclass(frozen=True)
class LowRank(Shape):
    """Covariance ``F Fᵀ + diag(s²)``: means (d,), ``F`` (d, r) and ``log s`` (d,)."""

    size: int
    rank: int

    @property
    def noise_size(self) -> int:
        """``r + d``."""
        return self.rank + self.size

    @property
    def moves(self) -> int:
        """``2 d + d r``."""
        return (2 + self.rank) * self.size

    def of(self, law: LowRankGaussian) -> Any:
        """The same; columns that are zero are scattered a little."""
        mean, factor, variance = (jnp.asarray(leaf) for leaf in law.children())
        if not np.any(np.asarray(law.factor)):
            return self.place(mean, jnp.sqrt(variance))
        return mean, factor, jnp.log(variance) / 2

    def law(self, parameters: Any) -> LowRankGaussian:
        """The same."""
        mean, factor, log_deviation = (np.asarray(leaf, np.float64) for leaf in parameters)
        return LowRankGaussian.from_standard(mean, factor, np.exp(2 * log_deviation))

    def draw(self, parameters: Any, noise: Any) -> Any:
        """``m + F ε + s ε'``."""
        mean, factor, log_deviation = parameters
        return mean + factor @ noise[: self.rank] + jnp.exp(log_deviation) * noise[self.rank :]

    def log_prob(self, parameters: Any, z: Any) -> Float[jax.Array, ""]:
        """By the Woodbury identity."""
        mean, factor, log_deviation = parameters
        inner, scaled = self._inner(factor, log_deviation)
        standardised = (z - mean) * jnp.exp(-log_deviation)
        along = jax.scipy.linalg.cho_solve((inner, True), scaled.T @ standardised)
        # As squares: a difference loses its digits where columns are long.
        rest = standardised - scaled @ along
        distance = (rest**2).sum() + (along**2).sum()
        return -distance / 2 - self._logs(inner, log_deviation) - self.size * LOG_2PI / 2

    def entropy(self, parameters: Any) -> Float[jax.Array, ""]:
        """Half the log determinant, and a constant."""
        _, factor, log_deviation = parameters
        inner, _ = self._inner(factor, log_deviation)
        return self._logs(inner, log_deviation) + self.size * (1 + LOG_2PI) / 2

    def move(self, parameters: Any, v: Float[jax.Array, " p"]) -> Any:
        """Means and columns by standard deviations; ``s`` is multiplied."""
        mean, factor, log_deviation = parameters
        unit = self.deviation(parameters)
        moved, turned = v[: self.size], v[2 * self.size :].reshape(self.size, self.rank)
        return (
            mean + unit * moved,
            factor + unit[:, None] * turned,
            log_deviation + v[self.size : 2 * self.size],
        )

    def place(self, z: Any, deviation: Any) -> Any:
        """There, with columns that are scattered a little."""
        scatter = np.random.default_rng(0).standard_normal((self.size, self.rank))
        return z, SCATTER * deviation[:, None] * scatter, jnp.log(deviation)

    def deviation(self, parameters: Any) -> Any:
        """Of each coordinate."""
        _, factor, log_deviation = parameters
        return jnp.sqrt((factor**2).sum(-1) + jnp.exp(2 * log_deviation))

    def narrowest(self, parameters: Any, unit: Any) -> float:
        """Of what is beside the columns, which have no part in most directions."""
        return float((np.exp(np.asarray(parameters[2])) / unit).min())

    def _inner(self, factor: Any, log_deviation: Any) -> tuple[Any, Any]:
        scaled = factor * jnp.exp(-log_deviation)[:, None]
        return jnp.linalg.cholesky(scaled.T @ scaled + jnp.eye(self.rank)), scaled

    def _logs(self, inner: Any, log_deviation: Any) -> Any:
        return jnp.log(jnp.diagonal(inner)).sum() + log_deviation.sum()


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


def shape_of(base: Distribution) -> Shape:
    """The shape of components like this law.

    Raises:
        UsageError: for a law that is not one reparameterised one.
    """
    if base.batch_shape == ():
        size = base.event_shape[0] if len(base.event_shape or ()) == 1 else 0
        if type(base) is LowRankGaussian:
            return LowRank(size, base.rank)
        if isinstance(base, DiagonalGaussian):
            return Diagonal(size)
        if type(base) is Gaussian:
            return Full(size)
        if isinstance(base, Product):
            blocks = dict(base.blocks)
            return Joined(tuple(blocks), tuple(shape_of(part) for part in blocks.values()))
        if isinstance(base, ExponentialFamily) and base.reparameterized:
            return General.like(base)
    raise UsageError(
        found=f"a base {base!r}",
        expected="one law of a reparameterised family: DiagonalGaussian, Gaussian, "
        "LowRankGaussian, Gamma, Beta, Dirichlet, ..., a Product of these, or Transformed",
        fix="Pass DiagonalGaussian.from_standard(mean, variance), say.",
    )


# --- families at large ---------------------------------------------------------------------------


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


def _below(size: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.tril_indices(size, -1)
    return rows.astype(np.int32), columns.astype(np.int32)
