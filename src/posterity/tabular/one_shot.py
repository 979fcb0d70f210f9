"""Distance of a one-shot fusion from the posterior of all records together.

A fusion adds the sites' Gaussian factors ``t``, each the best approximation of a likelihood ``L``
under the site's own posterior. To leading order ``log L - log t`` is a cubic polynomial, whose
third derivatives ``T`` (d, d, d) a site's file holds. Under the fused posterior, whose mean differs
by ``δ`` from the site's and whose covariance is larger by ``D``, the cubic has the expected
gradient ``T[δδ + D] / 2`` and Hessian ``T[δ]``. Their sums over sites give the next step of a
federation, and the length of that step is the distance.

The distance is unknown if sites estimated dispersions of their own.
"""

import functools
import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.errors import CHOOSE
from posterity.families.names import in_order, names_of
from posterity.ledger import Ledger
from posterity.models import (
    LinearRegression,
    MultinomialRegression,
    PredictorModel,
    ProportionalOdds,
)
from posterity.models.nodes import hermite
from posterity.tabular.sites import in_words, tensor, turned

NOT_GAUSSIAN = (
    "are not nearly Gaussian: with one class only, a level or an interval without an event, or few "
    "records"
)
"""The end of warnings of likelihoods that are uninformative, or inaccurate at the fused mean."""


def third_of(
    model: Any,
    pair: tuple[np.ndarray, np.ndarray],
    posterior: Any,
    *,
    most: int = 20,
    step: float = 1e-3,
) -> np.ndarray | None:
    """Return expected third derivatives (d, d, d) of the log likelihood of inputs and targets under
    a posterior.

    They are differences of second ones by a ``step`` of the predictor, in its deviations. None for
    a diagonal Gaussian, and for more than ``most`` coefficients (a file holds 1,540 numbers of 20).

    For proportional odds it is their average under the posterior and under one of half its
    covariance, so that they hold on the way from a site's posterior to the fused one. Those under
    the former alone are mostly of gaps between thresholds near 0, which it has and the latter not.
    """
    size = posterior.own_size
    if posterior.diagonal or size > most:
        return None
    if isinstance(model, LinearRegression):
        return np.zeros((size, size, size))
    x, y = pair
    if isinstance(model, MultinomialRegression):
        return _of_classes(model, posterior, x, y, step)
    gaps = isinstance(getattr(model, "model", model), ProportionalOdds)
    laws = [posterior, posterior * 2] if gaps else [posterior]  # half of its covariance
    return np.mean([_of_predictors(model, law, x, y, step) for law in laws], axis=0)


def _of_predictors(model: PredictorModel, q: Any, x: np.ndarray, y: Any, step: float) -> np.ndarray:
    mean, variance = q.predictor(x)
    length = step * np.sqrt(variance) + np.finfo(float).tiny
    above, below = (_slopes(model, mean + own, variance, y)[1] for own in (length, -length))
    third = (above - below) / (2 * length)
    return np.stack([(x.T * (third * column)) @ x for column in x.T])


def _of_classes(
    model: MultinomialRegression, q: Any, x: np.ndarray, y: Any, step: float = 1e-3
) -> np.ndarray:
    mean, covariance = model.predictors(q, x)
    blocks = np.split(x, model.classes - 1, axis=1)
    size = blocks[0].shape[1]
    third = np.zeros(3 * (x.shape[1],))
    for a, along in enumerate(np.eye(model.classes - 1)):
        length = step * np.sqrt(covariance[:, a, a])[:, None] + np.finfo(float).tiny
        above, below = (
            model.expectations(mean + side * length * along, covariance, y)[2] for side in (1, -1)
        )
        bend = (below - above) / (2 * length[..., None])
        for (b, c), column in itertools.product(np.ndindex(bend.shape[1:]), range(size)):
            own = (blocks[b].T * (bend[:, b, c] * blocks[a][:, column])) @ blocks[c]
            places = (slice(one * size, (one + 1) * size) for one in (b, c))
            third[(a * size + column, *places)] = own
    return third


def _slopes(
    model: PredictorModel, mean: Any, variance: Any, y: Any, nodes: int = 32
) -> tuple[Any, Any]:
    """Return ``E[ℓ'(f)]`` and ``E[ℓ''(f)]`` of normal predictors (n,), by Gauss-Hermite nodes."""
    known = model.predictor_expectation(mean, variance, y)
    if known is not None:
        return known[1:]
    points, chances = hermite(nodes)
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


def expected_distance(
    ledger: Ledger,
    sites: Mapping[str, Mapping[str, Any]],
    *,
    worth: float = 0.1,
    beyond: float = 2.0,
    skewed: float = 0.7,
) -> OneShot:
    """Return the expected distance in nats from the posterior of all records, and warnings.

    It is unknown without sites, if a site's file has no third derivatives, or if its cubic
    approximation is not valid up to the fused posterior.

    Args:
        ledger: ledger of all sites.
        sites: by site, and under ``third``, the numbers of :func:`~posterity.tabular.sites.listed`.
        worth: distance above which a warning suggests a federation.
        beyond: largest change of a site's curvature, relative to its own precision, between its
            mean and the fused mean, up to which the cubic approximation is valid.
        skewed: size of third derivatives, in a site's own deviations, above which its file is not
            informative: its curvature changes by as much within one deviation.
    """
    q: Any = ledger.posterior
    facts = [sites.get(site, {}) for site in ledger.sites]
    known = {"third", "spare"}.intersection(*facts)
    several = len({own.get("dispersion") for own in facts}) > 1
    if not facts or not known or several or not ledger.independent or not q.gaussian or q.diagonal:
        return OneShot()
    if "spare" in known:
        return _judged(_of_noise(ledger, sites), worth)
    order = np.argsort(q.names)

    def sort(law):
        return (law.mean[order], law.covariance[np.ix_(order, order)])

    mean, covariance = sort(q)
    locals_ = [sort(ledger.prior + ledger.factor(site)) for site in ledger.sites]
    gradient = np.zeros(len(order))
    hessian = np.zeros(covariance.shape)
    far = []
    silent = []
    for site, own, (center, spread) in zip(ledger.sites, facts, locals_, strict=True):
        third = tensor(own["third"], len(order))
        if third is None:
            return OneShot()
        away = mean - center
        root = np.linalg.cholesky(spread)
        bend = third @ away
        if abs(np.linalg.eigvalsh(root.T @ bend @ root)).max() > beyond:
            far.append(site)
            if np.linalg.norm(turned(third, root)) > skewed:
                silent.append(site)
        gradient += (bend @ away + np.tensordot(third, covariance - spread, 2)) / 2
        hessian += bend
    if far:
        ignored = (
            f"; the fusion may all but ignore the records of {in_words(silent)}" if silent else ""
        )
        warning = (
            f"the distance of the fusion from the posterior of all records is unknown, since the "
            f"likelihoods of {in_words(far)} {NOT_GAUSSIAN}{ignored}. If the sites can take part "
            f"again, federate{CHOOSE}"
        )
        return OneShot(None, (warning,), tuple(silent))
    bend = covariance @ hessian
    distance = float(gradient @ covariance @ gradient / 2 + np.trace(bend @ bend) / 4)
    return _judged(distance, worth)


def silent_in(ledger: Ledger, sites: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the sites of a ledger whose files are not informative, also where sites differ."""
    prior: Any = ledger.prior
    if not prior.additive:  # sites differ
        factors: Any = {site: ledger.factor(site) for site in ledger.sites}
        own = {site: factor.coefficients for site, factor in factors.items()}
        ledger = Ledger(prior.coefficients).extend(own, independent=True)
    proper = bool(np.all(ledger.total.is_proper()))
    return expected_distance(ledger, sites).silent if proper else ()


def without_estimates(silent: Sequence[str]) -> list[str]:
    """Return a warning on the ``silent`` sites of a population, if there are any."""
    if not silent:
        return []
    return [
        f"the likelihoods of {in_words(silent)} {NOT_GAUSSIAN}: what these tell of the population "
        "and of spreads between sites may be far off, and no Q, p or I² is given"
    ]


def _judged(distance: float | None, worth: float) -> OneShot:
    """Return a distance, with a warning if it is above ``worth``."""
    if distance is None or distance <= worth:
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
    names = names_of(ledger.posterior)
    facts = [sites[site] for site in ledger.sites]
    noise = [own["noise_variance"] for own in facts]
    factors = [in_order(ledger.factor(s), names, s, "the ledger") for s in ledger.sites]
    sums: Any = [factor * own for factor, own in zip(factors, noise, strict=True)]
    total: Any = functools.reduce(operator.add, sums)
    size = np.sqrt(np.maximum(np.diagonal(total.precision), np.finfo(float).tiny))

    def least(law: Any) -> tuple[np.ndarray, int]:
        scaled = law.precision / np.outer(size, size)
        found = np.linalg.lstsq(scaled, law.precision_mean / size, rcond=1e-12)
        return found[0] / size, int(found[2])

    best, rank = least(total)
    left = math.fsum(own["spare"] * known for own, known in zip(facts, noise, strict=True))
    spare = sum(own["spare"] for own in facts) - rank
    for own in sums:
        mean, used = least(own)
        left += float((best - mean) @ own.precision @ (best - mean))
        spare += used
    if spare <= 0 or left <= 0 or not all(own["spare"] for own in facts):
        return None  # rounded counts may be zero at some site
    pooled = ledger.prior + total * (spare / left)
    return float(ledger.posterior.kl(pooled))
