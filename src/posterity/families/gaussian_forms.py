"""Unconstrained parameters of Gaussians: independent coordinates, any covariance, or low rank."""

import abc
import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float

from posterity.arrays.jax_namespace import cholesky, inverse_lower
from posterity.arrays.linear_algebra import triangle
from posterity.arrays.namespace import namespace
from posterity.arrays.typing import PyTree, Real
from posterity.families.forms import ExactForm, SmoothForm
from posterity.families.gaussian import LOG_2PI


@dataclasses.dataclass(frozen=True)
class GaussianForm(SmoothForm):
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


class _Exact(GaussianForm, ExactForm):
    """Gaussians whose roots have inverses."""

    def _squared(self, parameters: PyTree, away: Real) -> Any:
        return (self.standardised(parameters, away) ** 2).sum(-1)


class DiagonalForm(_Exact):
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

    def _log_volume(self, parameters: PyTree) -> Any:
        return parameters[1].sum()


class FullForm(_Exact):
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
class LowRankForm(GaussianForm):
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
