"""Gaussian components whose coordinates are independent, or correlated in any way."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posterity.arrays.linear_algebra import triangle
from posterity.families import DiagonalGaussian, Gaussian
from posterity.families.gaussian import LOG_2PI
from posterity.pursuit.shapes.base import Shape


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


def _below(size: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.tril_indices(size, -1)
    return rows.astype(np.int32), columns.astype(np.int32)
