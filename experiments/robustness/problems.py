"""Random federations as users have them: raw columns, vague priors, naive code, tiny sites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from numpy.typing import NDArray
from scipy.special import expit

from posterity.families import DiagonalGaussian, Gaussian
from posterity.models import LogisticRegression

Array = NDArray[np.float64]
SIZES = (3, 12, 50, 200)
"""Records of a site: four sizes, so that little is compiled."""


@dataclass(frozen=True)
class Problem:
    """A federation, and what is to be told of it."""

    kind: str
    model: Any
    sites: dict[str, tuple[Array, Array]]
    prior: Gaussian | DiagonalGaussian
    about: dict[str, Any]

    @property
    def pooled(self) -> tuple[Array, Array]:
        """All sites' records."""
        x, y = zip(*self.sites.values(), strict=True)
        return np.concatenate(x), np.concatenate(y)


# --- logistic regression on raw columns ----------------------------------------------------------


def logistic(seed: int) -> Problem:
    """Means 0 to 1e4, scales 1e-2 to 1e3, prior variances 1e-2 to 1e4, 1 to 50 sites."""
    rng = np.random.default_rng([1, seed])
    columns, sites = int(rng.integers(1, 5)), int(np.exp(rng.uniform(0, np.log(50.99))))
    mean = rng.choice([0.0, 10 ** rng.uniform(0, 4)]) * rng.choice([-1, 1])
    scale, variance = 10 ** rng.uniform(-2, 3), 10 ** rng.uniform(-2, 4)
    intercept, separable, diagonal = rng.random(3) < [0.6, 0.25, 0.3]
    slopes = rng.normal(size=columns) / scale * rng.choice([0.3, 1, 3])
    data = {}
    for k in range(sites):
        x = mean + scale * rng.normal(size=(int(rng.choice(SIZES)), columns))
        odds = (x - mean) @ slopes + rng.normal() / 2
        y = odds > 0 if separable else rng.random(len(x)) < expit(odds)
        constant = [np.ones((len(x), 1))] * int(intercept)
        data[f"site {k:02d}"] = np.hstack([*constant, x]), y.astype(float)
    size, family = columns + int(intercept), DiagonalGaussian if diagonal else Gaussian
    spread = np.full(size, variance) if diagonal else variance * np.eye(size)
    about = {"mean": mean, "scale": scale, "variance": variance, "intercept": bool(intercept),
             "separable": bool(separable), "sites": sites, "columns": columns}  # fmt: skip
    kind = f"logistic, {'diagonal' if diagonal else 'full'}"
    return Problem(
        kind, LogisticRegression(), data, family.from_standard(np.zeros(size), spread), about
    )


# --- what users write -------------------------------------------------------------------------


def poisson(z: Any, data: Any) -> Any:
    """Counts with log rate ``x · z``."""
    x, y = data
    return y * (x @ z) - jnp.exp(x @ z) - gammaln(y + 1)


def negative_binomial(z: Any, data: Any) -> Any:
    """Counts with log mean ``x · z`` and a logarithm of the size at the end of ``z``."""
    x, y = data
    mean, size = jnp.exp(x @ z[:-1]), jnp.exp(z[-1])
    chances = size * jnp.log(size / (size + mean)) + y * jnp.log(mean / (size + mean))
    return gammaln(y + size) - gammaln(size) - gammaln(y + 1) + chances


def student(z: Any, data: Any) -> Any:
    """Errors with three degrees of freedom, the logarithm of their scale at the end of ``z``."""
    x, y = data
    return -2 * jnp.log1p(((y - x @ z[:-1]) / jnp.exp(z[-1])) ** 2 / 3) - z[-1]


def ordinal(z: Any, data: Any) -> Any:
    """Three levels, by differences of chances that naive code rounds to zero."""
    x, y = data
    first = jax.nn.sigmoid(z[-2] - x @ z[:-2])
    second = jax.nn.sigmoid(z[-2] + jnp.exp(z[-1]) - x @ z[:-2])
    chances = jnp.stack([first, second - first, 1 - second], -1)
    return jnp.log(jnp.take_along_axis(chances, y.astype(int)[:, None], -1)[:, 0])


def laplace(z: Any, data: Any) -> Any:
    """Absolute errors, whose second derivative is zero wherever there is one."""
    x, y = data
    return -jnp.abs(y - x @ z)


NAIVE: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "Poisson": (poisson, 0),
    "negative binomial": (negative_binomial, 1),
    "Student": (student, 1),
    "ordinal": (ordinal, 2),
    "Laplace": (laplace, 0),
}
"""The functions, and how many parameters each has beside its slopes."""


def naive(seed: int) -> Problem:
    """Prior variances 1e-2 to 1e4, mostly 1 to 100; an intercept, a slope, 1 to 8 sites."""
    rng = np.random.default_rng([2, seed])
    kind = list(NAIVE)[seed % len(NAIVE)]
    function, more = NAIVE[kind]
    usual = rng.random() < 0.8
    variance = float(rng.choice([1, 10, 100]) if usual else 10 ** rng.uniform(-2, 4))
    mean, scale = rng.choice([0.0, 0.0, 3.0, 10.0]), 10 ** rng.uniform(-0.5, 0.7)
    columns = 1 if kind == "ordinal" else 2
    slopes = rng.normal(size=columns) / (scale + abs(mean))
    data = {}
    for k in range(int(rng.choice([1, 2, 3, 5, 8]))):
        x = mean + scale * rng.normal(size=(int(rng.choice(SIZES)), columns))
        x[:, : columns - 1] = 1
        predictor = x @ slopes
        data[f"site {k}"] = x, _responses(kind, predictor, rng).astype(float)
    size = columns + more
    about = {"mean": mean, "scale": scale, "variance": variance, "sites": len(data)}
    prior = Gaussian.from_standard(np.zeros(size), variance * np.eye(size))
    return Problem(kind, function, data, prior, about)


def _responses(kind: str, predictor: Array, rng: np.random.Generator) -> Array:
    if kind in ("Poisson", "negative binomial"):
        return rng.poisson(np.exp(np.clip(predictor, -5, 4)))
    if kind == "ordinal":
        return np.digitize(predictor + rng.logistic(size=len(predictor)), [-1.0, 1.0])
    return predictor + rng.standard_t(3, size=len(predictor))
