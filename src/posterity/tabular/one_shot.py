"""Distance of a one-shot fusion from the posterior of all records together.

A fusion adds the sites' Gaussian factors ``t``, each the best approximation of a likelihood ``L``
under the site's own posterior. To leading order ``log L - log t`` is a cubic polynomial, whose
third derivatives ``T`` (d, d, d) a site's file holds. Under the fused posterior, whose mean differs
by ``δ`` from the site's and whose covariance is larger by ``D``, the cubic has the expected
gradient ``T[δδ + D] / 2`` and Hessian ``T[δ]``. Their sums over sites give the next step of a
federation, and the length of that step is the distance.

If each site estimated its own dispersion, its file also holds how its gradient, curvature and
profile likelihood change with the dispersion, which adds to the step.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from posterity.errors import CHOOSE
from posterity.families.names import names_of, some
from posterity.ledger import Ledger
from posterity.models import MultinomialRegression, PredictorModel
from posterity.models.nodes import hermite
from posterity.tabular.design import Design
from posterity.tabular.recipe import ESTIMATE, Recipe
from posterity.tabular.regressions import LEAST, data_of, model_of, profile
from posterity.tabular.sites import Dispersed, tensor, turned

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
NODES, STEP, BEND = 32, 1e-3, 0.05
"""Gauss-Hermite nodes of a record's predictor; step of a difference, in its deviations or in the
log dispersion; and step of a second difference of the profile likelihood."""
FARTHEST = 1.5
"""Largest difference between the log dispersions of a site and of all records for which one is
derived from the other."""


def third_derivatives(
    recipe: Recipe, data: Design, posterior: Any, spread: float | None = None
) -> np.ndarray | None:
    """Return expected third derivatives (d, d, d) of the log likelihood under a site's posterior.

    None for a diagonal Gaussian, for more than :data:`MOST` coefficients, and for a site that
    estimates its own noise (see :func:`_of_noise`).
    """
    size = posterior.own_size
    if posterior.diagonal or size > MOST or recipe.noise_variance == ESTIMATE:
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
    size, third = blocks[0].shape[1], np.zeros(3 * (x.shape[1],))
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


def by_dispersion(
    recipe: Recipe, data: Design, posterior: Any, dispersion: float
) -> Dispersed | None:
    """Return how a site's likelihood changes with its estimated dispersion.

    None for a diagonal Gaussian or too many coefficients, and if the profile likelihood has no
    maximum, as for counts without overdispersion.
    """
    if posterior.diagonal or posterior.own_size > MOST or dispersion < LEAST:
        return None
    log, value = math.log(dispersion), profile(recipe, [data])
    high, top, low = (value(log + step) for step in (BEND, 0.0, -BEND))
    bend = (2 * top - high - low) / BEND**2
    (x, y), (mean, variance) = data_of(recipe, data), posterior.predictor(data.x)
    models = (model_of(recipe, dispersion * math.exp(step)) for step in (STEP, -STEP))
    ends = [_slopes(model, mean, variance, y) for model in models]
    slope, curvature = ((one - other) / (2 * STEP) for one, other in zip(*ends, strict=True))
    return Dispersed(bend, slope @ x, -(x.T * curvature) @ x) if bend > 0 else None


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
    known = {*("third", "spare", "dispersed")}.intersection(*facts)
    if not known or not ledger.independent or not q.gaussian or q.diagonal:
        return OneShot()
    if "spare" in known:
        return _judged(_of_noise(ledger, sites))
    order = np.argsort(names_of(q)[""])
    sort = lambda law: (law.mean[order], law.covariance[np.ix_(order, order)])
    (mean, covariance), locals_ = (
        sort(q),
        [sort(ledger.prior + ledger.factor(site)) for site in ledger.sites],
    )
    gradient, hessian = np.zeros(len(order)), np.zeros(covariance.shape)
    beyond, silent = [], []
    for site, own, (center, spread) in zip(ledger.sites, facts, locals_, strict=True):
        third = tensor(own["third"], len(order))
        if third is None:
            return OneShot()
        away, root = mean - center, np.linalg.cholesky(spread)
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
    if "dispersed" in known or len({own.get("dispersion") for own in facts}) > 1:
        changes = _under_one_dispersion(ledger, facts, mean, order)
        if changes is None:
            return OneShot()
        gradient, hessian = gradient + changes[0], hessian + changes[1]
    bend = covariance @ hessian
    return _judged(float(gradient @ covariance @ gradient / 2 + np.trace(bend @ bend) / 4))


def _under_one_dispersion(
    ledger: Ledger, facts: Sequence[Mapping[str, Any]], mean: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the changes of gradient and Hessian at ``mean`` if all sites have one dispersion.

    The dispersion maximises the adjusted profile likelihood of all records, with coefficients that
    all sites share. A site's precision is assumed to change exponentially with the log dispersion.
    None if a file lacks the derivatives, or dispersions are far apart.
    """
    every = [Dispersed.of(own.get("dispersed", ()), len(order)) for own in facts]
    logs = np.array([math.log(own["dispersion"]) for own in facts])
    factors: list[Any] = [ledger.factor(site) for site in ledger.sites]
    sites = []
    for own, factor in zip(every, factors, strict=True):
        if own is None:
            return None
        precision, linear = factor.precision[np.ix_(order, order)], factor.precision_mean[order]
        values, vectors = np.linalg.eigh(precision)
        seen = values > 1e-9 * values[-1]
        root = vectors[:, seen] * np.sqrt(values[seen])
        inverse = vectors[:, seen] / np.sqrt(values[seen])
        rates, turn = np.linalg.eigh(inverse.T @ own.precision @ inverse)
        sites.append((own, root @ turn, rates, inverse @ inverse.T @ linear))

    def at(log: float) -> list[np.ndarray]:
        return [
            (root * np.exp(rates * (log - own))) @ root.T
            for (_, root, rates, _), own in zip(sites, logs, strict=True)
        ]

    def loss(log: float) -> float:
        precisions = at(log)
        total = np.sum(precisions, axis=0)
        tops = [top for *_, top in sites]
        linear = np.sum([p @ top for p, top in zip(precisions, tops, strict=True)], axis=0)
        best = np.linalg.lstsq(total, linear, rcond=None)[0]
        value = np.linalg.slogdet(total + 1e-12 * np.diag(np.diagonal(total)))[1] / 2
        for (own, _, rates, top), precision, start in zip(sites, precisions, logs, strict=True):
            away, step = best - top, log - start
            value += own.bend * step**2 / 2 + away @ precision @ away / 2 - rates.sum() * step / 2
        return float(value)

    bounds = (logs.min() - FARTHEST, logs.max() + FARTHEST)
    log: Any = minimize_scalar(loss, bounds=bounds, method="bounded").x
    if max(abs(log - logs)) > FARTHEST:
        return None
    gradient, hessian = np.zeros(len(order)), np.zeros(2 * (len(order),))
    for (own, root, _, _), precision, start, site in zip(
        sites, at(log), logs, ledger.sites, strict=True
    ):
        alone: Any = ledger.prior + ledger.factor(site)
        change = precision - root @ root.T
        gradient += own.slope * (log - start) - change @ (mean - alone.mean[order])
        hessian -= change
    return gradient, hessian


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
    names, sums = names_of(ledger.posterior)[""], []
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
