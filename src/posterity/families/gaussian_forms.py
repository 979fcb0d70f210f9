"""Unconstrained parameters of Gaussians, for searches over laws.

A :class:`GaussianForm` has the functions that all Gaussians of one size share: from parameters to
draws, densities and entropies, and how a vector of unconstrained numbers moves the parameters.
Moves are relative to their start, means in standard deviations and scales as ratios, so that a step
of 1 has about the same length in any units. Parameters of one member are a pair of NumPy arrays,
events are vectors of all their numbers, and events and noise may come in rows.
"""

import abc
import dataclasses
import functools
import math
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Float

from posterity.arrays.linear_algebra import triangle
from posterity.arrays.typing import PyTree, Real
from posterity.families.gaussian import LOG_2PI


@dataclasses.dataclass(frozen=True)
class GaussianForm(abc.ABC):
    """``mean + root @ noise`` of vectors (size,); the mean is the first of the parameters."""

    size: int

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
    def move(self, parameters: PyTree, v: Real) -> Any:
        """Return the parameters after a move ``v``; a move of zero changes nothing."""

    @abc.abstractmethod
    def place(self, z: Real, deviation: Real, root: np.ndarray | None = None) -> Any:
        """Return parameters around an event (size,), with standard deviations (size,).

        If the family has correlations, they are those of ``root @ root.T`` (d, d), if it is given.
        """

    @abc.abstractmethod
    def deviation(self, parameters: PyTree) -> Any:
        """Return the standard deviations of the coordinates (size,)."""

    @abc.abstractmethod
    def narrowest(self, parameters: PyTree, unit: Float[np.ndarray, " d"]) -> float:
        """Return the least standard deviation in any direction, in these units."""

    @abc.abstractmethod
    def standardised(self, parameters: PyTree, away: Real) -> Any:
        """Return ``root⁻¹ away`` of differences (..., d) from the mean."""

    @abc.abstractmethod
    def pulled(self, parameters: PyTree, away: Real) -> Any:
        """Return ``root⁻ᵀ away``: minus the slope of the log density at standardised ``away``."""

    @abc.abstractmethod
    def pull(self, parameters: PyTree, v: Real, noise: Real, slopes: Real) -> Any:
        """Return the gradient in moves ``v`` of ``Σ slopes · draws``, for rows of both."""

    @abc.abstractmethod
    def _scattered(self, parameters: PyTree, noise: Real) -> Any:
        """Return ``root @ noise`` of each row of noise."""

    @abc.abstractmethod
    def _log_volume(self, parameters: PyTree) -> Any:
        """Return half the log determinant of the covariance."""

    def draw(self, parameters: PyTree, noise: Real) -> Any:
        """Map noise (..., size) to events (..., size)."""
        return parameters[0] + self._scattered(parameters, noise)

    def log_prob(self, parameters: PyTree, z: Real) -> Any:
        """Return the log densities of events (..., size), in nats."""
        squared = (self.standardised(parameters, z - parameters[0]) ** 2).sum(-1)
        return -squared / 2 - self._log_volume(parameters) - self.size * LOG_2PI / 2

    def entropy(self, parameters: PyTree) -> Any:
        """Return the differential entropy, in nats."""
        return self._log_volume(parameters) + self.size * (1 + LOG_2PI) / 2

    @property
    def widening(self) -> Float[np.ndarray, " moves"]:
        """The gradient of the entropy in moves: by one of all logarithms of deviations, which come
        after the mean.
        """
        at = np.arange(self.moves)
        return ((at >= self.size) & (at < 2 * self.size)).astype(np.float64)

    def narrowed(self, parameters: PyTree) -> Any:
        """Return parameters with half the standard deviations, around the same event."""
        return self.move(parameters, -math.log(2) * self.widening)


class DiagonalForm(GaussianForm):
    """Independent Gaussian coordinates: means (d,) and logarithms of standard deviations (d,)."""

    @property
    def moves(self) -> int:
        return 2 * self.size

    def parameters(self, law: Any) -> Any:
        return np.asarray(law.mean), np.log(np.asarray(law.variance)) / 2

    def law(self, parameters: PyTree, like: Any) -> Any:
        mean, log_deviation = parameters
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
        return np.exp(parameters[1])

    def narrowest(self, parameters: PyTree, unit: Float[np.ndarray, " d"]) -> float:
        return float((self.deviation(parameters) / unit).min())

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


class FullForm(GaussianForm):
    """Gaussians of any covariance ``S Sᵀ``: means (d,) and lower triangles ``S`` (d, d)."""

    @property
    def moves(self) -> int:
        return self.size + triangle(self.size)

    def parameters(self, law: Any) -> Any:
        return np.asarray(law.mean), np.linalg.cholesky(np.asarray(law.covariance))

    def law(self, parameters: PyTree, like: Any) -> Any:
        mean, factor = parameters
        return like.with_moments(mean, factor @ factor.mT)

    def move(self, parameters: PyTree, v: Real) -> Any:
        """Return ``m + S a`` and ``S T``, for a triangle ``T`` whose diagonal is an exponential."""
        mean, factor = parameters
        return mean + factor @ v[: self.size], factor @ self._unit(v)

    def _unit(self, v: Real) -> Any:
        size = self.size
        unit = np.diag(np.exp(v[size : 2 * size]))
        unit[_below(size)] = v[2 * size :]
        return unit

    def _inverse(self, factor: Real) -> Any:
        # Elimination with pivots, as of a general matrix, is inexact for badly scaled triangles.
        solve = scipy.linalg.lapack.dtrtri  # pyright: ignore[reportAttributeAccessIssue]
        inverse, singular = solve(factor, lower=1)
        return np.full_like(factor, np.nan) if singular else inverse

    def place(self, z: Real, deviation: Real, root: np.ndarray | None = None) -> Any:
        if root is None:
            return z, np.diag(deviation)
        upper: Any = np.linalg.qr(root.T, mode="r")
        return z, (upper * np.sign(np.diagonal(upper))[:, None]).T

    def deviation(self, parameters: PyTree) -> Any:
        return np.sqrt((parameters[1] ** 2).sum(-1))

    def narrowest(self, parameters: PyTree, unit: Float[np.ndarray, " d"]) -> float:
        """Return the least singular value."""
        scaled = parameters[1] / unit[:, None]
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
        below = turned[_below(self.size)]
        return np.concatenate([slopes.sum(0) @ factor, wider, below])

    def _log_volume(self, parameters: PyTree) -> Any:
        return np.log(parameters[1].diagonal()).sum()


@functools.cache
def _below(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the entries below a diagonal."""
    return np.tril_indices(size, -1)
