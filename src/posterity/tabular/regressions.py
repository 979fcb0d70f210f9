"""Regression of one site's table, as a federation of that site, with checks of float64 accuracy."""

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from posterity.errors import ConvergenceError, ConvergenceWarning, ParameterError, SiteError
from posterity.families import Gaussian
from posterity.families.names import some
from posterity.federation import Run, federate
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
from posterity.tabular.design import Design
from posterity.tabular.recipe import ESTIMATE, LABELS, Recipe

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
AS_POISSON = "counts vary no more than Poisson's: try --model poisson"
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
    common = _common(sites, apart)
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


def _common(sites: Sequence[Triangle | Design], apart: Collection[str]) -> list[str]:
    """Return the columns that all sites have, without those ``apart``."""
    names = [set(own.names) for own in sites]
    return [n for n in sites[0].names if n not in apart and all(n in own for own in names)]


def _sizes(x: np.ndarray) -> np.ndarray:
    """Return the root mean square of each column, or one for a column of zeros."""
    size = np.sqrt((x**2).mean(0)) if len(x) else np.ones(x.shape[1])
    return np.where(size > 0, size, 1.0)


def _orthogonal(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return orthogonal columns with mean square 1, of which those of x are combinations.

    Dependent ones are left out, and those that are zero beside their ``scale``.
    """
    u, values, _ = np.linalg.svd(x / scale, full_matrices=False)
    rounding = np.finfo(float).eps * max(x.shape)
    return u[:, values > rounding * math.sqrt(len(x))] * math.sqrt(len(x))


def dispersion_of(recipe: Recipe, sites: Iterable[Design], apart: Collection[str] = ()) -> float:
    """Return the dispersion that maximises all records' adjusted profile likelihood (cox1987).

    Each site has its own coefficients of the columns ``apart``, as in :func:`residuals_of`. For
    counts without overdispersion the result is the lower bound.
    """
    sites = [data for data in sites if len(data.x)]
    left = Residuals(0.0, 0.0, 0.0, 0, 0)
    if sites:
        left = residuals_of([triangle_of(recipe, data) for data in sites], apart)
    low, high = LOG_DISPERSIONS
    log = high
    if left.spare > 0:
        value = profile(recipe, sites, apart)
        options = {"xatol": 1e-9, "maxiter": 100}
        loss = lambda log: -value(log)
        found: Any = minimize_scalar(loss, bounds=(low, high), method="bounded", options=options)
        log = float(found.x)
    same = recipe.model == "gamma" and math.exp(log) < LEAST  # counts may be Poisson
    if same or log > high - 0.01:
        raise ParameterError(
            found=f"{left.records} records for {left.size} coefficients, too few to estimate a "
            "dispersion",
            expected="more records, or a known dispersion",
            fix="Pass --dispersion V, the same at every site.",
        )
    return math.exp(log)


def profile(
    recipe: Recipe, sites: Iterable[Design], apart: Collection[str] = ()
) -> Callable[[float], float]:
    """Return the adjusted profile log likelihood of all records, a function of log dispersion.

    Sites share coefficients, except those of columns ``apart`` and of those that others lack. The
    sums over sites are all that it needs of them.
    """
    sites = list(sites)
    common, pairs = _common(sites, apart), [data_of(recipe, data) for data in sites]
    before, left, own = [], [], []
    for data, (x, _) in zip(sites, pairs, strict=True):
        mine = x[:, [place for place, name in enumerate(data.names) if name not in common]]
        mine = _orthogonal(mine, _sizes(mine))
        theirs = x[:, [*map(data.names.index, common)]]
        before.append(theirs)
        left.append(theirs - mine @ (mine.T @ theirs) / len(x))
        own.append(mine)
    shared = _orthogonal(np.concatenate(left), _sizes(np.concatenate(before)))
    parts = [(shared, np.concatenate([y for _, y in pairs]))]
    if any(mine.size for mine in own):
        each = np.split(shared, np.cumsum([len(x) for x in own])[:-1])
        inputs = [np.column_stack(both) for both in zip(each, own, strict=True)]
        parts = [(x, y) for x, (_, y) in zip(inputs, pairs, strict=True)]
    at = list[np.ndarray]()
    return lambda log: _profile(model_of(recipe, math.exp(log)), parts, shared.shape[1], at)


def _profile(
    model: Any, sites: Sequence[tuple[np.ndarray, np.ndarray]], size: int, at: list[np.ndarray]
) -> float:
    """Return the profile log likelihood at a dispersion, less half the log determinant.

    ``at`` holds each site's initial coefficients, of which the first ``size`` are common. They are
    replaced by the final ones.
    """
    ridges = [RIDGE * len(x) * np.eye(x.shape[1]) for x, _ in sites]
    value = lambda at: sum(
        model.predictor_log_likelihood(x @ z, y).sum() - z @ ridge @ z / 2
        for (x, y), ridge, z in zip(sites, ridges, at, strict=True)
    )
    slope = lambda f, y: model.predictor_value_and_slope(f, y)[1]
    if not at:
        flat = [Gaussian(np.zeros(len(ridge)), ridge) for ridge in ridges]
        rough = [
            q + model.rough_factor(q, Records.of(own)) for q, own in zip(flat, sites, strict=True)
        ]
        at[:] = _solved([(q.precision, q.precision_mean) for q in rough], size)[0]
    best, log_determinant = value(at), 0.0
    for _ in range(NEWTON):
        equations = []
        for (x, y), ridge, z in zip(sites, ridges, at, strict=True):
            f = x @ z
            bend = (slope(f - STEP, y) - slope(f + STEP, y)) / (2 * STEP)
            equations.append((ridge + (x.T * bend) @ x, x.T @ slope(f, y) - ridge @ z))
        steps, log_determinant = _solved(equations, size)
        pairs = zip(steps, equations, strict=True)
        decrease = sum(step @ bend @ step for step, (bend, _) in pairs)
        ends = [z + step for z, step in zip(at, steps, strict=True)]
        while decrease > SETTLED and not value(ends) >= best:
            ends = [(z + end) / 2 for z, end in zip(at, ends, strict=True)]
            decrease /= 4
        at[:], best = ends, value(ends)
        if decrease <= SETTLED:
            break
    return float(best - log_determinant / 2)


def _solved(
    sites: Sequence[tuple[np.ndarray, np.ndarray]], size: int
) -> tuple[list[np.ndarray], float]:
    """Return each site's solution of the linear equations of all, and their log determinant.

    A site has a matrix and a right side; the first ``size`` unknowns are common, and matrices and
    right sides are added up for them. Each site eliminates its own.
    """
    total, right, lasting, log_determinant = np.zeros((size, size)), np.zeros(size), [], 0.0
    for matrix, side in sites:
        mixed, own = matrix[:size, size:], matrix[size:, size:]
        left = np.linalg.solve(own, np.column_stack([mixed.T, side[size:]]))
        total += matrix[:size, :size] - mixed @ left[:, :-1]
        right += side[:size] - mixed @ left[:, -1]
        log_determinant += np.linalg.slogdet(own)[1]
        lasting.append(left)
    common = np.linalg.solve(total, right)
    solutions = [np.append(common, left[:, -1] - left[:, :-1] @ common) for left in lasting]
    return solutions, float(log_determinant + np.linalg.slogdet(total)[1])


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
