"""Random federations as users have them: raw columns, vague priors, naive code, tiny sites."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from scipy.special import expit

from posterity.families import DiagonalGaussian, Gaussian
from posterity.models import LogisticRegression

Array = np.ndarray
SIZES = (3, 12, 50, 200)  # records of a site: four sizes, so that little is compiled


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
        x, y = zip(*self.sites.values(), strict=True)
        return np.concatenate(x), np.concatenate(y)


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
    about = {
        "mean": mean,
        "scale": scale,
        "variance": variance,
        "intercept": bool(intercept),
        "separable": bool(separable),
        "sites": sites,
        "columns": columns,
    }
    prior = wide(np.full(columns + int(intercept), variance), diagonal)
    return Problem(_named("logistic", diagonal), LogisticRegression(), data, prior, about)


def wide(variances: Array, diagonal: Any) -> Gaussian | DiagonalGaussian:
    """A Gaussian of mean zero, of a diagonal covariance or of a full one that is diagonal."""
    zero = np.zeros(len(variances))
    if diagonal:
        return DiagonalGaussian.from_standard(zero, variances)
    return Gaussian.from_standard(zero, np.diag(variances))


def _named(kind: str, diagonal: Any) -> str:
    return f"{kind}, {'diagonal' if diagonal else 'full'}"


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


def softmax(z: Any, data: Any) -> Any:
    """Three classes, the first of logit zero; slopes of the second, then of the third."""
    x, y = data
    size = x.shape[1]
    logits = jnp.stack([jnp.zeros(len(x)), x @ z[:size], x @ z[size:]], -1)
    chosen = jnp.take_along_axis(logits, y.astype(int)[:, None], -1)[:, 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


def zero_inflated(z: Any, data: Any) -> Any:
    """Poisson counts with more zeros, the log odds of which are at the end of ``z``."""
    x, y = data
    rate, zeros = x @ z[:-1], z[-1]
    counted = y * rate - jnp.exp(rate) - gammaln(y + 1) - jax.nn.softplus(zeros)
    return jnp.where(y == 0, jnp.logaddexp(zeros - jax.nn.softplus(zeros), counted), counted)


def weibull(z: Any, data: Any) -> Any:
    """Times with log scale ``x · z`` and the logarithm of the shape at the end of ``z``."""
    x, y = data
    shape, scaled = jnp.exp(z[-1]), jnp.log(y) - x @ z[:-1]
    return z[-1] - jnp.log(y) + shape * scaled - jnp.exp(shape * scaled)


def bilinear(z: Any, data: Any) -> Any:
    """A slope that is a product of two parameters: a saddle where both are zero."""
    x, y = data
    return -((y - z[0] * z[1] * x[:, -1]) ** 2) / 2


def mixture(z: Any, data: Any) -> Any:
    _, y = data
    return jnp.logaddexp(-((y - z[0]) ** 2) / 2, -((y - z[1]) ** 2) / 2)


def by_numpy(z: Any, data: Any) -> Any:
    """Of NumPy alone: to be refused in words, or to be right."""
    x, y = data
    return np.asarray(-np.log1p((y - x @ z) ** 2))


def _responses(rng: np.random.Generator, predictor: Array) -> Array:
    return predictor + rng.standard_t(3, size=len(predictor))


def _counts(rng: np.random.Generator, predictor: Array) -> Array:
    return rng.poisson(np.exp(np.clip(predictor, -5, 4))).astype(float)


def _levels(rng: np.random.Generator, predictor: Array) -> Array:
    return np.digitize(predictor + rng.logistic(size=len(predictor)), [-1.0, 1.0]).astype(float)


def _chosen(rng: np.random.Generator, predictor: Array) -> Array:
    scores = np.c_[0 * predictor, predictor, -predictor]
    return np.argmax(scores + rng.gumbel(size=(len(predictor), 3)), 1).astype(float)


def _many_zeros(rng: np.random.Generator, predictor: Array) -> Array:
    return (rng.random(len(predictor)) < 0.7) * _counts(rng, predictor)


class Kind(NamedTuple):
    """A likelihood, the number of its parameters for ``p`` columns, and how its records arise.

    ``draw(rng, predictor)`` draws responses for log rates, log odds or means.
    """

    function: Callable[[Any, Any], Any]
    size: Callable[[int], int]
    draw: Callable[[np.random.Generator, Array], Array]


def _more(parameters: int) -> Callable[[int], int]:
    return lambda p: p + parameters


NAIVE = {
    "Poisson": Kind(poisson, _more(0), _counts),
    "negative binomial": Kind(negative_binomial, _more(1), _counts),
    "Student": Kind(student, _more(1), _responses),
    "ordinal": Kind(ordinal, _more(2), _levels),
    "Laplace": Kind(laplace, _more(0), _responses),
}
USERS = {
    **NAIVE,
    "softmax": Kind(softmax, lambda p: 2 * p, _chosen),
    "zero-inflated": Kind(zero_inflated, _more(1), _many_zeros),
    "Weibull": Kind(weibull, _more(1), lambda rng, f: np.exp(f) * rng.weibull(1.5, len(f)) + 1e-12),
    "bilinear": Kind(bilinear, lambda p: 2, lambda rng, f: 2 * f + rng.normal(size=len(f))),
    "mixture": Kind(
        mixture,
        lambda p: 2,
        lambda rng, f: 3 * (rng.random(len(f)) < 0.5) + rng.normal(size=len(f)),
    ),
    "NumPy": Kind(by_numpy, _more(0), _responses),
}
"""What users write, by name."""


def users(seed: int) -> Problem:
    """1 to 12 sites, an intercept or none, columns of means 0 to 1e3 and deviations 1e-3 to 1e3.

    Priors are as wide as a column needs in half of all problems, else the same for all; posteriors
    full or diagonal, the schedule any of four.
    """
    rng = np.random.default_rng([3, seed])
    name = list(USERS)[seed % len(USERS)]
    kind = USERS[name]
    intercept, diagonal, fitting = rng.random(3) < [0.7, 0.3, 0.5]
    most = 1 if name in ("softmax", "ordinal") else 2
    columns = max(int(rng.integers(1, most + 1)) - int(intercept and name != "softmax"), 1)
    mean = np.where(rng.random(columns) < 0.4, 0.0, 10 ** rng.uniform(0, 3, columns))
    scale = 10 ** rng.uniform(-3, 3, columns)
    slopes, shift = rng.normal(size=columns), rng.normal() / 2
    data = {}
    sites = int(rng.choice([1, 2, 3, 5, 8, 12]))
    for k in range(sites):
        standard = rng.normal(size=(int(rng.choice(SIZES if sites <= 3 else SIZES[:3])), columns))
        y = kind.draw(rng, standard @ slopes + shift)
        constant = [np.ones((len(y), 1))] * int(intercept)
        data[f"site {k:02d}"] = np.hstack([*constant, mean + scale * standard]), y
    size = kind.size(columns + int(intercept))
    variance = float(rng.choice([1, 10, 100]) if rng.random() < 0.8 else 10 ** rng.uniform(-2, 4))
    spread = np.full(size, variance)
    if fitting and name not in ("bilinear", "mixture"):
        each = np.r_[np.ones(int(intercept)), 1 / scale**2]
        copies = 2 if name == "softmax" else 1
        spread[: copies * len(each)] *= np.tile(each, copies)
    schedule = ["sequential"] * 5 + ["synchronous", "asynchronous", "gossip"]
    about = {
        "mean": list(mean),
        "scale": list(scale),
        "variance": variance,
        "sites": len(data),
        "fitting": bool(fitting),
        "intercept": bool(intercept),
        "schedule": str(rng.choice(schedule)),
    }
    prior = wide(spread, diagonal)
    return Problem(_named(name, diagonal), kind.function, data, prior, about)


def naive(seed: int) -> Problem:
    """Prior variances 1e-2 to 1e4, mostly 1 to 100; an intercept, a slope, 1 to 8 sites."""
    rng = np.random.default_rng([2, seed])
    kind = list(NAIVE)[seed % len(NAIVE)]
    function, size, draw = NAIVE[kind]
    usual = rng.random() < 0.8
    variance = float(rng.choice([1, 10, 100]) if usual else 10 ** rng.uniform(-2, 4))
    mean, scale = rng.choice([0.0, 0.0, 3.0, 10.0]), 10 ** rng.uniform(-0.5, 0.7)
    columns = 1 if kind == "ordinal" else 2
    slopes = rng.normal(size=columns) / (scale + abs(mean))
    data = {}
    for k in range(int(rng.choice([1, 2, 3, 5, 8]))):
        x = mean + scale * rng.normal(size=(int(rng.choice(SIZES)), columns))
        x[:, : columns - 1] = 1
        data[f"site {k}"] = x, draw(rng, x @ slopes)
    about = {"mean": mean, "scale": scale, "variance": variance, "sites": len(data)}
    prior = wide(np.full(size(columns), variance), diagonal=False)
    return Problem(kind, function, data, prior, about)
