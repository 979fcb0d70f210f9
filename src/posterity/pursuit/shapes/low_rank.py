"""Gaussian components with a few directions of correlation."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posterity.families import LowRankGaussian
from posterity.families.gaussian import LOG_2PI
from posterity.pursuit.shapes.base import Shape

SCATTER = 0.1
"""Of the standard deviation: columns of a factor to begin with, as at zero none has a slope."""


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
