"""How far a run has come: what its next round would still change, and whether that is little.

Where gradients have no noise, rounds change a posterior by less and less, and the visits tell by
how much: lengths of the last round and of the one before it give the rate, and with it all that is
still to come. Where they are noisy, the sites are asked anew and their answers averaged.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from posterity.errors import SiteError
from posterity.federation.certificate import certify
from posterity.federation.keys import site_key
from posterity.federation.settle import creeps, stiffness
from posterity.federation.visit import distance, failure_of

if TYPE_CHECKING:
    from posterity.federation.run import Run
    from posterity.federation.visit import Visit

TOLERANCE = 1e-3
"""Nats that may be left to change in a posterior which is said to have converged."""
FIRST = 10
"""Rounds in which a posterior may move more and more while it finds its place."""
SETTLED = 1e-12
"""Nats of a site's last change that rounding alone may make: no rate is to be had from less."""


@dataclasses.dataclass(frozen=True)
class Status:
    """Whether a run has converged, and what is left to change.

    ``change`` estimates in nats by how much all rounds to come would still move the posterior (KL
    divergence), and where gradients are noisy an upper bound of what the next one would; infinite
    where it is not known yet. ``tolerance`` is what the run allows, a
    coordinate of the parameter where gradients are noisy. ``"diverged"``: rounds move it by more
    and more. ``reasons`` say what, beside the change, keeps it from being called converged.
    """

    state: Literal["converged", "not converged", "diverged"]
    change: float
    tolerance: float
    reasons: tuple[str, ...] = ()

    @property
    def converged(self) -> bool:
        """Whether the posterior can be relied on."""
        return self.state == "converged"

    @property
    def final(self) -> bool:
        """Whether more rounds are of no use: they mend nothing but the change."""
        return self.state != "not converged" or self.change <= self.tolerance

    def __str__(self) -> str:
        left = "an unknown amount" if math.isinf(self.change) else f"{self.change:.2g} nats"
        why = "".join(f"; {reason}" for reason in self.reasons)
        return f"{self.state}: {left} left to change, {self.tolerance:.2g} allowed{why}"


def status_of(run: "Run") -> Status:
    """What is known of a run, from its history or, where gradients are noisy, from its sites."""
    visits, allowed = _last_two(run), _allowed(run)
    waiting = [s for s, held in visits.items() if not held]
    stuck = [s for s, held in visits.items() if held and held[0].outcome in ("failed", "refused")]
    doubt = sum(held[0].doubt for held in visits.values() if held)
    change, growing = (math.inf, False) if waiting else _change(run, visits)
    reasons = (
        *_named("no visit yet to", waiting),
        *_named("no update of", stuck),
        *([f"sums over nodes may be off by {doubt:.2g} nats"] if doubt > allowed else []),
    )
    settled = change <= allowed and not reasons
    state = "diverged" if growing else "converged" if settled else "not converged"
    return Status(state, change, allowed, reasons)


def _allowed(run: "Run") -> float:
    """The tolerance; for each coordinate where noise is what keeps a posterior from settling."""
    noisy = run.federation.update.noisy
    return run.tolerance * (run.state.prior.event_size if noisy else 1)


def _change(run: "Run", visits: Mapping[str, list["Visit"]]) -> tuple[float, bool]:
    """Nats that are left to change, and whether rounds change more and more."""
    if not visits or run.exact:
        return 0.0, False
    if run.federation.update.conjugate:  # a factor was shortened, to leave a distribution
        return _known(run, asked_anew), False
    now, before = _length(visits, 0), _length(visits, 1)
    late = run.state.step > FIRST * run.round
    growing = late and before is not None and now is not None and now > max(2 * before, 1)
    if run.federation.update.trains:  # what the last round moved, the next one may
        return (math.inf if now is None else now**2 / 2), growing
    if run.federation.update.noisy:
        upper = certify(run).upper
        return (upper if math.isfinite(upper) else math.inf), False
    if len(visits) == 1 and before is None:
        (alone,) = visits.values()
        left = alone[0].residual or 0.0  # nobody else moves what this site found
    elif now is None or before is None:
        return math.inf, False
    else:
        left = _to_come(now, before, len(visits))
    # A search that could get no further may have stopped before its end.
    residuals = [held[0].residual or 0.0 for held in visits.values()]
    stopped = sum(residual**2 for residual in residuals) * run.federation.update.searches
    change = max(left**2, stopped) / 2
    # Turns may have changed little for other reasons: a token that had met nobody, a rate that
    # decays, a site that came first. So whoever is about to be believed is asked.
    if change <= run.tolerance:
        change = max(change, _known(run, asked_anew))
    if change <= run.tolerance and creeps(run.federation, run.state):
        stiff = lambda run: stiffness(run.federation, run.state).change
        change = max(change, _known(run, stiff))
    return change, growing


def asked_anew(run: "Run") -> float:
    """By how many nats a round in which all sites improve at once would move the posterior."""
    federation, state = run.federation, run.state
    if not federation.update.searches:
        return certify(run).distance
    old, new = [], []
    for site in _contributing(run):
        factor = state.factor(site)
        try:
            problem, key = federation.site(site), site_key(run.key, site)
            new.append(problem.improve(state.posterior, factor, key=key).factor)
            old.append(factor)
        except Exception as error:
            if federation.on_error == "raise":
                raise failure_of(error, site) from error
    after = state.exact_sum.changed(add=new, take=old).value
    return distance(state.posterior, after) if federation.admits(after) else math.inf


def _known(run: "Run", measure: "Callable[[Run], float]") -> float:
    """What is measured; infinite where it is no number, or a site fails and is passed over."""
    try:
        found = measure(run)
    except SiteError:
        if run.federation.on_error == "raise":
            raise
        return math.inf
    return found if math.isfinite(found) else math.inf


def _to_come(now: float, before: float, sites: int) -> float:
    """The sum of a geometric series of lengths, of which the last two terms are known."""
    if now <= math.sqrt(2 * SETTLED) * sites:
        return now
    rate = now / before if before > 0 else math.inf
    return now * rate / (1 - rate) if rate < 1 else math.inf


def _length(visits: Mapping[str, list["Visit"]], turn: int) -> float | None:
    """Of a round, in sqrt(nats), from site to site: no shorter than as the crow flies.

    None if some site had no such turn.
    """
    if any(len(held) <= turn for held in visits.values()):
        return None
    changes = (held[turn].change for held in visits.values())
    # Who failed did not move it, and is among the reasons.
    return math.fsum(math.sqrt(2 * change) for change in changes if change is not None)


def _contributing(run: "Run") -> list[str]:
    return [site for site in run.sites if not run.federation.sites[site].silent]


def _last_two(run: "Run") -> dict[str, list["Visit"]]:
    """The last turns of each site that contributes since one left, the latest first."""
    found: dict[str, list[Visit]] = {site: [] for site in _contributing(run)}
    lacking = 2 * len(found)
    for visit in reversed(run.history):
        if visit.outcome == "forgotten" or not lacking:
            break
        held = found.get(visit.site, [])
        if len(held) < 2 and visit.outcome != "relayed" and visit.site in found:
            held.append(visit)
            lacking -= 1
    return found


def _named(what: str, sites: list[str]) -> list[str]:
    more = f" and {len(sites) - 3} more" if len(sites) > 3 else ""
    return [f"{what} {', '.join(map(repr, sites[:3]))}{more}"] if sites else []
