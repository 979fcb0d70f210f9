"""Regression of one site's table, as a federation of that site, with checks of float64 accuracy."""

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag
from scipy.optimize import minimize, minimize_scalar

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
    ProportionalOdds,
    Records,
)
from posterity.status import ProgressCallback
from posterity.tabular.options import ESTIMATE, LABELS, ODDS
from posterity.tabular.recipe import Recipe
from posterity.tabular.rows import Design, levels_of

_UNITS = "Change units (--center, --scale) or --prior-sd; nothing was written."
_NO_EVENTS = (
    "No record has an event, so a file of this site would contribute almost nothing. Leave it out "
    "of the fusion, or federate with it; or pass a smaller --prior-sd at every site "
    "(--prior-sd 10); nothing was written."
)
LEAST = 2e-6
"""Dispersion below which counts are taken as Poisson: near 1e-6, the least that is looked for, the
profile likelihood is flat beside its rounding errors."""
AS_POISSON = "counts vary no more than Poisson's: try --model poisson"


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
        ODDS: ProportionalOdds(),
        "gamma": GammaRegression(spread),
        "negative-binomial": NegativeBinomialRegression(spread, True),
    }
    model = kinds.get(recipe.model, PoissonRegression(exposure=True))
    shifted = recipe.offset and recipe.model in (*LABELS, "gamma")
    return Adjusted(model) if recipe.weights or recipe.trials or shifted else model


def data_of(recipe: Recipe, data: Design) -> tuple[np.ndarray, np.ndarray]:
    """Return a table's records in the form that the recipe's model takes.

    For counts, exposures include offsets. A linear model has offsets subtracted from the target,
    and records multiplied by the square roots of their weights.
    """
    x = data.x
    y = np.asarray(data.y)
    offset = data.shift
    weights = data.counts
    if recipe.model == "linear":
        root = np.sqrt(weights)
        return x * root[:, None], (y - offset) * root
    if recipe.model not in (*LABELS, "gamma"):
        exposure = np.exp(offset) * (1.0 if data.exposure is None else data.exposure)
        y = np.column_stack([y, exposure])
        offset = np.zeros(len(x))
    adjusted = isinstance(model_of(recipe), Adjusted)
    return x, np.column_stack([y, offset, weights]) if adjusted else y


def fitted(
    recipe: Recipe,
    spread: float | None,
    site: str,
    data: Design,
    prior: Any,
    progress: ProgressCallback | None = None,
    *,
    tolerance: float = 1e-4,
) -> Run:
    """Return a federation of one site with these records.

    The default ``tolerance``, in nats, is the accuracy of quadrature, and much tighter than that of
    federations.
    """
    model = model_of(recipe, spread)
    options: Any = {"tolerance": tolerance, "progress": progress}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return federate({site: data_of(recipe, data)}, model, prior, **options)
    except SiteError as error:
        raise _not_found(error.found, recipe, data) from error


def check_converged(run: Run, recipe: Recipe, data: Design) -> None:
    """Raise a ConvergenceError if the search has not converged."""
    if not run.status.converged:
        raise _not_found(f"a fit that has {run.status}", recipe, data)


def check_levels(recipe: Recipe, designs: Iterable[Design]) -> None:
    """Raise a ParameterError for a level of proportional odds without a record in any of the
    designs: without one of a level between two others thresholds are in no order, and what is said
    of the first or last no Gaussian holds, from which other sites would seem to differ.
    """
    if recipe.model != ODDS:
        return
    told = (levels_of(recipe, data.x, np.asarray(data.y)) for data in designs)
    seen = {int(level) for levels in told for level in levels}
    none = [level for place, level in enumerate(recipe.levels) if place not in seen]
    if none:
        raise ParameterError(
            found=f"no record with the level {some(none)} of {recipe.target!r}",
            expected="a record of each level",
            fix="Give it and a neighbour one name at every site, fit --model ordinal, or federate "
            "with a site that has such records.",
        )


def _not_found(found: str, recipe: Recipe, data: Design) -> ConvergenceError:
    """Return the error for a search that failed, or has not converged."""
    fix = _NO_EVENTS if recipe.model == "survival" and not np.any(data.y) else _UNITS
    return ConvergenceError(found=found, expected="a search that converges", fix=fix)


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
                expected="more records, or --noise-variance V, the same at every site",
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
    have; all other coefficients are common.
    """
    sites = list(sites)
    records = sum(own.records for own in sites)
    factor = [own.factor for own in sites]
    x = joined([(own.names, r[:, :-1]) for own, r in zip(sites, factor, strict=True)], apart)
    y = np.concatenate([r[:, -1] for r in factor])
    basis = _orthogonal(x, np.finfo(float).eps * max(records, *x.shape))
    total = float(((y - basis @ (basis.T @ y)) ** 2).sum())
    spare = sum(own.count for own in sites) - basis.shape[1]
    return Residuals(total, spare, max(own.top for own in sites), records, x.shape[1])


def joined(
    sites: Sequence[tuple[Sequence[str], np.ndarray]], apart: Collection[str] = ()
) -> np.ndarray:
    """Return the inputs (n, k) of all sites' rows, from the names and inputs of each.

    Columns that all sites have come first, without those ``apart``; then the others of each site,
    which are 0 in the rows of all other sites.
    """
    common = [name for name in sites[0][0] if name not in apart]
    common = [name for name in common if all(name in names for names, _ in sites)]
    blocks = []
    for names, x in sites:
        own = [place for place, name in enumerate(names) if name not in common]
        blocks.append((x[:, [*map(list(names).index, common)]], x[:, own]))
    shared = np.concatenate([both for both, _ in blocks])
    return np.hstack([shared, np.asarray(block_diag(*[own for _, own in blocks]))])


def _orthogonal(x: np.ndarray, rounding: float) -> np.ndarray:
    """Return orthonormal columns of which those of x are combinations, without dependent ones."""
    size = np.sqrt((x**2).mean(0)) if len(x) else np.ones(x.shape[1])
    u, values, _ = np.linalg.svd(x / np.where(size > 0, size, 1.0), full_matrices=False)
    return u[:, values > rounding * math.sqrt(len(x))]


def dispersion_of(
    recipe: Recipe, sites: Iterable[Design], apart: Collection[str] = (), *, ends: Any = (1e-6, 1e4)
) -> float:
    """Return the dispersion that maximises all records' adjusted profile likelihood (cox1987).

    Each site has its own coefficients of the columns ``apart``, as in :func:`residuals_of`. For
    counts without overdispersion the result is the first of ``ends``, the bounds of the search; one
    near the last is an error, since there are too few records.
    """
    sites = [data for data in sites if len(data.x)]
    left = residuals_of([triangle_of(recipe, data) for data in sites], apart) if sites else None
    dispersion = ends[1]
    if left is not None and left.spare > 0:
        value = profile(recipe, sites, apart)
        options = {"xatol": 1e-9, "maxiter": 100}

        def loss(log):
            return -value(log)

        found: Any = minimize_scalar(loss, bounds=np.log(ends), method="bounded", options=options)
        dispersion = math.exp(found.x)
    same = recipe.model == "gamma" and dispersion < LEAST  # counts may be Poisson
    if same or dispersion > 0.99 * ends[1]:
        number = left.records if left else 0
        targets = {*np.concatenate([np.zeros(0), *(np.asarray(data.y) for data in sites)])}
        why = "too few to estimate a dispersion"
        if len(targets) == 1:
            why = f"whose targets are all {targets.pop():g}, which tell no dispersion"
        raise ParameterError(
            found=f"{number} records, {why}",
            expected="more of them, or a known dispersion",
            fix="Pass --dispersion V, the same at every site; with --like, to the file's own fit.",
        )
    return dispersion


def profile(
    recipe: Recipe,
    sites: Iterable[Design],
    apart: Collection[str] = (),
    *,
    ridge: float = 1e-8,
    step: float = 1e-4,
) -> Callable[[float], float]:
    """Return the adjusted profile log likelihood of all records, a function of log dispersion.

    It is the log likelihood at its maximum less half the log determinant of the curvature there
    (cox1987). Sites share coefficients, except those of columns ``apart`` and of those that others
    lack.

    Args:
        recipe: recipe of the regression.
        sites: records of each site.
        apart: names of columns of which each site has its own coefficients.
        ridge: precision per record of the coefficients of columns with mean square 1, which keeps
            them finite where no record bounds them.
        step: step of the differences of slopes, in the linear predictor.
    """
    sites = list(sites)
    pairs = [data_of(recipe, data) for data in sites]
    x = joined([(data.names, x) for data, (x, _) in zip(sites, pairs, strict=True)], apart)
    y = np.concatenate([y for _, y in pairs])
    x = _orthogonal(x, np.finfo(float).eps * max(x.shape)) * math.sqrt(len(x))
    prior = Gaussian(np.zeros(x.shape[1]), ridge * len(x) * np.eye(x.shape[1]))
    accuracy = 1e-8 * math.sqrt(len(x))  # a gradient of 1e-8 errors of the coefficients
    at = list[np.ndarray]()

    def value(log: float) -> float:
        model = model_of(recipe, math.exp(log))

        def loss(z: np.ndarray) -> float:
            own = z @ prior.precision @ z / 2
            return float(own - model.predictor_log_likelihood(x @ z, y).sum())

        def slope(f: np.ndarray) -> np.ndarray:
            return model.predictor_value_and_slope(f, y)[1]

        def gradient(z: np.ndarray) -> np.ndarray:
            return prior.precision @ z - x.T @ slope(x @ z)

        def curvature(z: np.ndarray) -> np.ndarray:
            bend = slope(x @ z - step) - slope(x @ z + step)
            return prior.precision + (x.T * (bend / (2 * step))) @ x

        if not at:  # later calls begin at the last maximum
            at.append((prior + model.rough_factor(prior, Records.of((x, y)))).mean)
        options = {
            "jac": gradient,
            "hess": curvature,
            "options": {"gtol": accuracy, "maxiter": 100},
        }
        found = minimize(loss, at[0], method="trust-exact", **options).x
        at[0] = found
        return -loss(found) - float(np.linalg.slogdet(curvature(found))[1]) / 2

    return value


def deviations(
    linear: np.ndarray, precision: np.ndarray, names: Sequence[str], *, most: float = 1e-3
) -> np.ndarray:
    """Return the standard deviations (d,) of a Gaussian with these natural parameters.

    A ParameterError names columns that are linearly dependent, and one whose coefficient rounding
    displaces by more than ``most`` of its standard deviations.
    """
    size = np.sqrt(np.diagonal(precision))
    scaled = precision / np.outer(size, size)
    rounding = np.finfo(float).eps
    values, vectors = np.linalg.eigh(scaled)
    if not values[0] > 10 * len(size) * rounding:
        alike = [n for n, part in zip(names, vectors[:, 0], strict=True) if abs(part) > 0.1]
        raise ParameterError(
            found=f"columns that are linearly dependent, or nearly so: {some(alike)}",
            expected="independent columns, or a more informative prior",
            fix="Leave one out (--without NAME), --center those far from 0, or lower --prior-sd.",
        )
    covariance = (vectors / values) @ vectors.T
    units = np.sqrt((vectors**2 / values).sum(1))
    mean = covariance @ (linear / size)
    # A sum of d products has rounding errors of some units in the last place.
    lost = rounding * (abs(scaled) @ abs(mean) + abs(linear / size))
    off = np.sqrt((covariance**2) @ lost**2) / units
    if not off.max(initial=0) <= most:
        worst = names[int(np.argmax(off))]
        raise ParameterError(
            found=f"columns so far from 0, given their variation, that rounding displaces the "
            f"coefficient of {worst!r} by {off.max():.2g} standard deviations",
            expected="columns centred near 0",
            fix="Subtract the same number at every site: --center NAME=VALUE.",
        )
    return units / size
