"""Quasi-Newton steps of a Gaussian posterior on the free energy of all sites.

Where a likelihood has a curved ridge, as that of a product of two parameters, each visit follows
the ridge for a small part of a deviation: hundreds of rounds change the posterior little while the
optimum is far. BFGS (nocedal2006, algorithm 6.1) learns the curvature along the ridge.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy

from posterity.entries import Entry
from posterity.errors import PosterityError
from posterity.federation.agreement import Agreement
from posterity.federation.driver import Federation
from posterity.federation.messages import Part, Report
from posterity.federation.site import canonical
from posterity.federation.state import State, contributing, distance, measures
from posterity.inference.joint import precision_matrix

MOST = 12
"""Largest number of parameters: 90 coordinates of mean and covariance."""
STEPS = 200
"""Largest number of steps."""
SLOPE = 1e-6
"""Length of the gradient, in sqrt(nats), at which the steps end."""


def asked(federation: Federation, state: State, sites: Sequence[str], *parts: Part) -> list[Report]:
    """Return the sites' reports with these parts on the posterior of a state."""
    federation.prepare(questions := measures(state, sites, parts))
    answers: Any = [federation.demand(question) for question in questions]
    return answers


def started_at(federation: Federation, state: State, start: Any) -> State:
    """Return a state with this posterior and equal factors of all contributing sites."""
    members = contributing(federation.agreement, state)
    share = canonical((start - _constant(state, members)) / len(members))
    return _with_factors(state, dict.fromkeys(members, share))


def descends(agreed: Agreement) -> bool:
    """Return whether `quasi_newton` applies: to one Gaussian of few parameters, if values and
    gradients are noiseless.
    """
    q, update = agreed.prior, agreed.update
    one = q.gaussian and len(list(q.parts())) == 1 and q.batch_shape == ()
    plain = one and 1 < q.event_size <= MOST
    exact = update.conjugate or update.noisy or update.trains or update.pools
    return plain and not exact and not agreed.model.joint and agreed.line_search is not None


@dataclasses.dataclass(frozen=True)
class Descended:
    """The state after BFGS steps. ``left`` is the KL divergence in nats by which one more step with
    the curvature that they have learned would move the posterior.
    """

    state: State
    left: float


def quasi_newton(federation: Federation, state: State) -> Descended | None:
    """Return the end of BFGS steps in mean and covariance from a state; None if they do not lower
    the free energy, or do not apply. Each factor is then the gradient of its site there.

    Coordinates are ``(u, L)`` of the posterior ``N(m + R u, R L (R L)ᵀ)``, with ``m`` and
    ``R Rᵀ`` the mean and covariance at the start, and logarithms of the diagonal of the lower
    triangular ``L``, which is diagonal where the covariance is; so units do not matter.
    """
    if not descends(federation.agreement):
        return None
    q: Any = state.posterior
    size, diagonal = q.event_size, np.diag_indices(q.event_size)
    root = np.linalg.cholesky(np.linalg.inv(precision_matrix(q)))
    lower = diagonal if q.diagonal else np.tril_indices(size)
    members = contributing(federation.agreement, state)

    def moved(coordinates: np.ndarray) -> tuple[State, np.ndarray]:
        triangle = np.zeros((size, size))
        triangle[lower] = coordinates[size:]
        triangle[diagonal] = np.exp(triangle[diagonal])
        scale = root @ triangle
        mean = np.asarray(q.mean) + root @ coordinates[:size]
        spread = np.diag(scale) ** 2 if q.diagonal else scale @ scale.T
        return started_at(federation, state, q.with_moments(mean, spread)), triangle

    def energy(coordinates: np.ndarray) -> tuple[float, np.ndarray]:
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                at, triangle = moved(coordinates)
                reports = asked(federation, at, members, "value", "gradient")
        except (PosterityError, np.linalg.LinAlgError):  # a site cannot compute so far away
            return math.inf, np.zeros_like(coordinates)
        there: Any = at.posterior
        values = [math.nan if each.value is None else each.value for each in reports]
        directions: list[Any] = [each.direction for each in reports]
        if not np.isfinite(values).all() or any(each is None for each in directions):
            return math.inf, np.zeros_like(coordinates)
        uphill: Any = -sum(directions[1:], start=directions[0])  # in the mean parameters
        slope = uphill.precision_mean - uphill.times_precision(there.mean)
        by_triangle = -root.T @ precision_matrix(uphill) @ root @ triangle
        by_triangle[diagonal] *= triangle[diagonal]
        gradient = np.concatenate([root.T @ slope, by_triangle[lower]])
        return float(there.kl(state.prior)) - math.fsum(values), gradient

    begin = np.zeros(size + len(lower[0]))
    before, _ = energy(begin)
    if not math.isfinite(before):
        return None
    options = {"gtol": SLOPE, "maxiter": STEPS}
    with np.errstate(all="ignore"):  # line searches meet infinite values
        end = scipy.optimize.minimize(energy, begin, jac=True, method="BFGS", options=options)
    if not end.fun < before:
        return None
    try:
        at, _ = moved(end.x)
        after, _ = moved(end.x - end.hess_inv @ end.jac)
        rested = _with_gradients(federation, at, members)
    except (PosterityError, np.linalg.LinAlgError):
        return None
    return rested and Descended(rested, distance(at.posterior, after.posterior))


def _with_gradients(federation: Federation, state: State, members: Sequence[str]) -> State | None:
    """Return the state with the gradients of the sites as factors, and what is missing to the same
    posterior in equal parts.
    """
    factors: dict[str, Any] = {}
    for each in asked(federation, state, members, "gradient"):
        if each.direction is None:
            return None
        factors[each.site] = state.factor(each.site) + each.direction
    there: Any = sum(factors.values(), start=_constant(state, members))
    missing = (state.posterior - there) / len(members)
    return _with_factors(state, {site: canonical(own + missing) for site, own in factors.items()})


def _constant(state: State, members: Sequence[str]) -> Any:
    """Return the prior times the factors of sites that do not take part."""
    others: Any = [state.factor(site) for site in set(state.entries) - set(members)]
    return sum(others, start=state.prior)


def _with_factors(state: State, factors: dict[str, Any]) -> State:
    entries = dict(state.entries)
    for site, factor in factors.items():
        before = entries.get(site, Entry(0, 0, factor))
        entries[site] = Entry(before.epoch, before.sequence + 1, factor, False)
    return state.with_entries(entries)
