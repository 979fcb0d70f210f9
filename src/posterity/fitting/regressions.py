"""Regressions of one site's table: a federation of that site, and what float64 can hold of it."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.artifact.recipe import LABELS, Recipe
from posterity.errors import ConvergenceError, ConvergenceWarning, ParameterError, SiteError
from posterity.families.names import some
from posterity.federation import Run, federate
from posterity.fitting.design import Design
from posterity.models import (
    Adjusted,
    GammaRegression,
    LinearRegression,
    LogisticRegression,
    MultinomialRegression,
    NegativeBinomialRegression,
    PoissonRegression,
    PredictorModel,
)
from posterity.status import ProgressCallback

TOLERANCE = 1e-4
"""Nats that may be left: what sums over nodes are refined to, and much less than is usual."""
_KEPT = 1e-3
"""Standard deviations by which rounding may displace the mean."""
_UNITS = "Change units (--center, --scale) or --prior-sd; nothing was written."


def model_of(recipe: Recipe, noise_variance: float | None = None) -> Any:
    """The library's model of a recipe; of counts, which have exposures."""
    if recipe.model == "linear":
        return LinearRegression(1.0 if noise_variance is None else noise_variance)
    if recipe.model == "multinomial":
        return MultinomialRegression(len(recipe.levels))
    dispersion = recipe.dispersion or 1.0
    kinds: dict[str, PredictorModel] = {
        **dict.fromkeys(LABELS, LogisticRegression()),
        "gamma": GammaRegression(dispersion),
        "negative-binomial": NegativeBinomialRegression(dispersion, True),
    }
    model = kinds.get(recipe.model, PoissonRegression(exposure=True))
    shifted = recipe.offset and recipe.model in (*LABELS, "gamma")
    return Adjusted(model) if recipe.weights or shifted else model


def data_of(recipe: Recipe, data: Design) -> tuple[np.ndarray, np.ndarray]:
    """A table's records as the model of the recipe takes them.

    Exposures and offsets of counts are one. A linear model takes offsets off the target, and
    records by the square roots of their weights.
    """
    x, y = data.x, np.asarray(data.y)
    offset = np.zeros(len(x)) if data.offset is None else data.offset
    weights = np.ones(len(x)) if data.weights is None else data.weights
    if recipe.model == "linear":
        root = np.sqrt(weights)
        return x * root[:, None], (y - offset) * root
    if recipe.model not in (*LABELS, "gamma"):
        exposure = np.exp(offset) * (1.0 if data.exposure is None else data.exposure)
        y, offset = np.column_stack([y, exposure]), np.zeros(len(x))
    adjusted = isinstance(model_of(recipe), Adjusted)
    return x, np.column_stack([y, offset, weights]) if adjusted else y


def fitted(
    recipe: Recipe,
    noise_variance: float | None,
    site: str,
    data: Design,
    prior: Any,
    progress: ProgressCallback | None = None,
) -> Run:
    """A federation of the one site, whose records these are.

    Raises:
        ConvergenceError: if the log likelihood is not finite.
    """
    model = model_of(recipe, noise_variance)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            options: Any = {"tolerance": TOLERANCE, "progress": progress}
            return federate({site: data_of(recipe, data)}, model, prior, **options)
    except SiteError as error:
        raise ConvergenceError(
            found=error.found, expected="a posterior near the records", fix=_UNITS
        ) from error


def check_converged(run: Run) -> None:
    """Raise a ConvergenceError of a search that did not end."""
    if not run.status.converged:
        raise ConvergenceError(found=f"a fit that has {run.status}", expected="an end", fix=_UNITS)


class Residuals(NamedTuple):
    """Residuals of a site's least squares: a ``sum`` of squares over records to ``spare``.

    ``records`` and coefficients (``size``) are counted, and ``top`` is the largest target.
    """

    sum: float
    spare: float
    top: float
    records: int
    size: int

    @classmethod
    def together(cls, sites: Iterable["Residuals"]) -> "Residuals":
        """Those of all sites."""
        total, spare, top, records, size = zip(*sites, strict=True)
        return cls(sum(total), sum(spare), max(top), sum(records), max(size))

    @property
    def variance(self) -> float:
        """The variance of the noise.

        Raises:
            ParameterError: if there are no records to spare, or nothing is left.
        """
        variance = self.sum / self.spare if self.spare > 0 else 0.0
        if not variance > (1e-13 * self.top) ** 2:
            raise ParameterError(
                found=f"{self.records} records for {self.size} coefficients, which leave no "
                "residual to estimate the noise from",
                expected="more records, or a noise variance that is known",
                fix="Say --noise-variance V, the same at every site.",
            )
        return variance


def residuals_of(recipe: Recipe, data: Design) -> Residuals:
    """The residuals of least squares of one site's records."""
    x, y = data_of(recipe, data)
    size = np.sqrt((x**2).mean(0)) if len(x) else np.ones(x.shape[1])
    size[size == 0] = 1.0
    solution, _, rank, _ = np.linalg.lstsq(x / size, y, rcond=None)
    count = len(y) if data.weights is None else float(data.weights.sum())
    left = float(((y - (x / size) @ solution) ** 2).sum())
    top = float(np.abs(y).max(initial=0))
    return Residuals(left, count - int(rank), top, len(x), x.shape[1])


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
