"""How far a run has come: what its next rounds would still change, and whether that is little.

Where gradients have no noise, rounds change a posterior by less and less, and the visits tell by
how much: lengths of the last round and of the one before it give the rate, and with it all that is
still to come. Where they are noisy, the sites are asked anew and their answers averaged.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import equinox as eqx
import jax

from posterity.errors import SiteError
from posterity.families import ExponentialFamily
from posterity.federation.driver import Federation
from posterity.federation.keys import site_key
from posterity.federation.messages import Failure, Improve, MeasureGradient
from posterity.federation.newton import applies, newton
from posterity.federation.state import State
from posterity.federation.visit import Agreement, Visit, distance
from posterity.inference.choice import coordinates
from posterity.inference.step import fisher_length
from posterity.status import Status

TOLERANCE = 1e-3
"""Nats that may be left to change in a posterior which is said to have converged."""
FIRST = 10
"""Rounds in which a posterior may move more and more while it finds its place."""
ROUNDING = 1e-12
"""Nats of a site's last change that rounding alone may make: no rate is to be had from less."""
SAMPLES = 64
"""Estimates averaged where gradients are noisy."""


class Standing(Protocol):
    """A run, as far as a status asks about it."""

    @property
    def federation(self) -> Federation:
        """The driver that asks sites."""
        ...

    @property
    def agreement(self) -> Agreement:
        """What all sites know."""
        ...

    @property
    def state(self) -> State:
        """Factors and their sum."""
        ...

    @property
    def posterior(self) -> ExponentialFamily:
        """The current posterior."""
        ...

    @property
    def key(self) -> jax.Array:
        """Where keys of sites come from."""
        ...

    @property
    def trace(self) -> tuple[Visit, ...]:
        """The visits so far."""
        ...

    @property
    def tolerance(self) -> float:
        """Nats that may be left."""
        ...

    @property
    def contributing(self) -> tuple[str, ...]:
        """Sites with records that were not forgotten."""
        ...

    @property
    def exact(self) -> bool:
        """Whether each factor depends on its own site's data alone."""
        ...

    @property
    def round(self) -> int:
        """Steps of a round."""
        ...


def status_of(run: Standing) -> Status:
    """What is known of a run, from its trace or, where gradients are noisy, from its sites.

    ``left`` estimates in nats by how much all rounds to come would still move the posterior (KL
    divergence), and where gradients are noisy an upper bound of what the next one would; the
    tolerance is that of the run, for each coordinate of the parameter where gradients are noisy.
    """
    visits, allowed = _last_two(run), _allowed(run)
    waiting = [s for s, held in visits.items() if not held]
    stuck = [s for s, held in visits.items() if held and held[0].outcome in ("failed", "refused")]
    error = sum(held[0].quadrature_error for held in visits.values() if held)
    left, growing = (math.inf, False) if waiting else _left(run, visits)
    reasons = (
        *_named("no visit yet to", waiting),
        *_named("no update of", stuck),
        *([f"sums over nodes may be off by {error:.2g} nats"] if error > allowed else []),
    )
    status = Status.of(left, allowed, reasons)
    return dataclasses.replace(status, state="diverged") if growing else status


def is_final(status: Status) -> bool:
    """Whether more rounds are of no use: they mend nothing but what is left."""
    return status.state != "not converged" or status.left <= status.tolerance


def _allowed(run: Standing) -> float:
    """The tolerance; for each coordinate where noise is what keeps a posterior from settling."""
    noisy = run.agreement.update.noisy
    return run.tolerance * (coordinates(run.state.prior) if noisy else 1)


def _left(run: Standing, visits: Mapping[str, list[Visit]]) -> tuple[float, bool]:
    """Nats that are left to change, and whether rounds change more and more."""
    update = run.agreement.update
    if not visits or run.exact:
        return 0.0, False
    if update.conjugate:  # a factor was shortened, to leave a distribution
        return _known(run, next_round), False
    now, before = _length(visits, 0), _length(visits, 1)
    late = run.state.step > FIRST * run.round
    growing = late and before is not None and now is not None and now > max(2 * before, 1)
    if update.trains:  # what the last round moved, the next one may
        return (math.inf if now is None else now**2 / 2), growing
    if update.noisy:
        upper = certify(run).upper
        return (upper if math.isfinite(upper) else math.inf), False
    if len(visits) == 1 and before is None:
        (alone,) = visits.values()
        length = alone[0].residual or 0.0  # nobody else moves what this site found
    elif now is None or before is None:
        return math.inf, False
    else:
        length = _to_come(now, before, len(visits))
    # A search that could get no further may have stopped before its end.
    residuals = [held[0].residual or 0.0 for held in visits.values()]
    stopped = sum(residual**2 for residual in residuals) * update.searches
    left = max(length**2, stopped) / 2
    # Turns may have changed little for other reasons: a token that had met nobody, a rate that
    # decays, a site that came first. So whoever is about to be believed is asked.
    if left <= run.tolerance:
        left = max(left, _known(run, next_round))
    if left <= run.tolerance and applies(run.federation, run.state):
        left = max(left, _known(run, lambda run: newton(run.federation, run.state).change))
    return left, growing


def next_round(run: Standing) -> float:
    """By how many nats a round in which all sites improve at once would move the posterior."""
    agreed, state = run.agreement, run.state
    if not agreed.update.searches:
        return certify(run).distance
    old, new = [], []
    for site in run.contributing:
        key, factor = site_key(run.key, site), state.factor(site)
        answer: Any = run.federation.ask(Improve(site, state.posterior, factor, 0, key))
        if not isinstance(answer, Failure):
            new.append(answer.factor)
            old.append(factor)
    after = state.exact_sum.changed(add=new, take=old).value
    return distance(state.posterior, after) if agreed.admits(after) else math.inf


def _known(run: Standing, measure: Callable[[Standing], float]) -> float:
    """What is measured; infinite where it is no number, or a site fails and is passed over."""
    try:
        measured = measure(run)
    except SiteError:
        if run.agreement.on_error == "raise":
            raise
        return math.inf
    return measured if math.isfinite(measured) else math.inf


def _to_come(now: float, before: float, sites: int) -> float:
    """The sum of a geometric series of lengths, of which the last two terms are known."""
    if now <= math.sqrt(2 * ROUNDING) * sites:
        return now
    rate = now / before if before > 0 else math.inf
    return now * rate / (1 - rate) if rate < 1 else math.inf


def _length(visits: Mapping[str, list[Visit]], turn: int) -> float | None:
    """An upper bound of the distance that a round moved the posterior, in sqrt(nats).

    The sum of the distances that its visits moved it (triangle inequality); None if some site had
    no such turn.
    """
    if any(len(held) <= turn for held in visits.values()):
        return None
    changes = (held[turn].change for held in visits.values())
    # Who failed did not move it, and is among the reasons.
    return math.fsum(math.sqrt(2 * change) for change in changes if change is not None)


def _last_two(run: Standing) -> dict[str, list[Visit]]:
    """The last turns of each site that contributes since one left, the latest first."""
    turns: dict[str, list[Visit]] = {site: [] for site in run.contributing}
    lacking = 2 * len(turns)
    for visit in reversed(run.trace):
        if visit.outcome == "forgotten" or not lacking:
            break
        held = turns.get(visit.site, [])
        if len(held) < 2 and visit.outcome != "relayed" and visit.site in turns:
            held.append(visit)
            lacking -= 1
    return turns


def _named(what: str, sites: list[str]) -> list[str]:
    more = f" and {len(sites) - 3} more" if len(sites) > 3 else ""
    return [f"{what} {', '.join(map(repr, sites[:3]))}{more}"] if sites else []


# --- certificates --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Certificate:
    """How far a posterior is from the fixed point of its own sites' free energy.

    ``residuals``: by site the length, in the Fisher metric, of ``∇_μ E_q[log likelihood_k]/α -
    η_k``, in sqrt(nats). ``distance``: half the squared length of their sum, the KL divergence in
    nats, to second order, that one undamped round would still move the posterior; what noise adds
    to it on average is taken off. ``error`` is its standard error, zero where there is no noise. A
    site whose gradient is not finite makes all NaN, and so does one that fails where the run passes
    over it.
    """

    residuals: dict[str, float]
    distance: float
    error: float = 0.0

    @property
    def upper(self) -> float:
        """What the distance hardly exceeds: two standard errors more."""
        return self.distance + 2 * self.error


def certify(run: Standing, *, samples: int = SAMPLES) -> Certificate:
    """Measure how far the run's posterior is from where its sites would leave it alone.

    Where gradients are noisy, ``samples`` estimates are averaged.

    Raises:
        SiteError: if a site fails, unless the run passes over such sites.
    """
    q, noise, residuals = run.posterior, 0.0, {}
    total: Any = q.zero()
    for site in run.contributing:
        factor, key = run.state.factor(site), site_key(run.key, site)
        answer: Any = run.federation.ask(MeasureGradient(site, q, factor, samples, key))
        direction = None if isinstance(answer, Failure) else answer.direction
        if direction is None:
            residuals[site] = noise = math.nan
            continue
        with jax.enable_x64(True):
            residuals[site] = float(_fisher_length(q, direction))
        total, noise = total + direction, noise + answer.variance
    with jax.enable_x64(True):
        squared = float(_fisher_length(q, total)) ** 2 + 0.0 * noise
    distance = max(squared - noise, 0.0) / 2
    error = math.sqrt(4 * 2 * distance * noise + 2 * noise**2) / 2
    return Certificate(residuals, distance if math.isfinite(squared) else math.nan, error)


@eqx.filter_jit
def _fisher_length(q: Any, step: Any) -> jax.Array:
    return fisher_length(q, step)
