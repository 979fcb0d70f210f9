"""Predictions of a regression from its posterior, with their uncertainty."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import entr, expit, logsumexp

from posterity.arguments import BETWEEN
from posterity.arrays.linear_algebra import one_thread
from posterity.errors import StructureError
from posterity.families.formulas import NORMAL
from posterity.families.marginals import Closed, MixedMarginal
from posterity.families.names import names_of, order
from posterity.families.supports import RealNumbers
from posterity.models import LogisticRegression
from posterity.models.nodes import log_normal_mean, normal_pairs
from posterity.models.strata import AT
from posterity.tabular.design import covariates
from posterity.tabular.options import COUNTS, ESTIMATE, INTERCEPT
from posterity.tabular.recipe import Recipe
from posterity.tabular.recipe_model import (
    CHANCES,
    bounded,
    cumulative,
    in_own_unit,
    log_hazard,
    log_ratio,
    surviving,
)
from posterity.tabular.regressions import model_of
from posterity.tabular.rows import Design


class Predictor(NamedTuple):
    """Linear predictors of n records under a mixture of K Gaussians of the coefficients.

    ``weights`` (K,) sum to one; ``mean`` and ``deviation`` are (K, n).
    """

    weights: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    def average(self, each: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Return the average over components of a function of their means and deviations, (n,)."""
        return self.weights @ np.stack([*map(each, self.mean, self.deviation)])

    def quantile(self, level: float) -> np.ndarray:
        """Return the quantiles of the predictors at probability ``level``, (n,)."""
        spread = np.where(self.deviation > 0, self.deviation, np.finfo(float).tiny)
        each = Closed(NORMAL, (self.mean, spread))
        if len(self.weights) == 1:
            return each.quantile(level)[0]
        return MixedMarginal(self.weights, each).quantile(level)

    def log_average(self, each: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Return the logarithm of the average of the exponential of a function, (n,)."""
        logs = np.stack([*map(each, self.mean, self.deviation)])
        return np.asarray(logsumexp(logs, axis=0, b=self.weights[:, None]))


def predictor(posterior: Any, data: Design) -> Predictor:
    """Return linear predictors of records, offsets included; a StructureError unless the posterior
    is a Gaussian, or a mixture of them, over these columns.
    """
    weights, parts, names = gaussians(posterior)
    x = data.x[:, order(data.names, names or data.names, "the table", "the posterior")]
    with one_thread(x.shape[1], len(x)):
        mean, variance = map(np.stack, zip(*(q.predictor(x) for q in parts), strict=True))
    return Predictor(weights, mean + data.shift, np.sqrt(variance))


def gaussians(posterior: Any) -> tuple[np.ndarray, list[Any], tuple[str, ...]]:
    """Return the weights, components and names of a Gaussian or a mixture of Gaussians."""
    mixture = getattr(posterior, "is_mixture", False)
    whole: Any = posterior.components if mixture else posterior
    names = tuple(names_of(whole).get("", ()))
    law, supports = getattr(whole, "unmapped", (whole, None))
    identity = supports is not None and isinstance(supports.tree, RealNumbers)
    parts: Any = law if identity else whole
    gaussian = getattr(parts, "gaussian", False)
    nameless = gaussian and not names and parts.own_size > 1
    one = "a Gaussian, or a mixture of Gaussians, over the coefficients"
    distill = "Predict in Python with the model that made it, or distill it."
    named = "names, by which columns are identified"
    name = "Name them by posterior.named([...]), and save it again."
    StructureError.check(
        (not gaussian, f"{posterior!r}", one, distill),
        (nameless, f"coefficients without names: {posterior!r}", named, name),
    )
    if not mixture:
        return np.ones(1), [parts], names
    weights = np.asarray(posterior.weights)
    return weights, [parts[k] for k in range(len(weights))], names


def predict(
    posterior: Any,
    recipe: Recipe,
    data: Design,
    *,
    noise_variance: float | None = None,
    level: float = 0.9,
    times: Sequence[float] = (),
    median: bool = False,
) -> dict[str, np.ndarray]:
    """Return predictions of each record's target, with intervals and uncertainties, by name.

    Args:
        posterior: Gaussian or mixture of Gaussians over the coefficients.
        recipe: recipe of the regression.
        data: records, in the recipe's units.
        noise_variance: noise variance of a linear model, in the units of its posterior.
        level: probability of the intervals, which are equal-tailed.
        times: times at which to predict survival; by default the recipe's cuts.
        median: whether to return, for counts and positive numbers, the ``median`` of the expected
            value instead of ``mean`` and ``variance``, which are infinite if log-normal over sites.

    Returns:
        Arrays (n,), except ``mean`` of several levels. For a label: ``p``, the probability of the
        second level; ``low`` and ``high``, its interval given uncertain coefficients; ``entropy``,
        and the ``mutual_information`` of label and coefficients, in nats. For a number, in its own
        unit: ``mean``, its interval ``low`` and ``high``, and its ``variance``; with known noise
        also ``noise_variance``, and ``target_low`` and ``target_high``, the interval of a new
        record. For counts and positive numbers: the expected value's ``mean``, ``low``, ``high``
        and ``variance``. For survival: at each time T ``survival_T``, the probability that the
        event comes later, with interval ``low_T`` and ``high_T``; and ``log_hazard_ratio``, the
        mean one to the baseline. For several levels: their probabilities ``mean`` (n, K),
        ``entropy`` and ``mutual_information``.
    """
    BETWEEN.check(level=level)
    if recipe.model == "survival":
        return _survival(posterior, recipe, data, times, level)
    if recipe.model in CHANCES:
        return _classes(posterior, recipe, data)
    f = predictor(posterior, data)
    tails = ((1 - level) / 2, (1 + level) / 2)
    low, high = map(f.quantile, tails)
    if recipe.model == "logistic":
        p = f.average(_chance)
        expected = f.average(_mean_entropy)
        total = entr(p) + entr(1 - p)
        return {
            "p": p,
            "low": expit(low),
            "high": expit(high),
            "entropy": total,
            "mutual_information": np.maximum(total - expected, 0.0),
        }
    if recipe.model != "linear":
        exposure = np.ones(len(low)) if data.exposure is None else data.exposure
        if median:
            ends = {"median": f.quantile(0.5), "low": low, "high": high}
            with np.errstate(over="ignore"):
                return {name: np.exp(end) * exposure for name, end in ends.items()}

        def moment(k):
            return f.average(lambda m, s: np.exp(k * m + k**2 * s**2 / 2))

        with np.errstate(over="ignore", invalid="ignore"):
            mean = moment(1)
            second = moment(2)
            parts = {"mean": mean, "low": np.exp(low), "high": np.exp(high)}
            variance = np.where(second < np.inf, np.maximum(second - mean**2, 0.0), np.inf)
        return {k: v * exposure for k, v in parts.items()} | {"variance": variance * exposure**2}
    mean = f.average(lambda mean, deviation: mean)
    variance = f.average(lambda own, deviation: deviation**2 + (own - mean) ** 2)
    parts = {"mean": mean, "low": low, "high": high, "variance": variance}
    noise_variance = spread_in(recipe, noise_variance)
    if noise_variance is not None:
        noisy = f._replace(deviation=np.sqrt(f.deviation**2 + noise_variance))
        parts |= dict(zip(("target_low", "target_high"), map(noisy.quantile, tails), strict=True))
        parts["noise_variance"] = np.full(len(mean), noise_variance)
    return in_own_unit(recipe, parts)


def log_predictive(
    posterior: Any, recipe: Recipe, data: Design, spread: float | None = None
) -> np.ndarray:
    """Return the log predictive density or probability of each record's target, (n,), in nats.

    For a number it is a density in the target's own unit. ``spread`` is the noise variance, in the
    unit of the posterior, or the dispersion; by default the recipe's. It has to be known.
    """
    known = spread_in(recipe, spread)
    if recipe.model == "survival":
        return _log_survival(posterior, recipe, data)
    if recipe.model in CHANCES:
        chances = _classes(posterior, recipe, data)["mean"]
        with np.errstate(divide="ignore"):
            return np.log(chances[np.arange(len(chances)), np.asarray(data.y, dtype=int)])
    f = predictor(posterior, data)
    y = np.asarray(data.y)
    if recipe.model == "logistic":
        p = f.average(_chance), f.average(lambda mean, deviation: _chance(-mean, deviation))
        with np.errstate(divide="ignore"):
            return np.log(np.where(y > 0, *p))
    if recipe.model != "linear":
        model = model_of(recipe.replaced(weights=None, offset=None), known)
        if recipe.model in COUNTS:
            y = np.stack([y, np.ones(len(y)) if data.exposure is None else data.exposure], -1)

        def score(f):
            return model.predictor_log_likelihood(f, y[:, None])

        def mean(m, s):
            return log_normal_mean(lambda u: score(m[:, None] + s[:, None] * u), m)

        with np.errstate(over="ignore"):
            return f.log_average(mean)
    scale = recipe.scale.get(recipe.target or "", 1.0)

    def variance(deviation):
        return deviation**2 + (known or 0.0)

    def density(m, s):
        return -((y - m) ** 2 / variance(s) + np.log(2 * np.pi * variance(s))) / 2

    return f.log_average(density) - np.log(scale)


def spread_in(recipe: Recipe, spread: float | None) -> float | None:
    """Return ``spread``, or else the recipe's, which is None if it is to be estimated."""
    known = getattr(recipe, recipe.spread) if recipe.spread and spread is None else spread
    return None if known is None or known == ESTIMATE else float(known)


def _draws(
    posterior: Any, data: Design, *, pairs: int = 512, fewest: int = 16
) -> tuple[np.ndarray, np.ndarray]:
    """Return quasi-random draws (m, d) of the coefficients in the columns' order, and weights.

    There are 1,024 of a Gaussian, in ``pairs`` of mirrored ones; of a mixture about four times as
    many, ``fewest`` pairs at least of each component.
    """
    weights, parts, names = gaussians(posterior)
    places = order(names or data.names, data.names, "the posterior", "the table")
    pairs = min(pairs, max(fewest, 4 * pairs // len(parts)))
    shares = np.repeat(weights / (2 * pairs), 2 * pairs)
    nodes = [normal_pairs(len(places), pairs, seed) for seed in range(len(parts))]
    roots = [np.linalg.cholesky(covariance_of(q)).T for q in parts]
    draws = [q.mean + own @ root for q, own, root in zip(parts, nodes, roots, strict=True)]
    return np.concatenate(draws)[:, places], shares


def covariance_of(q: Any) -> np.ndarray:
    """Return the covariance matrix of a Gaussian, diagonal or not."""
    return np.diag(q.marginal_variance) if q.diagonal else np.asarray(q.covariance)


def _slices(count: int, rows: int = 1024) -> list[slice]:
    """Return slices of ``rows`` records, for which all draws fit in memory."""
    return [slice(start, start + rows) for start in range(0, count, rows)]


def _classes(posterior: Any, recipe: Recipe, data: Design) -> dict[str, np.ndarray]:
    """Return probabilities of each level (n, K), averaged over draws, and entropies in nats."""
    z, shares = _draws(posterior, data)
    each = CHANCES[recipe.model]
    x = covariates(recipe, data)
    shift = data.shift
    mean = np.empty((len(x), len(recipe.levels)))
    inner = np.empty(len(x))
    for rows in _slices(len(x)):
        own = each(recipe, z, x[rows], shift[rows])
        mean[rows] = np.tensordot(shares, own, 1)
        inner[rows] = shares @ entr(own).sum(-1)
    total = entr(mean).sum(-1)
    known = np.maximum(total - inner, 0.0)
    return {"mean": mean, "entropy": total, "mutual_information": known}


def _survival(
    posterior: Any, recipe: Recipe, data: Design, times: Sequence[float], level: float
) -> dict[str, np.ndarray]:
    """Return survival at each time, averaged over draws of the coefficients."""
    z, shares = _draws(posterior, data)
    x = covariates(recipe, data)
    shift = data.shift
    names = recipe.inputs()[len(recipe.baseline) :]
    varying = [name.partition(AT)[0] != INTERCEPT for name in names]  # not a constant log hazard
    result = {"log_hazard_ratio": shares @ log_ratio(recipe, z, x * varying) + shift}
    ends = [(1 - level) / 2, (1 + level) / 2]
    equal_tailed: Any = {"axis": 0, "weights": shares, "method": "inverted_cdf"}
    for time in times or recipe.cuts:
        parts = np.empty((3, len(x)))
        for rows in _slices(len(x)):
            own = surviving(recipe, z, x[rows], shift[rows], time)
            parts[:, rows] = shares @ own, *np.quantile(own, ends, **equal_tailed)
        names = (f"{name}_{time:.12g}" for name in ("survival", "low", "high"))
        result |= dict(zip(names, parts, strict=True))
    return result


def _log_survival(posterior: Any, recipe: Recipe, data: Design) -> np.ndarray:
    """Return the log density of an event, or log probability of none, from entry to the time."""
    assert data.times is not None, "scored tables have times"
    z, shares = _draws(posterior, data)
    time, event, entry = data.times.T
    x = covariates(recipe, data)
    shift = data.shift
    result = np.empty(len(time))
    for rows in _slices(len(time)):
        ratio = log_ratio(recipe, z, x[rows]) + shift[rows]
        spent = cumulative(recipe, z, entry[rows], time[rows]) * np.exp(bounded(ratio))
        logs = event[rows] * (log_hazard(recipe, z, time[rows]) + ratio) - spent
        result[rows] = logsumexp(logs, axis=0, b=shares[:, None])
    return result


def _label(mean: np.ndarray, deviation: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return ``E[log σ(-f)]``, ``E[σ(f)]`` and ``E[σ'(f)]`` of normal predictors, to 1e-12."""
    zero = np.zeros(len(mean))
    parts = LogisticRegression().predictor_expectation(mean, deviation**2, zero)
    assert parts is not None, "NumPy arrays have a closed form"
    value, slope, bend = parts
    return value, np.clip(-slope, 0.0, 1.0), -bend


def _chance(mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return ``E[σ(f)]``."""
    return _label(mean, deviation)[1]


def _mean_entropy(mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return the expected entropy of a label with log odds ``f``, in nats.

    It is ``-E[log σ(-f)] - E[f σ(f)]``; the last term is ``m E[σ] + s² E[σ']`` (Stein).
    """
    value, chance, bend = _label(mean, deviation)
    return np.maximum(-value - mean * chance - deviation**2 * bend, 0.0)
