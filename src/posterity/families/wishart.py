"""The Wishart family of precision matrices."""

import math
from typing import ClassVar, Self

import numpy as np

from posterity.arrays.leaves import known_at_rest
from posterity.arrays.namespace import compiled, namespace
from posterity.arrays.typing import ArrayLike, Flat, Float, KeyArray, Real, Shape
from posterity.families.base import ExponentialFamily
from posterity.families.coordinates import POSITIVE_DEFINITE, Coordinates, Domain, matrix, scalar
from posterity.families.formulas import WISHART_ENTRY
from posterity.families.marginals import Closed, Marginal, numbered, same_shape
from posterity.families.supports import PositiveDefiniteMatrices
from posterity.runtime.lazy import jax, jnp
from posterity.runtime.programs import sampler

MORE_THAN_SIZE = Domain("more than d - 1", above=lambda size: size - 1)
"""Degrees of freedom of a distribution over ``d x d`` matrices."""


class Wishart(ExponentialFamily):
    """The Wishart law ``W(Λ | S, ν)`` with mean ``ν S``; statistics ``(log|Λ|/2, -Λ/2)``.

    Natural parameters: ``degrees`` ``ν - d - 1`` and ``inverse_scale`` ``S⁻¹``.

    >>> Wishart.from_standard(scale=[[0.5]], degrees_of_freedom=4.0).mean
    array([[2.]])
    """

    degrees: Float[Real, "*batch"]
    inverse_scale: Float[Real, "*batch d d"]

    coordinates: ClassVar[Coordinates] = {
        "degrees": scalar(Domain("above -2", above=-2.0)),
        "inverse_scale": matrix(POSITIVE_DEFINITE),
    }
    standard: ClassVar[Coordinates] = {
        "scale": matrix(POSITIVE_DEFINITE),
        "degrees_of_freedom": scalar(MORE_THAN_SIZE),
    }

    @classmethod
    def from_standard(cls, scale: ArrayLike, degrees_of_freedom: ArrayLike) -> Self:
        """Make a law from the scale (..., d, d) and the degrees of freedom, above ``d - 1``."""
        return cls._from_scale(
            **cls._checked(scale=scale, degrees_of_freedom=degrees_of_freedom)
        )._held()

    @classmethod
    def _from_scale(cls, scale: Real, degrees_of_freedom: Real) -> Self:
        inverse = namespace(scale).inverse_positive(scale)
        return cls._of(degrees=degrees_of_freedom - scale.shape[-1] - 1, inverse_scale=inverse)

    @property
    def scale(self) -> Float[Real, "*batch d d"]:
        """The scale ``S``."""
        return self.xp.inverse_positive(self.inverse_scale)

    @property
    def degrees_of_freedom(self) -> Float[Real, "*batch"]:
        """The degrees of freedom ``ν``."""
        return self.degrees + self.own_size + 1

    @property
    def mean(self) -> Float[Real, "*batch d d"]:
        """The mean ``ν S``."""
        return self.degrees_of_freedom[..., None, None] * self.scale

    def observations(self) -> Float[Real, "*batch"]:
        """Return the degrees of freedom."""
        return self.degrees_of_freedom

    def expected_log_determinant(self) -> Float[Real, "*batch"]:
        """Return ``E log|Λ|`` (bishop2006, B.81)."""
        return (
            self.xp.multidigamma(self.degrees_of_freedom / 2, self.own_size)
            + self.own_size * math.log(2)
            - self._log_determinant
        )

    @known_at_rest
    def _log_determinant(self) -> Float[Real, "*batch"]:
        """``log|S⁻¹|``."""
        return self.xp.logdet(self.xp.cholesky(self.inverse_scale))

    @property
    def support(self) -> PositiveDefiniteMatrices:
        return PositiveDefiniteMatrices((self.own_size, self.own_size))

    base_measure = 0.0
    quantities = ("precision",)

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        own = names or numbered(self.own_size)
        pairs = zip(*np.triu_indices(self.own_size), strict=True)
        return tuple(own[i] if i == j else f"{own[i]}, {own[j]}" for i, j in pairs)

    def marginals(self) -> list[Marginal]:
        scale = np.asarray(self.scale, float)
        rows, columns = np.triu_indices(self.own_size)
        diagonal = np.diagonal(scale, axis1=-2, axis2=-1)
        size = np.sqrt(diagonal[..., rows] * diagonal[..., columns])
        rho = np.clip(scale[..., rows, columns] / size, -1.0, 1.0)
        nu = np.asarray(self.degrees_of_freedom, float)[..., None]
        return [Closed(WISHART_ENTRY, same_shape(size, rho, nu))]

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """Return ``(ν d log 2 - ν log|S⁻¹|) / 2 + log Γ_d(ν/2)``."""
        half = self.degrees_of_freedom / 2
        logs = half * (self.own_size * math.log(2) - self._log_determinant)
        return logs + self.xp.multigammaln(half, self.own_size)

    @property
    def mean_parameters(self) -> Flat:
        """``E[log|Λ|]/2`` and ``-ν S/2``."""
        return self.flatten(
            degrees=self.expected_log_determinant() / 2, inverse_scale=-self.mean / 2
        )

    def with_mean_parameters(self, vector: Flat) -> Self:
        """Solve for ``ν`` from ``log|E Λ| - E log|Λ|``, then ``S = E[Λ]/ν``."""
        self._check_length(vector)
        parts = self.unflatten(vector)
        mean = -2 * parts["inverse_scale"]
        xp = namespace(mean)
        gap = xp.logdet(xp.cholesky(mean)) - 2 * parts["degrees"]
        nu = solve_degrees_of_freedom(gap, self.own_size)
        return self._from_scale(mean / nu[..., None, None], nu)

    def sufficient_statistics(self, z: Float[Real, "*shape d d"]) -> Float[Real, "*shape dim"]:
        xp = namespace(z)
        return self.flatten(degrees=xp.logdet(xp.cholesky(z)) / 2, inverse_scale=-z / 2)

    def _kl(self, other: Self) -> Float[Real, "*batch"]:
        xp = namespace(self.inverse_scale, other.inverse_scale)
        mine = xp.cholesky(self.inverse_scale)
        theirs = xp.cholesky(other.inverse_scale)
        ratio = xp.inverse_lower(mine) @ theirs  # tr(S'⁻¹ S) = ||L⁻¹ L'||²
        trace_excess = (ratio**2).sum((-2, -1)) - self.own_size
        logdet_gap = xp.logdet(theirs) - xp.logdet(mine)
        nu = self.degrees_of_freedom
        other_nu = other.degrees_of_freedom
        return (
            (nu * trace_excess - other_nu * logdet_gap) / 2
            + xp.multigammaln(other_nu / 2, self.own_size)
            - xp.multigammaln(nu / 2, self.own_size)
            + (nu - other_nu) / 2 * xp.multidigamma(nu / 2, self.own_size)
        )

    def sample(self, key: KeyArray, shape: Shape = ()) -> Float[Real, "*shape d d"]:
        """Draw by Bartlett's decomposition."""
        return _draw(key, shape, *self.bartlett())

    def bartlett(self) -> tuple[Float[Real, "*batch d"], Float[Real, "*batch d d"]]:
        """Return what Bartlett's decomposition takes: half the degrees of freedom of each diagonal
        entry, and the Cholesky factor of the scale.
        """
        nu = self.degrees_of_freedom[..., None]
        halves = (nu - np.arange(self.own_size, dtype=nu.dtype)) / 2
        return halves, self.xp.cholesky(self.scale)


@sampler
def _draw(key: KeyArray, shape: Shape, halves: Real, factor: Real) -> Float[Real, "*shape d d"]:
    root = drawn_root(key, shape, halves, factor)
    return root @ root.swapaxes(-1, -2)


def drawn_root(
    key: KeyArray, shape: Shape, halves: Real, factor: Real
) -> Float[Real, "*shape d d"]:
    """Draw lower Cholesky factors, which are valid even if draws are numerically singular."""
    full = shape + halves.shape
    d = halves.shape[-1]
    below, diagonal = jax.random.split(key)
    chi2 = jax.random.gamma(diagonal, halves, full, halves.dtype)
    noise = jnp.tril(jax.random.normal(below, (*full, d), halves.dtype), -1)
    return factor @ (noise + jnp.sqrt(2 * chi2)[..., None] * jnp.eye(d, dtype=halves.dtype))


@compiled(static=("size",))
def solve_degrees_of_freedom(gap: Float[Real, "*batch"], size: int) -> Float[Real, "*batch"]:
    """Return the ``ν`` with ``d log(ν/2) - ψ_d(ν/2) = gap > 0``, by bisection, then Newton."""
    xp = namespace(gap)

    def excess(nu: Real) -> Real:
        return size * xp.np.log(nu / 2) - xp.multidigamma(nu / 2, size) - gap

    def below(log_free: Real) -> Real:  # log(ν - d + 1); the excess falls in ν
        return excess(size - 1 + xp.np.exp(log_free)) > 0

    def newton(nu: Real) -> Real:
        slope = size / nu - xp.multitrigamma(nu / 2, size) / 2
        step = excess(nu) / slope
        return xp.np.where(nu - step > size - 1, nu - step, nu)

    low = xp.np.full_like(gap, -30.0)
    high = xp.np.full_like(gap, 40.0)
    log_free = xp.bisected(below, low, high, 12)  # to a hundredth, whose square Newton begins with
    return xp.iterate(newton, size - 1 + xp.np.exp(log_free), 4)


def bartlett_root(
    rng: np.random.Generator, degrees: float, size: int, draws: int
) -> Float[np.ndarray, "draws d d"]:
    """Draw lower triangular roots of Wisharts of unit scale, for degrees above ``size - 1``."""
    root = np.tril(rng.standard_normal((draws, size, size)), -1)
    square = rng.chisquare(degrees - np.arange(size), (draws, size))
    root[..., np.arange(size), np.arange(size)] = np.sqrt(square)
    return root


def unit_scatter(
    rng: np.random.Generator, degrees: float, size: int, draws: int
) -> Float[np.ndarray, "draws d d"]:
    """Draw scatter matrices of unit covariance; with few degrees of freedom, sums of squares."""
    if degrees > size - 1:
        root = bartlett_root(rng, degrees, size, draws)
    else:
        root = rng.standard_normal((draws, size, max(round(degrees), 0)))
    return root @ np.swapaxes(root, -1, -2)
