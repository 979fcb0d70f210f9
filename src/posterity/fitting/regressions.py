"""Regressions of one site's table: a federation of that site, and what float64 can hold of it."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from posterity.errors import ConvergenceError, ConvergenceWarning, ParameterError, SiteError
from posterity.families.names import some
from posterity.federation import Run, federate
from posterity.models import (
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    PredictorModel,
)

TOLERANCE = 1e-4
"""Nats that may be left: what sums over nodes are refined to, and much less than is usual."""
_KEPT = 1e-3
"""Standard deviations by which rounding may displace the mean."""
_UNITS = "Change units (--center, --scale) or --prior-sd; nothing was written."


def fitted(
    model: str, noise_variance: float | None, site: str, x: Any, y: Any, exposure: Any, prior: Any
) -> Run:
    """A federation of the one site.

    Args:
        model: ``"linear"``, ``"logistic"`` or ``"poisson"``.
        noise_variance: of a linear model.
        site: its name.
        x: (n, d).
        y: (n,).
        exposure: of counts (n,), or none.
        prior: of the coefficients.

    Raises:
        ConvergenceError: if the log likelihood is not finite.
    """
    regression: PredictorModel
    if model == "linear":
        regression = LinearRegression(noise_variance)  # pyright: ignore[reportArgumentType]
    elif model == "logistic":
        regression = LogisticRegression()
    else:
        regression = PoissonRegression(exposure is not None)
        y = y if exposure is None else np.column_stack([y, exposure])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return federate({site: (x, y)}, regression, prior, tolerance=TOLERANCE)
    except SiteError as error:
        raise ConvergenceError(
            found=error.found, expected="a posterior near the records", fix=_UNITS
        ) from error


def check_converged(run: Run) -> None:
    """Raise a ConvergenceError of a search that did not end."""
    if not run.status.converged:
        raise ConvergenceError(found=f"a fit that has {run.status}", expected="an end", fix=_UNITS)


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


def deviations(linear: np.ndarray, precision: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The standard deviations (d,) of a Gaussian of these natural parameters.

    Raises:
        ParameterError: if columns are so alike, or so far from 0, that float64 does not tell them
            apart, or displaces a mean.
    """
    size = np.sqrt(np.diagonal(precision))
    scaled, rounding = precision / np.outer(size, size), np.finfo(float).eps
    values, vectors = np.linalg.eigh(scaled)
    if not values[0] > 10 * len(size) * rounding:
        alike = [n for n, part in zip(names, vectors[:, 0], strict=True) if abs(part) > 0.1]
        raise ParameterError(
            found=f"columns that say the same, or nearly: {some(alike)}",
            expected="columns of which none follows from the others, or a prior that holds them",
            fix="Leave one out (--without NAME), --center those far from 0, or lower --prior-sd.",
        )
    covariance, units = (vectors / values) @ vectors.T, np.sqrt((vectors**2 / values).sum(1))
    mean = covariance @ (linear / size)
    # A sum of d products is off by some units in the last place of each.
    lost = rounding * (abs(scaled) @ abs(mean) + abs(linear / size))
    off = np.sqrt((covariance**2) @ lost**2) / units
    if not off.max(initial=0) <= _KEPT:
        worst = names[int(np.argmax(off))]
        raise ParameterError(
            found=f"columns so far from 0, beside how much they vary, that float64 displaces the "
            f"coefficient of {worst!r} by {off.max():.2g} standard deviations",
            expected="columns about as far from 0 as they vary",
            fix="Take a number off them that is the same at every site: --center NAME=VALUE.",
        )
    return units / size
