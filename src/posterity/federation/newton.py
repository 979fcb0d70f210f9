"""A joint Newton step on the mean of a diagonal Gaussian, where columns are collinear.

A diagonal Gaussian holds each coordinate in place while another one moves. Where columns are
collinear, as a constant is with a column far from zero, means must move together by far more than
any moves alone, so rounds change the posterior ever less and are still far from the optimum. How
the slopes of all sites change with the mean, a matrix of few rows, shows that and ends it.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from posterity.entries import Entry
from posterity.federation.driver import Federation
from posterity.federation.messages import Curvature, MeasureCurvature
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


def applies(federation: Federation, state: State) -> bool:
    """Whether the posterior is diagonal, and sites can say how their slopes hang together."""
    q = state.prior
    few = q.gaussian and q.diagonal and 1 < q.own_size <= FEW
    return few and federation.agreement.update.searches


def newton(federation: Federation, state: State) -> Newton:
    """The joint Newton step from the current posterior; a SiteError if a site fails."""
    q: Any = state.posterior
    prior: Any = state.prior
    answers: Any = _answers(federation, state, q, curvature=True)
    if answers is None:
        return Newton(np.full(q.own_size, np.nan), math.inf, math.inf)
    pull = prior.precision * (prior.mean - q.mean)
    slope: Any = sum((answer.slope for answer in answers), start=pull)
    curvature: Any = sum((answer.curvature for answer in answers), start=np.diag(prior.precision))
    step = _solved(curvature, slope)
    there: Any = sum((answer.factor for answer in answers), start=prior)
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
        answers = _answers(federation, state, moved, curvature=False)
        if answers is None:
            continue
        entries = dict(state.entries)
        for answer in answers:
            held = entries[answer.site]
            precision = held.factor.precision  # pyright: ignore
            factor = type(q)(answer.slope + precision * mean, precision)
            entries[answer.site] = Entry(held.epoch, held.sequence + 1, factor, False)
        after = state.with_entries(entries)
        if federation.agreement.admits(after.posterior):
            there = _answers(federation, after, after.posterior, curvature=False)
            energy = math.inf if there is None else _energy(state.prior, after.posterior, there)
            if energy < proposed.energy:
                return after
    return None


def _answers(
    federation: Federation, state: State, q: Any, *, curvature: bool
) -> list[Curvature] | None:
    """Of the sites that contribute; None if one of the answers is not finite."""
    silent = federation.agreement.silent
    held = lambda site: np.any(state.factor(site).natural_parameters)
    # A site that has not had its turn yet does not begin here.
    sites = [s for s in federation.agreement.sites if s not in silent and held(s)]
    answers: Any = [federation.demand(MeasureCurvature(site, q, curvature)) for site in sites]
    return None if any(answer.slope is None for answer in answers) else answers


def _energy(prior: Any, q: Any, answers: list[Curvature]) -> float:
    return float(q.kl(prior)) - sum(answer.value for answer in answers)  # pyright: ignore


def _solved(curvature: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Newton's step, about as far as it goes where curvature is negative or nil."""
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diagonal(curvature)), 1e-300))
    scaled = scale[:, None] * (curvature + curvature.T) / 2 * scale
    values, vectors = np.linalg.eigh(scaled)
    values = np.maximum(np.abs(values), 1e-15)
    return scale * (vectors @ ((vectors.T @ (scale * slope)) / values))
