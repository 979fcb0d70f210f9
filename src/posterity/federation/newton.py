"""A joint Newton step on the mean of a diagonal Gaussian, where columns are collinear.

A diagonal Gaussian holds each coordinate in place while another one moves. Where columns are
collinear, as a constant is with a column far from zero, means must move together by far more than
any moves alone, so rounds change the posterior ever less and are still far from the optimum. How
the slopes of all sites change with the mean, a matrix of few rows, shows that and ends it.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.entries import Entry
from posterity.families import DiagonalGaussian
from posterity.federation.agreement import Agreement
from posterity.federation.driver import Federation
from posterity.federation.keys import first_key
from posterity.federation.messages import Measure, Part, Report
from posterity.federation.state import State
from posterity.inference.choice import FEW
from posterity.inference.step import HALVINGS


class Newton(NamedTuple):
    """Where Newton's method would take the mean, from all sites' free energy."""

    step: np.ndarray
    change: float
    """KL divergence, in nats, to where the posterior would be then; infinite if not known."""
    energy: float
    """Free energy, in nats, up to a constant."""


def applies(agreed: Agreement) -> bool:
    """Whether the posterior is diagonal, and sites can say how their slopes hang together."""
    q = agreed.prior
    few = q.gaussian and q.diagonal and 1 < q.own_size <= FEW
    return few and agreed.update.searches


def newton(federation: Federation, state: State) -> Newton:
    """The joint Newton step from the current posterior; a SiteError if a site fails."""
    q: Any = state.posterior
    prior: Any = state.prior
    answers: Any = _reports(federation, state, q, "curvature")
    return newton_of(prior, q, answers)


def newton_of(prior: DiagonalGaussian, q: DiagonalGaussian, reports: Sequence[Report]) -> Newton:
    """The joint Newton step of which these reports, each with its curvature, tell. Pure."""
    answers: Any = reports
    if not all(_is_whole(answer, q) for answer in answers):
        return Newton(np.full(q.own_size, np.nan), math.inf, math.inf)
    pull = prior.precision * (prior.mean - q.mean)
    slope: Any = sum((answer.slope for answer in answers), start=pull)
    curvature: Any = sum((answer.curvature for answer in answers), start=np.diag(prior.precision))
    step = _solved(curvature, slope)
    there: Any = sum((answer.fixed_point for answer in answers), start=prior)
    # In the mean by Newton's step; in the precision by what the sites would now say.
    ratio = there.precision / q.precision
    known = np.isfinite(step).all() and (ratio > 0).all()
    away = q.precision * step**2 + ratio - 1 - np.log(np.where(ratio > 0, ratio, 1.0))
    change = float(away.sum() / 2) if known else math.inf
    return Newton(step, change, _energy(prior, q, answers))


def stepped(federation: Federation, state: State) -> State | None:
    """The state after the Newton step, so far that the sites' free energy falls.

    Each site keeps its precision, and has the slope that is its own at the new mean. None if no
    step helps. A SiteError if a site fails.
    """
    proposed = newton(federation, state)
    q: Any = state.posterior
    for halving in range(HALVINGS if np.isfinite(proposed.step).all() else 0):
        mean = q.mean + proposed.step / 2**halving
        moved = type(q)(q.precision * mean, q.precision)
        answers: Any = _reports(federation, state, moved, "slope")
        if any(answer.slope is None for answer in answers):
            continue
        entries = dict(state.entries)
        for answer in answers:
            entry = entries[answer.site]
            precision = entry.factor.precision  # pyright: ignore
            factor = type(q)(answer.slope + precision * mean, precision)
            entries[answer.site] = Entry(entry.epoch, entry.sequence + 1, factor, False)
        after = state.with_entries(entries)
        if federation.agreement.admits(after.posterior):
            q: Any = after.posterior
            prior: Any = state.prior
            there = _reports(federation, after, q, "slope")
            if _energy(prior, q, there) < proposed.energy:
                return after
    return None


def _reports(federation: Federation, state: State, q: DiagonalGaussian, part: Part) -> list[Report]:
    """Of the sites that contribute; one that has not had its turn yet does not begin here."""
    agreed, asked = federation.agreement, []
    for site in agreed.sites:
        factor = state.factor(site)
        if site in agreed.silent or not np.any(factor.natural_parameters):
            continue
        version = {"epoch": state.epoch, "step": state.step}
        asked.append(Measure(site, q, factor, (part,), 1, first_key(), **version))
    federation.prepare(asked)
    reports: Any = [federation.demand(question) for question in asked]
    return reports


def _is_whole(report: Report, q: DiagonalGaussian) -> bool:
    """Whether it tells all that a Newton step needs, in finite numbers of the right shapes."""
    fixed: Any = report.fixed_point
    if not isinstance(fixed, type(q)):
        return False
    slope, size = (q.own_size,), (q.own_size, q.own_size)
    shapes = slope, slope, slope, size
    parts: Any = fixed.precision_mean, fixed.precision, report.slope, report.curvature
    alike = all(np.shape(part) == shape for part, shape in zip(parts, shapes, strict=True))
    # None has the shape of a number.
    return alike and all(np.isfinite(part).all() for part in parts)


def _energy(prior: DiagonalGaussian, q: DiagonalGaussian, reports: Sequence[Report]) -> float:
    values = [math.nan if report.value is None else report.value for report in reports]
    return float(q.kl(prior)) - sum(values)


def _solved(curvature: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Newton's step, about as far as it goes where curvature is negative or nil."""
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diagonal(curvature)), 1e-300))
    scaled = scale[:, None] * (curvature + curvature.T) / 2 * scale
    values, vectors = np.linalg.eigh(scaled)
    values = np.maximum(np.abs(values), 1e-15)
    return scale * (vectors @ ((vectors.T @ (scale * slope)) / values))
