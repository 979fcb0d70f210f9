"""Generalised linear models with a Gaussian prior: the mode and the curvature there.

The log posterior is concave, so Newton's method with steps that are halved finds its one mode from
anywhere. Each step is a least-squares problem, solved by QR in columns of one size: that loses
half as many digits as the normal equations, and none to units. The Gaussian at the mode with the
curvature there is Laplace's approximation (bishop2006, section 4.4); of a linear model it is the
posterior itself.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from posterity.arrays.search import newton
from posterity.errors import ConvergenceError, ParameterError
from posterity.families.names import some

STEPS = 200
"""Newton steps, at most; ten are usual."""
CLOSE = 1e-8
"""Of a step: how far from the mode it may end, in standard deviations of the posterior."""
ROUNDED = 1e-4
"""The same, where rounding lets it come no closer."""
_KEPT = 1e-3
"""Standard deviations by which the stored parameters may displace the mean."""
_LEAST_WEIGHT = 1e-30


class Likelihood(NamedTuple):
    """The likelihood of a record with target ``y`` and predictor ``f``, for Newton's method."""

    value: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """``log p(y | f)`` but for what does not hang on ``f``."""
    slope: Callable[[np.ndarray, np.ndarray], np.ndarray]
    curvature: Callable[[np.ndarray], np.ndarray]
    """Minus the second derivative, which ``y`` has no part in."""
    start: Callable[[np.ndarray], np.ndarray]
    """A predictor that explains ``y`` well."""


def _sigmoid(f: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -f))


def _poisson_value(f: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return y * f - np.exp(f)


LOGISTIC = Likelihood(
    lambda f, y: -np.logaddexp(0.0, np.where(y > 0, -f, f)),
    lambda f, y: np.where(y > 0, _sigmoid(-f), -_sigmoid(f)),
    lambda f: _sigmoid(f) * _sigmoid(-f),
    lambda y: np.where(y > 0, np.log(3.0), -np.log(3.0)),
)
POISSON = Likelihood(
    _poisson_value,
    lambda f, y: y - np.exp(f),
    np.exp,
    lambda y: np.log(y + 0.5),
)


def linear(noise_variance: float) -> Likelihood:
    """The likelihood of a Gaussian target with this variance about the predictor."""
    return Likelihood(
        lambda f, y: -((y - f) ** 2) / (2 * noise_variance),
        lambda f, y: (y - f) / noise_variance,
        lambda f: np.full_like(f, 1 / noise_variance),
        lambda y: y,
    )


class Mode(NamedTuple):
    """The mode (d,), the precision there (d, d) without the prior's, predictors (n,), steps."""

    mean: np.ndarray
    precision: np.ndarray
    predictor: np.ndarray
    steps: int


def find_mode(
    likelihood: Likelihood,
    x: np.ndarray,
    y: np.ndarray,
    offset: np.ndarray | None,
    prior_mean: np.ndarray,
    prior_precision: np.ndarray,
) -> Mode:
    """The mode of the posterior of coefficients ``z`` with predictors ``x · z + offset``.

    Args:
        likelihood: of a record.
        x: (n, d).
        y: (n,).
        offset: (n,), or none.
        prior_mean: (d,).
        prior_precision: (d, d), positive definite.

    Raises:
        ConvergenceError: if the steps do not end at the mode.
    """
    size = np.sqrt((x**2).mean(0))
    size[size == 0] = 1.0
    shift = np.zeros(len(y)) if offset is None else offset
    x, center = x / size, prior_mean * size
    root = np.linalg.cholesky(prior_precision / np.outer(size, size)).T

    def value(z: np.ndarray) -> float:
        away = root @ (z - center)
        with np.errstate(over="ignore", invalid="ignore"):
            return float(likelihood.value(x @ z + shift, y).sum() - away @ away / 2)

    def step(f: np.ndarray, slope: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, float]:
        """To the top of the parabola at ``z``; its squared length in units of the curvature."""
        weight = np.sqrt(np.maximum(likelihood.curvature(f), _LEAST_WEIGHT))
        rows = np.vstack([x * weight[:, None], root])
        q, r = np.linalg.qr(rows)
        right = q.T @ np.concatenate([slope / weight, root @ (center - z)])
        move = solve_triangular(r, right)
        return move, float(np.linalg.norm(r @ move)) ** 2

    def newton_step(z: np.ndarray) -> tuple[np.ndarray, float]:
        f = x @ z + shift
        return step(f, likelihood.slope(f, y), z)

    f = likelihood.start(y)
    working = f - shift - x @ center
    start = center + step(f, likelihood.curvature(f) * working, center)[0]
    if not value(start) > value(center):
        start = center
    end = newton(value, newton_step, start, most=STEPS, close=CLOSE**2 / 2)
    if not end.distance <= ROUNDED:
        raise ConvergenceError(
            found=f"a fit that is {end.distance:.3g} standard deviations from its mode after "
            f"{end.steps} steps",
            expected=f"one within {CLOSE:g}",
            fix="Change units (--center, --scale) so that columns are of the size of 1; nothing "
            "was written.",
        )
    f = x @ end.at + shift
    curved = x * np.sqrt(likelihood.curvature(f))[:, None]
    precision = (curved.T @ curved) * np.outer(size, size)
    return Mode(end.at / size, precision, f, end.steps)


def noise_of_residuals(x: np.ndarray, y: np.ndarray) -> float:
    """The variance of what least squares leaves, over the records that it has to spare.

    Raises:
        ParameterError: if it has none to spare, or leaves nothing.
    """
    size = np.sqrt((x**2).mean(0))
    size[size == 0] = 1.0
    solution, _, rank, _ = np.linalg.lstsq(x / size, y, rcond=None)
    spare = len(y) - int(rank)
    left = y - (x / size) @ solution
    variance = float(left @ left) / spare if spare > 0 else 0.0
    if not variance > (1e-13 * float(np.abs(y).max(initial=0))) ** 2:
        raise ParameterError(
            found=f"{len(y)} records for {int(rank)} coefficients, which leave no residual to "
            "estimate the noise from",
            expected="more records, or a noise variance that is known",
            fix="Say --noise-variance V, the same at every site.",
        )
    return variance


def deviations(precision: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The standard deviations (d,) of a Gaussian with this precision.

    Raises:
        ParameterError: if columns are so alike that float64 does not tell them apart.
    """
    size = np.sqrt(np.diagonal(precision))
    values, vectors = np.linalg.eigh(precision / np.outer(size, size))
    if not values[0] > 10 * len(size) * np.finfo(float).eps:
        alike = [n for n, part in zip(names, vectors[:, 0], strict=True) if abs(part) > 0.1]
        raise ParameterError(
            found=f"columns that say the same, or nearly: {some(alike)}",
            expected="columns of which none follows from the others, or a prior that holds them",
            fix="Leave one out (--without NAME), --center those far from 0, or lower --prior-sd.",
        )
    return np.sqrt((vectors**2 / values).sum(1)) / size


def check_kept(mean: np.ndarray, stored: np.ndarray, sd: np.ndarray, names: Sequence[str]) -> None:
    """Raise a ParameterError if natural parameters lose the mean that they were made of."""
    off = abs(mean - stored) / sd
    if not off.max(initial=0) <= _KEPT:
        worst = names[int(np.argmax(off))]
        raise ParameterError(
            found=f"columns so far from 0, beside how much they vary, that float64 displaces the "
            f"coefficient of {worst!r} by {off.max():.2g} standard deviations",
            expected="columns about as far from 0 as they vary",
            fix="Take a number off them that is the same at every site: --center NAME=VALUE.",
        )
