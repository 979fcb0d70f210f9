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
EXHAUSTED, SOON = 1.0, (2, 3, 4, 5)
"""Half the squared lengths, in nats, of the gradients at the ends of a round's line searches from
which quasi-Newton steps follow at once, as the searches end far from their optima; and the numbers
of rounds after which this is looked at."""
LOOK = 25
"""Number of steps after which it is looked at whether the free energy to be reached is near."""
SLOPE = 1e-6
"""Length of the gradient, in sqrt(nats), at which the steps end."""
FLAT = 0.1
"""Curvature below which a posterior may be on a curved ridge."""
LOOKS, APART = 4, 0.03
"""Number of differences of gradients, and how far apart these are, in standard deviations. Kinks of
log likelihoods disturb smaller differences."""
NOISE, SMALL, TINY = 0.1, 1e-2, 1e-300
"""Length of the noise relative to a direction; the length of what is new in a product from which it
is more than error; the length of a direction from which it is not zero."""


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
    q = agreed.prior
    update = agreed.update
    one = q.gaussian and len(list(q.parts())) == 1 and q.batch_shape == ()
    plain = one and 1 < q.event_size <= MOST
    exact = update.conjugate or update.noisy or update.trains or update.pools
    return plain and not exact and not agreed.model.joint and agreed.line_search is not None


def exhausted(agreed: Agreement, stopped: float) -> bool:
    """Return whether `quasi_newton` should take over after a round whose searches ``stopped`` at
    gradients of this half squared length in all.
    """
    return stopped > EXHAUSTED and descends(agreed)


@dataclasses.dataclass(frozen=True)
class Descended:
    """The state after BFGS steps. ``left`` is the KL divergence in nats by which one more step with
    the curvature that they have learned would move the posterior; infinite, with the state before
    them, where float64 does not hold their end, or the posterior's covariance. ``hopeless`` is
    whether they ended early, as their gains were too small.
    """

    state: State
    left: float
    hopeless: bool = False


class Whitened:
    """Coordinates ``(u, L)`` of the posteriors ``N(m + R u, R L (R L)ᵀ)``, with ``m`` and ``R Rᵀ``
    the mean and covariance of a state's posterior, and logarithms of the diagonal of the lower
    triangular ``L``, which is diagonal where the covariance is; so units do not matter.
    """

    def __init__(self, federation: Federation, state: State) -> None:
        self.federation = federation
        self.state = state
        self.q: Any = state.posterior
        self.root = np.linalg.inv(np.linalg.cholesky(precision_matrix(self.q))).T
        self.diagonal = np.diag_indices(self.q.event_size)
        self.lower = self.diagonal if self.q.diagonal else np.tril_indices(self.q.event_size)
        self.members = contributing(federation.agreement, state)

    @property
    def origin(self) -> np.ndarray:
        """The coordinates of the state's posterior."""
        return np.zeros(self.q.event_size + len(self.lower[0]))

    def moved(self, coordinates: np.ndarray) -> tuple[State, np.ndarray]:
        """Return the state with this posterior, and its ``L``."""
        size = self.q.event_size
        triangle = np.zeros((size, size))
        triangle[self.lower] = coordinates[size:]
        triangle[self.diagonal] = np.exp(triangle[self.diagonal])
        scale = self.root @ triangle
        mean = np.asarray(self.q.mean) + self.root @ coordinates[:size]
        spread = np.diag(scale) ** 2 if self.q.diagonal else scale @ scale.T
        after = self.q.with_moments(mean, spread)
        return started_at(self.federation, self.state, after), triangle

    def coordinates(self, q: Any) -> np.ndarray:
        """Return the coordinates of a posterior."""
        spread = np.linalg.inv(self.root.T @ precision_matrix(q) @ self.root)
        triangle = np.linalg.cholesky((spread + spread.T) / 2)
        triangle[self.diagonal] = np.log(triangle[self.diagonal])
        moved = np.linalg.solve(self.root, q.mean - self.q.mean)
        return np.concatenate([moved, triangle[self.lower]])

    def energy(self, coordinates: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the free energy and its gradient; infinity where a site cannot compute them."""
        value, gradient = self._seen(coordinates, "value", "gradient")
        finite = math.isfinite(value) and np.isfinite(gradient).all()
        return (value, gradient) if finite else (math.inf, np.zeros_like(coordinates))

    def gradient(self, coordinates: np.ndarray) -> np.ndarray:
        """Return the gradient of the free energy; NaN where a site cannot compute it."""
        return self._seen(coordinates, "gradient")[1]

    def _seen(self, coordinates: np.ndarray, *parts: Part) -> tuple[float, np.ndarray]:
        unknown = math.nan, np.full_like(coordinates, math.nan)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                at, triangle = self.moved(coordinates)
                reports = asked(self.federation, at, self.members, *parts)
        except (PosterityError, np.linalg.LinAlgError):
            return unknown
        there: Any = at.posterior
        values = [math.nan if each.value is None else each.value for each in reports]
        directions: list[Any] = [each.direction for each in reports]
        if any(each is None for each in directions):
            return unknown
        uphill: Any = -sum(directions[1:], start=directions[0])  # in the mean parameters
        slope = uphill.precision_mean - uphill.times_precision(there.mean)
        by_triangle = -self.root.T @ precision_matrix(uphill) @ self.root @ triangle
        by_triangle[self.diagonal] *= triangle[self.diagonal]
        gradient = np.concatenate([self.root.T @ slope, by_triangle[self.lower]])
        return float(there.kl(self.state.prior)) - math.fsum(values), gradient


def flattest(federation: Federation, state: State, after: Any) -> tuple[float, float]:
    """Return the least curvature of the free energy in the coordinates `Whitened`, and half the
    squared length of the Newton step, in nats; NaN where a site cannot compute them.

    Curvatures are one to two if log likelihoods are quadratic, and near zero along a curved ridge.
    A few steps of Lanczos's algorithm find the least one. They begin with the change to ``after``,
    a posterior some visits later, as these damp what is steep, and with some noise.
    """
    try:
        about = Whitened(federation, state)
        slope = about.gradient(about.origin)
        way = about.coordinates(after)
    except np.linalg.LinAlgError:  # a covariance that float64 cannot invert
        return math.nan, math.nan
    size = len(slope)
    length = np.linalg.norm(way)
    noise = np.random.default_rng(size).normal(size=size)
    rest = way / max(length, TINY) + NOISE * noise / np.linalg.norm(noise)
    basis = np.zeros((0, size))
    products = np.zeros((0, size))
    for _ in range(min(LOOKS, size)):
        rest = rest / np.linalg.norm(rest)
        basis = np.vstack([basis, rest])
        products = np.vstack([products, about.gradient(APART * rest) - slope])
        rest = products[-1] / APART
        for _ in range(2):  # again, because of rounding
            rest = rest - basis.T @ (basis @ rest)
        if not np.linalg.norm(rest) > SMALL:
            break
    curvatures = basis @ products.T / APART
    if not np.isfinite(curvatures).all():
        return math.nan, math.nan
    least, ways = np.linalg.eigh((curvatures + curvatures.T) / 2)
    along = ways.T @ basis @ slope
    others = max(slope @ slope - along @ along, 0.0)
    return float(least[0]), float(np.sum(along**2 / least) + others) / 2


def quasi_newton(federation: Federation, state: State, reach: float = math.inf) -> Descended | None:
    """Return the end of BFGS steps in mean and covariance (`Whitened`) from a state; None if they
    do not lower the free energy, or do not apply. Each factor is then the gradient of its site
    there. They end early where gains like the last ones would not lead below ``reach`` (nats).
    """
    if not descends(federation.agreement):
        return None
    try:
        about = Whitened(federation, state)
    except np.linalg.LinAlgError:
        return Descended(state, math.inf)
    before, _ = about.energy(about.origin)
    if not math.isfinite(before):
        return None
    options = {"gtol": SLOPE, "maxiter": STEPS}
    energies = [before]
    hopeless = False

    def look(intermediate_result: Any) -> None:
        nonlocal hopeless
        energies.append(now := float(intermediate_result.fun))
        done = len(energies) - 1
        if done % LOOK == 0:
            gain = (energies[-1 - LOOK] - now) * (STEPS - done) / LOOK
            hopeless = now - gain > reach
            if hopeless:
                raise StopIteration

    with np.errstate(all="ignore"):  # line searches meet infinite values
        end = scipy.optimize.minimize(
            about.energy, about.origin, jac=True, method="BFGS", options=options, callback=look
        )
    if not end.fun < before:
        return None
    try:
        at, _ = about.moved(end.x)
        after, _ = about.moved(end.x - end.hess_inv @ end.jac)
        rested = _with_gradients(federation, at, about.members)
        if rested is None or not about.energy(about.coordinates(rested.posterior))[0] < before:
            return Descended(state, math.inf)  # the sum of large factors has lost its digits
    except (PosterityError, np.linalg.LinAlgError):
        return Descended(state, math.inf)
    return Descended(rested, distance(at.posterior, after.posterior), hopeless)


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
