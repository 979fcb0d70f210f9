"""Distance of a one-shot fusion from the posterior of all records together.

A fusion adds the sites' Gaussian factors ``t``, each the best approximation of a likelihood ``L``
under the site's own posterior. To leading order ``log L - log t`` is a cubic polynomial, whose
third derivatives ``T`` (d, d, d) a site's file holds. Under the fused posterior, whose mean differs
by ``δ`` from the site's and whose covariance is larger by ``D``, the cubic has the expected
gradient ``T[δδ + D] / 2`` and Hessian ``T[δ]``. Their sums over sites give the next step of a
federation, and the length of that step is the distance.

The distance is unknown if sites estimated dispersions of their own.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from posterity.errors import CHOOSE
from posterity.families.names import names_of, some
from posterity.ledger import Ledger
from posterity.models import MultinomialRegression, PredictorModel
from posterity.models.nodes import hermite
from posterity.tabular.design import Design
from posterity.tabular.recipe import ESTIMATE, Recipe
from posterity.tabular.regressions import data_of, model_of
from posterity.tabular.sites import tensor, turned

MOST = 20
"""Largest number of coefficients whose third derivatives a file holds: 1,540 numbers."""
WORTH = 0.1
"""Distance in nats above which to suggest a federation."""
BEYOND = 2.0
"""Largest change of a site's curvature, relative to its own precision, between its mean and the
fused mean; beyond it the cubic approximation is not valid."""
SKEWED = 0.7
"""Size of third derivatives, in units of a site's own deviations, above which its file is not
informative: its curvature changes by as much within one deviation."""
NOT_GAUSSIAN = (
    "are not nearly Gaussian: with one class only, a level or an interval without an event, or few "
    "records"
)
"""The end of warnings of likelihoods that are uninformative, or inaccurate at the fused mean."""
NODES = 32
"""Number of Gauss-Hermite nodes of a record's predictor."""
STEP = 1e-3
"""Step of a difference, in the predictor's deviations."""


def third_derivatives(
    recipe: Recipe, data: Design, posterior: Any, spread: float | None = None
) -> np.ndarray | None:
    """Return expected third derivatives (d, d, d) of the log likelihood under a site's posterior.

    None for a diagonal Gaussian, for more than :data:`MOST` coefficients, and for a site that
    estimates its own dispersion or noise (for which see :func:`_of_noise`).
    """
    size = posterior.own_size
    if posterior.diagonal or size > MOST or ESTIMATE in (recipe.noise_variance, recipe.dispersion):
        return None
    if recipe.model == "linear":
        return np.zeros((size, size, size))
    x, y = data_of(recipe, data)
    model = model_of(recipe, spread)
    if isinstance(model, MultinomialRegression):
        return _of_classes(model, posterior, x, y)
    mean, variance = posterior.predictor(x)
    step = STEP * np.sqrt(variance) + np.finfo(float).tiny
    above, below = (_slopes(model, mean + own, variance, y)[1] for own in (step, -step))
    third = (above - below) / (2 * step)
    return np.stack([(x.T * (third * column)) @ x for column in x.T])


def _of_classes(model: MultinomialRegression, q: Any, x: np.ndarray, y: Any) -> np.ndarray:
    mean, covariance = model.predictors(q, x)
    blocks = np.split(x, model.classes - 1, axis=1)
    size = blocks[0].shape[1]
    third = np.zeros(3 * (x.shape[1],))
    for a, along in enumerate(np.eye(model.classes - 1)):
        step = STEP * np.sqrt(covariance[:, a, a])[:, None] + np.finfo(float).tiny
        ends = (
            model.expectations(mean + side * step * along, covariance, y)[2] for side in (1, -1)
        )
        above, below = ends
        bend = (below - above) / (2 * step[..., None])
        for (b, c), column in itertools.product(np.ndindex(bend.shape[1:]), range(size)):
            own = (blocks[b].T * (bend[:, b, c] * blocks[a][:, column])) @ blocks[c]
            places = (slice(one * size, (one + 1) * size) for one in (b, c))
            third[(a * size + column, *places)] = own
    return third


def _slopes(model: PredictorModel, mean: Any, variance: Any, y: Any) -> tuple[Any, Any]:
    """Return ``E[ℓ'(f)]`` and ``E[ℓ''(f)]`` of normal predictors (n,)."""
    known = model.predictor_expectation(mean, variance, y)
    if known is not None:
        return known[1:]
    points, chances = hermite(NODES)
    deviation = np.sqrt(variance)
    at = np.stack([model.predictor_value_and_slope(mean + deviation * f, y)[1] for f in points])
    return chances @ at, (chances * points) @ at / np.where(deviation > 0, deviation, 1.0)


class OneShot(NamedTuple):
    """Expected distance of a fusion, in nats, warnings, and sites whose files are not informative.

    The distance is None if unknown. Likelihoods of ``silent`` sites are far from Gaussian under
    their own posterior, for example with records of one class only.
    """

    distance: float | None = None
    warnings: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


def expected_distance(ledger: Ledger, sites: Mapping[str, Mapping[str, Any]]) -> OneShot:
    """Return the expected distance in nats from the posterior of all records, and warnings.

    It is unknown if a site's file has no third derivatives, or if its cubic approximation is not
    valid up to the fused posterior. ``sites`` holds, by site and under ``third``, the numbers of
    :func:`~posterity.tabular.sites.listed`.
    """
    q: Any = ledger.posterior
    facts = [sites.get(site, {}) for site in ledger.sites]
    known = {"third", "spare"}.intersection(*facts)
    several = len({own.get("dispersion") for own in facts}) > 1
    if not known or several or not ledger.independent or not q.gaussian or q.diagonal:
        return OneShot()
    if "spare" in known:
        return _judged(_of_noise(ledger, sites))
    order = np.argsort(names_of(q)[""])

    def sort(law):
        return (law.mean[order], law.covariance[np.ix_(order, order)])

    (mean, covariance), locals_ = (
        sort(q),
        [sort(ledger.prior + ledger.factor(site)) for site in ledger.sites],
    )
    gradient = np.zeros(len(order))
    hessian = np.zeros(covariance.shape)
    beyond = []
    silent = []
    for site, own, (center, spread) in zip(ledger.sites, facts, locals_, strict=True):
        third = tensor(own["third"], len(order))
        if third is None:
            return OneShot()
        away = mean - center
        root = np.linalg.cholesky(spread)
        bend = third @ away
        if abs(np.linalg.eigvalsh(root.T @ bend @ root)).max() > BEYOND:
            beyond.append(site)
            if np.linalg.norm(turned(third, root)) > SKEWED:
                silent.append(site)
        gradient += (bend @ away + np.tensordot(third, covariance - spread, 2)) / 2
        hessian += bend
    if beyond:
        warning = (
            f"the distance of the fusion from the posterior of all records is unknown, since the "
            f"likelihoods of {some(beyond)} {NOT_GAUSSIAN}. If the sites can take part again, "
            f"federate{CHOOSE}"
        )
        return OneShot(None, (warning,), tuple(silent))
    bend = covariance @ hessian
    return _judged(float(gradient @ covariance @ gradient / 2 + np.trace(bend @ bend) / 4))


def _judged(distance: float | None) -> OneShot:
    """Return a distance, with a warning if it is above :data:`WORTH`."""
    if distance is None or distance <= WORTH:
        return OneShot(distance)
    warning = (
        f"in one shot the posterior is some {distance:.2g} nats from that of all records "
        f"together: federate, if sites can be asked again{CHOOSE}"
    )
    return OneShot(distance, (warning,))


def _of_noise(ledger: Ledger, sites: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Return the nats from the posterior of all records under their pooled noise variance.

    A site's factor times its noise variance gives the sums ``Xᵀ y`` and ``Xᵀ X`` of its records;
    the variance times the degrees of freedom gives its residual sum of squares. So the pooled fit
    is known, up to rounding of record counts. None if no residual degrees of freedom remain.
    """
    names = names_of(ledger.posterior)[""]
    sums = []
    for site in ledger.sites:
        factor: Any = ledger.factor(site)
        order = [names_of(factor).get("", names).index(name) for name in names]
        noise = sites[site]["noise_variance"]
        square = noise * factor.precision[np.ix_(order, order)]
        sums.append((noise * sites[site]["spare"], noise * factor.precision_mean[order], square))
    left = math.fsum(own[0] for own in sums)
    linear, square = (np.sum([own[k] for own in sums], axis=0) for k in (1, 2))
    size = np.sqrt(np.maximum(np.diagonal(square), np.finfo(float).tiny))
    spare = sum(own["spare"] for own in sites.values())

    def least(linear: np.ndarray, square: np.ndarray) -> tuple[np.ndarray, int]:
        scaled = square / np.outer(size, size)
        rank = np.linalg.matrix_rank(scaled, hermitian=True)
        return np.linalg.lstsq(scaled, linear / size, rcond=1e-12)[0] / size, int(rank)

    best, rank = least(linear, square)
    for _, own, precision in sums:
        mean, used = least(own, precision)
        left += float((best - mean) @ precision @ (best - mean))
        spare += used
    if spare <= rank or left <= 0 or not all(own["spare"] for own in sites.values()):
        return None  # rounded counts may be zero at some site
    noise = left / (spare - rank)
    pooled = ledger.prior + type(ledger.prior)._of(
        precision_mean=linear / noise, precision=square / noise
    ).named(names)
    return float(ledger.posterior.kl(pooled))
