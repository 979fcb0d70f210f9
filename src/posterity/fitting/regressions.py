"""Regression of one site's table, as a federation of that site, with checks of float64 accuracy."""

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from posterity.artifact.recipe import ESTIMATE, LABELS, Recipe
from posterity.errors import ConvergenceError, ConvergenceWarning, ParameterError, SiteError
from posterity.families import Gaussian
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
    Records,
)
from posterity.status import ProgressCallback

TOLERANCE = 1e-4
"""Tolerance in nats: the accuracy of quadrature, and much tighter than the default."""
_KEPT = 1e-3
"""Largest displacement of the mean by rounding, in standard deviations."""
_UNITS = "Change units (--center, --scale) or --prior-sd; nothing was written."
_NO_EVENTS = (
    "No record has an event, so a file of this site would contribute almost nothing. Leave it out "
    "of the fusion, or federate with it; or pass a smaller --prior-sd at every site "
    "(--prior-sd 10); nothing was written."
)
LOG_DISPERSIONS, LEAST = (math.log(1e-6), math.log(1e4)), 1.01e-6
"""Bounds of the log dispersion, and the dispersion below which counts are taken as Poisson."""
RIDGE, STEP, NEWTON, SETTLED = 1e-8, 1e-4, 100, 1e-16
"""For a profile likelihood: precision per record that keeps coefficients of unit columns finite;
step of differences of slopes; number of Newton steps; squared length of the last one."""


def model_of(recipe: Recipe, spread: float | None = None) -> Any:
    """Return the library's model for a recipe; for counts one with exposures.

    ``spread`` is the noise variance or dispersion; by default the recipe's, or one.
    """
    known = getattr(recipe, recipe.spread) if recipe.spread else None
    spread = spread or (1.0 if known in (None, ESTIMATE) else float(known))
    if recipe.model == "linear":
        return LinearRegression(spread)
    if recipe.model == "multinomial":
        return MultinomialRegression(len(recipe.levels))
    kinds: dict[str, PredictorModel] = {
        **dict.fromkeys(LABELS, LogisticRegression()),
        "gamma": GammaRegression(spread),
        "negative-binomial": NegativeBinomialRegression(spread, True),
    }
    model = kinds.get(recipe.model, PoissonRegression(exposure=True))
    shifted = recipe.offset and recipe.model in (*LABELS, "gamma")
    return Adjusted(model) if recipe.weights or shifted else model


def data_of(recipe: Recipe, data: Design) -> tuple[np.ndarray, np.ndarray]:
    """Return a table's records in the form that the recipe's model takes.

    For counts, exposures include offsets. A linear model has offsets subtracted from the target,
    and records multiplied by the square roots of their weights.
    """
    x, y = data.x, np.asarray(data.y)
    offset, weights = data.shift, data.counts
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
    spread: float | None,
    site: str,
    data: Design,
    prior: Any,
    progress: ProgressCallback | None = None,
) -> Run:
    """Return a federation of one site with these records."""
    model = model_of(recipe, spread)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            options: Any = {"tolerance": TOLERANCE, "progress": progress}
            return federate({site: data_of(recipe, data)}, model, prior, **options)
    except SiteError as error:
        raise ConvergenceError(
            found=error.found, expected="a search that succeeds", fix=_way_out(recipe, data)
        ) from error


def check_converged(run: Run, recipe: Recipe, data: Design) -> None:
    """Raise a ConvergenceError if the search has not converged."""
    if not run.status.converged:
        raise ConvergenceError(
            found=f"a fit that has {run.status}", expected="convergence", fix=_way_out(recipe, data)
        )


def _way_out(recipe: Recipe, data: Design) -> str:
    return _NO_EVENTS if recipe.model == "survival" and not np.any(data.y) else _UNITS


class Residuals(NamedTuple):
    """Residuals of least squares: ``sum`` of squares, degrees of freedom ``spare``.

    ``records`` and ``size`` are numbers of records and coefficients, ``top`` the largest target.
    """

    sum: float
    spare: float
    top: float
    records: int
    size: int

    @property
    def variance(self) -> float:
        """Noise variance; a ParameterError if there are no residuals."""
        variance = self.sum / self.spare if self.spare > 0 else 0.0
        if not variance > (1e-13 * self.top) ** 2:
            raise ParameterError(
                found=f"{self.records} records for {self.size} coefficients, without residuals",
                expected="more records, or a known noise variance",
                fix="Pass --noise-variance V, the same at every site.",
            )
        return variance


class Triangle(NamedTuple):
    """Triangular factor R of the QR decomposition of one site's inputs and target, ``[x, y]``.

    ``count`` is the sum of weights of its ``records``, ``names`` are those of the columns of x, and
    ``top`` is the largest target.
    """

    factor: np.ndarray
    count: float
    records: int
    names: tuple[str, ...]
    top: float


def triangle_of(recipe: Recipe, data: Design) -> Triangle:
    """Return the triangular factor of one site's records."""
    x, y = data_of(recipe, data)
    factor: Any = np.linalg.qr(np.column_stack([x, y]), mode="r")
    top = float(np.abs(y).max(initial=0))
    return Triangle(factor, float(data.counts.sum()), len(x), data.names, top)


def residuals_of(sites: Iterable[Triangle], apart: Collection[str] = ()) -> Residuals:
    """Return the residuals of least squares on the records of all sites.

    Each site has its own coefficients of the columns ``apart``, and of those that others do not
    have; all other coefficients are common. Orthogonality lets a site eliminate its own.
    """
    sites = list(sites)
    count, records, top = sum(t.count for t in sites), sum(t.records for t in sites), sites[0].top
    common = [n for n in sites[0].names if n not in apart and all(n in t.names for t in sites)]
    rounding = np.finfo(float).eps * max(records, *(len(t.names) for t in sites), 1)
    left, before, size, rank = [], [], len(common), 0
    for site in sites:
        places = [*map(site.names.index, common), -1]
        own = [n for n, name in enumerate(site.names) if name not in common]
        x, rest = site.factor[:, own], site.factor[:, places]
        before.append(rest)
        if own and len(rest):
            x = x / _sizes(x)
            solution, _, more, _ = np.linalg.lstsq(x, rest, rcond=rounding)
            rest, rank = rest - x @ solution, rank + int(more)
        left.append(rest)
        size, top = size + len(own), max(top, site.top)
    scale = _sizes(np.concatenate(before)[:, :-1])  # of columns before elimination
    rest = np.concatenate(left)
    x, y = rest[:, :-1] / scale, rest[:, -1]
    u, values, _ = np.linalg.svd(x, full_matrices=False)
    u = u[:, values > rounding * math.sqrt(len(x))]
    total = float(((y - u @ (u.T @ y)) ** 2).sum())
    return Residuals(total, count - rank - u.shape[1], top, records, size)


def _sizes(x: np.ndarray) -> np.ndarray:
    """Return the root mean square of each column, or one for a column of zeros."""
    size = np.sqrt((x**2).mean(0)) if len(x) else np.ones(x.shape[1])
    return np.where(size > 0, size, 1.0)


def dispersion_of(recipe: Recipe, sites: Iterable[Design]) -> float:
    """Return the dispersion that maximises the sum of adjusted profile likelihoods (cox1987).

    Each site has its own coefficients, which maximise its likelihood. For counts without
    overdispersion the result is the lower bound.
    """
    sites = [data for data in sites if len(data.x)]
    value = profile(recipe, sites)
    spare = sum(len(data.x) - int(np.linalg.matrix_rank(data.x)) for data in sites)
    low, high = LOG_DISPERSIONS
    options = {"xatol": 1e-9, "maxiter": 100}
    loss = lambda log: -value(log)
    found: Any = minimize_scalar(loss, bounds=(low, high), method="bounded", options=options)
    same = recipe.model == "gamma" and math.exp(found.x) < LEAST  # counts may be Poisson
    if spare <= 0 or same or found.x > high - 0.01:
        raise ParameterError(
            found=f"{sum(len(data.x) for data in sites)} records, too few to estimate a dispersion",
            expected="more records, or a known dispersion",
            fix="Pass --dispersion V, the same at every site.",
        )
    return math.exp(float(found.x))


def profile(recipe: Recipe, sites: Iterable[Design]) -> Callable[[float], float]:
    """Return the sum of sites' adjusted profile log likelihoods, a function of log dispersion."""
    pairs = [data_of(recipe, data) for data in sites]
    scaled = [(x / _sizes(x), y, [np.zeros(x.shape[1])]) for x, y in pairs]
    return lambda log: sum(_profile(model_of(recipe, math.exp(log)), *own) for own in scaled)


def _profile(model: Any, x: np.ndarray, y: np.ndarray, at: list[np.ndarray]) -> float:
    """Return the profile log likelihood at a dispersion, less half the log determinant.

    ``at`` holds the initial coefficients, which are replaced by the final ones.
    """
    z, ridge = at[0], RIDGE * len(x) * np.eye(x.shape[1])
    start = Gaussian(ridge @ z, ridge)
    if not z.any():
        z = (start + model.rough_factor(start, Records.of((x, y)))).mean
    value = lambda z: model.predictor_log_likelihood(x @ z, y).sum() - z @ ridge @ z / 2
    slope = lambda f: model.predictor_value_and_slope(f, y)[1]
    best, bend = value(z), ridge
    for _ in range(NEWTON):
        f = x @ z
        bend = ridge + (x.T * (slope(f - STEP) - slope(f + STEP)) / (2 * STEP)) @ x
        step = np.linalg.solve(bend, x.T @ slope(f) - ridge @ z)
        decrease = step @ bend @ step
        while decrease > SETTLED and not value(z + step) >= best:
            step, decrease = step / 2, decrease / 4
        z = z + step
        best = value(z)
        if decrease <= SETTLED:
            break
    at[0] = z
    return float(best - np.linalg.slogdet(bend)[1] / 2)


def deviations(linear: np.ndarray, precision: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return the standard deviations (d,) of a Gaussian with these natural parameters."""
    size = np.sqrt(np.diagonal(precision))
    scaled, rounding = precision / np.outer(size, size), np.finfo(float).eps
    values, vectors = np.linalg.eigh(scaled)
    if not values[0] > 10 * len(size) * rounding:
        alike = [n for n, part in zip(names, vectors[:, 0], strict=True) if abs(part) > 0.1]
        raise ParameterError(
            found=f"columns that are linearly dependent, or nearly so: {some(alike)}",
            expected="independent columns, or a more informative prior",
            fix="Leave one out (--without NAME), --center those far from 0, or lower --prior-sd.",
        )
    covariance, units = (vectors / values) @ vectors.T, np.sqrt((vectors**2 / values).sum(1))
    mean = covariance @ (linear / size)
    # A sum of d products has rounding errors of some units in the last place.
    lost = rounding * (abs(scaled) @ abs(mean) + abs(linear / size))
    off = np.sqrt((covariance**2) @ lost**2) / units
    if not off.max(initial=0) <= _KEPT:
        worst = names[int(np.argmax(off))]
        raise ParameterError(
            found=f"columns so far from 0, given their variation, that rounding displaces the "
            f"coefficient of {worst!r} by {off.max():.2g} standard deviations",
            expected="columns centred near 0",
            fix="Subtract the same number at every site: --center NAME=VALUE.",
        )
    return units / size
