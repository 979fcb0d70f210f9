"""The distance of a fusion in one shot from the posterior of all records together.

A fusion adds up the sites' Gaussian factors ``t``, each the best one for a likelihood ``L`` under
the site's own posterior. What is left there of ``log L - log t`` is, in leading order, a cubic
polynomial, whose third derivatives ``T`` (d, d, d) a site's file holds. Under the fused posterior,
whose mean is ``δ`` from the site's and whose covariance is larger by ``D``, that cubic has the
expected gradient ``T[δδ + D] / 2`` and Hessian ``T[δ]``. Their sums over sites are the step that a
federation would take next, and the length of that step is the distance.

Where each site estimated a dispersion of its own, its file also says by what its gradient and
curvature, and its profile likelihood, change with that, which adds to the step.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from posterity.artifact.recipe import ESTIMATE, Recipe
from posterity.artifact.sites import Dispersed, tensor, turned
from posterity.errors import CHOOSE
from posterity.families.names import names_of, some
from posterity.fitting.design import Design
from posterity.fitting.regressions import LEAST, data_of, model_of, profile
from posterity.ledger import Ledger
from posterity.models import MultinomialRegression, PredictorModel
from posterity.models.nodes import hermite

MOST = 20
"""Coefficients of which a file holds third derivatives: 1,540 numbers."""
WORTH = 0.1
"""Nats from the posterior of all records from which on a federation is worth its visits."""
BEYOND = 2.0
"""By how many times its own precision a site's curvature may change on the way to the fused mean:
farther off, its cubic says nothing of its likelihood."""
SKEWED = 0.7
"""The size of third derivatives, in a site's own deviations, from which on its file says nothing:
its curvature changes by as much within one of them."""
NODES, STEP, BEND = 32, 1e-3, 0.05
"""Gauss-Hermite nodes of a record's predictor, the step of a difference in its deviations or in the
log dispersion, and that of a second difference of the profile likelihood."""
FARTHEST = 1.5
"""The difference between the log dispersions of a site and of all records up to which one is told
from the other."""


def third_derivatives(
    recipe: Recipe, data: Design, posterior: Any, spread: float | None = None
) -> np.ndarray | None:
    """The expected third derivatives (d, d, d) of the log likelihood under a site's posterior.

    None of a diagonal Gaussian, which leaves out more than that, of more than :data:`MOST`
    coefficients, and where a site estimates its own noise (see :func:`_of_noise`).
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
    """``E[ℓ'(f)]`` and ``E[ℓ''(f)]`` of normal predictors (n,)."""
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
    """Return what a site's likelihood would be under another dispersion than that which it
    estimated.

    None where third derivatives are none, and where its profile likelihood has no maximum, as of
    counts that vary no more than Poisson's.
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
    """The expected distance of a fusion, in nats, warnings, and sites whose files say nothing.

    The distance is None where it is not known. Likelihoods of ``silent`` sites are far from
    Gaussian under their own posterior, as of one class only.
    """

    distance: float | None = None
    warnings: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


def expected_distance(ledger: Ledger, sites: Mapping[str, Mapping[str, Any]]) -> OneShot:
    """Nats from the posterior of all records that are to be expected, and warnings.

    They are not known where a site's file has no third derivatives, or its likelihood is so far
    from a Gaussian that these do not reach to the fused posterior. ``sites`` holds, by site and
    under ``third``, the numbers of :func:`~posterity.artifact.sites.listed`.
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
            f"the files of {some(beyond)} do not tell what their records say of the posterior of "
            "all: as of one class only, of a level or an interval without an event, or of few "
            "records; how far off the fusion is, is not known: federate, if sites can be asked "
            f"again{CHOOSE}"
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
    """Return what the gradient and Hessian at ``mean`` change by if all sites have one dispersion.

    It is the one that maximises the adjusted profile likelihood of all records, in which the
    coefficients are those of all sites. The precision of a site is taken to change exponentially
    with the log dispersion. None where a file does not say how, or dispersions are far apart.
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
    """A distance, and a warning of one that a federation is worth."""
    if distance is None or distance <= WORTH:
        return OneShot(distance)
    warning = (
        f"in one shot the posterior is some {distance:.2g} nats from that of all records "
        f"together: federate, if sites can be asked again{CHOOSE}"
    )
    return OneShot(distance, (warning,))


def _of_noise(ledger: Ledger, sites: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Nats from the posterior of all records under the noise variance that these leave.

    A site's factor times its own noise variance are the sums ``Xᵀ y`` and ``Xᵀ X`` of its records,
    and that variance times its degrees of freedom the residuals of its least squares; so those of
    all records are known, but for the rounding of their numbers; None where that leaves nothing.
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
        return None  # where numbers are rounded, to nothing at some site
    noise = left / (spare - rank)
    pooled = ledger.prior + type(ledger.prior)._of(
        precision_mean=linear / noise, precision=square / noise
    ).named(names)
    return float(ledger.posterior.kl(pooled))
