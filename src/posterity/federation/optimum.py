"""How far the optimum of all sites together is: quasi-Newton steps on their free energy.

Sites answer with the value and the natural gradient of their log likelihood. In natural parameters
the natural gradient is a Newton step wherever log likelihoods are conjugate to the family, so it is
the first guess, and the changes of gradients along the steps correct it (nocedal2006, chapter 7, in
the pairing of natural with mean parameters). Families with independent means also report the
curvature in all means, by which columns that hang together move at once.
"""

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.search import Point, Rule, Search
from posterity.errors import PosterityError
from posterity.federation.driver import Federation
from posterity.federation.factors import canonical
from posterity.federation.messages import Part, Report
from posterity.federation.newton import Newton, applies, newton_of
from posterity.federation.state import State, contributing, distance, measures, revised
from posterity.inference.descent import FAR, LEVELS, NARROWER

TINY = 1e-300
"""Length of a direction from which it is not zero."""
ROUNDING = 1e-14
"""Rounding error of a free energy, relative to the sum of its parts."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """What a measurement may cost, and what it can tell."""

    most: float = 200
    """Most questions to each site."""
    budget: float = math.inf
    """Most evaluations by a site, on average."""
    flattest: float = 1e-4
    """Least curvature of the free energy that is told, beside that of a quadratic log likelihood: a
    ridge on which a round goes a ten-thousandth of the way."""
    share: float = 1e-2
    """Largest share of the distance from the start that may be left where the steps end early."""
    fall: float = 1.0
    """Decrease of the free energy, in nats, with which a step is taken whatever it promised."""
    shorter: float = 0.1
    """Share of a step below which what earlier steps tell of the curvature is forgotten."""
    shortest: float = 1e-6
    """Share of a step at which the steps end."""
    least: float = 0.1
    """Least share of a step that was too long to which a secant shortens it."""
    memory: int = 20
    """Number of steps whose changes of gradients are kept."""


EFFORT = Effort()


@dataclasses.dataclass(frozen=True)
class Descended:
    """The end of quasi-Newton steps from a state.

    ``left`` is the KL divergence, in nats, of the optimum from the state in which they began, and
    infinite if it is not known; ``bound`` is it if the free energy is as flat at their end as can
    be told. ``rest`` is what is left of the free energy at their end, in nats,
    and ``settled`` whether they ended, and that is within the tolerance.
    ``error`` is the displacement by sums over nodes, in nats. ``energy`` is the free energy there,
    NaN if it has no values. ``asked`` counts questions to each site, and ``evaluations`` those by a
    site, on average.
    """

    state: State
    left: float
    bound: float
    rest: float
    settled: bool
    error: float
    energy: float
    asked: int
    evaluations: float


class _Pair(NamedTuple):
    """A step in natural and in mean parameters, and the change of the natural gradient along it."""

    natural: np.ndarray
    mean: np.ndarray
    change: np.ndarray

    @property
    def along(self) -> float:
        """Twice the gain along the step, if it was a quadratic function's; negative on a hill."""
        return float(self.mean @ self.change)


class _Place(NamedTuple):
    """A state, the remaining natural gradient of each site and their sum, and Newton's step if the
    sites report curvatures.
    """

    state: State
    each: Mapping[str, Any]
    gradient: Any
    newton: Newton | None
    error: float
    energy: float


class Descent:
    """Quasi-Newton steps on the free energy of all sites of a federation."""

    def __init__(
        self,
        federation: Federation,
        state: State,
        effort: Effort = EFFORT,
        members: Sequence[str] | None = None,
        home: Any = None,
    ) -> None:
        self.federation = federation
        self.effort = effort
        self.begun = state
        self.members = contributing(federation.agreement, state) if members is None else members
        self.constant = without(state, self.members)
        self.home = home
        self.joint = applies(federation.agreement)
        self.rule = Rule(shortest=effort.shortest)
        self.looks = 0
        self.spent = 0.0
        self.plain = not self.joint
        self.pairs: list[_Pair] = []

    def end(self, tolerance: float) -> Descended:
        """Return the end of steps until less than ``tolerance`` nats are left even if the free
        energy is as flat as can be told. Raises SiteError if a site fails where they begin.
        """
        search = Search.of(self.first())
        while not (search.done or self.is_over(search.best, tolerance)):
            if self.looks >= self.effort.most or self.spent >= self.effort.budget:
                return self.ended(search.best, math.nan)
            search = self.further(search)
        return self.ended(search.best, tolerance)

    def further(self, search: Search) -> Search:
        """Return the search after one more evaluation; after a step it goes on as from a start."""
        best = search.best
        there = self.ahead(best, float(search.rate))
        after = search.tell(there, rule=self.rule)
        pair = _between(best.at, there.at) if there.finite else None
        if after.taken or best.value - there.value >= self.effort.fall:
            self.remember(pair)
            best = self.point(there.at)
            if not best.squared > 0:  # what earlier steps tell does not hold there
                self.pairs = []
                best = self.point(there.at)
            return Search.of(best)
        rate = min(after.rate, search.rate * self.secant(best.at, pair))
        if not self.plain:  # Newton's step is given up for good once another promises more
            self.plain = True
            other = self.point(best.at)
            if after.done or rate * best.squared < other.squared:
                return Search.of(other)
            self.plain = False
        elif self.pairs and (after.done or rate < self.effort.shorter):
            self.pairs = []
            return Search.of(self.point(best.at))
        return after._replace(rate=rate, done=after.done | (rate < self.effort.shortest))

    def first(self) -> Point:
        """Return the state where the steps begin. If that is so wide that log likelihoods have no
        useful expectations, it is the best of narrower members about the same mean.
        """
        best = self.point(self.place(self.begun))
        q: Any = self.begun.posterior
        for level in range(1, LEVELS + 1):
            if best.finite and best.squared <= FAR:
                break
            narrow = started_at(self.begun, q * NARROWER**level, self.members)
            there = self.tried(best.at, narrow)
            if best.finite and not there.value < best.value:
                break
            best = there if there.finite else best
        return best

    def is_over(self, best: Point, tolerance: float) -> bool:
        """Return whether the steps are at their end: less is left than can be told, or than sums
        over nodes are off, once a step was made; or they are back at their ``home``, if any.
        """
        left = best.squared / 2
        if self.home is not None and left <= tolerance:
            returned = distance(self.home, best.at.state.posterior) <= tolerance
        else:
            returned = False
        little = returned or left <= self.effort.flattest**2 * tolerance
        return not best.finite or little or (self.looks > 1 and left <= best.at.error)

    def place(self, state: State) -> _Place:
        """Ask all sites about a state."""
        self.looks += 1
        part: Part = "curvature" if self.joint else "noiseless"
        reports = asked(self.federation, state, self.members, part)
        self.spent += sum(report.evaluations for report in reports) / max(len(reports), 1)
        q: Any = state.posterior
        newton = newton_of(self.constant, q, reports) if self.joint else None
        each: dict[str, Any] = {report.site: report.direction for report in reports}
        error = math.fsum(report.quadrature_error for report in reports)
        if self.federation.agreement.update.pools:
            error = 0.0  # that of messages displaces the optimum, and is a caveat
        if any(own is None for own in each.values()):
            return _Place(state, {}, q.zero(), None, error, math.inf)
        gradient: Any = sum(each.values(), start=q.zero())
        energy = float(q.kl(state.prior))
        for report in reports:
            energy -= math.nan if report.value is None else report.value
        others: Any = self.constant - state.prior
        energy -= float(np.sum(others.natural_parameters * q.mean_parameters))
        return _Place(state, each, gradient, newton, error, energy)

    def point(self, place: _Place) -> Point:
        """Return a place with the step from there by what is known of the curvature."""
        q: Any = place.state.posterior
        whole, squared = self.step(q, place)
        length = float(q.squared_length(place.gradient)) / 2
        # Without values the length of the gradient is lowered.
        energy = length if math.isnan(place.energy) else place.energy
        finite = math.isfinite(energy) and math.isfinite(squared) and np.isfinite(whole).all()
        rounding = ROUNDING * (1 + abs(energy)) + place.error
        # A point is no better where sums over nodes may be off by more.
        energy = energy + place.error if finite else math.inf
        numbers = map(np.asarray, (energy, rounding, squared, finite))
        return Point(place, whole, *numbers)

    def step(self, q: Any, place: _Place) -> tuple[np.ndarray, float]:
        """Return the step in natural parameters, and twice the nats that it gains."""
        newton = None if self.plain else place.newton
        if newton is not None and newton.there is not None:
            return (newton.there - q).natural_parameters, newton.squared
        gradient = place.gradient.natural_parameters
        rest = gradient
        shares = []
        for pair in reversed(self.pairs):
            shares.append(float(pair.mean @ rest) / pair.along)
            rest = rest - shares[-1] * pair.change
        step = rest
        moved: list[tuple[float, _Pair]] = []
        for pair, share in zip(self.pairs, reversed(shares), strict=True):
            back = _inner(q, pair.change, rest)
            back += sum(part * float(other.mean @ pair.change) for part, other in moved)
            more = share - back / pair.along
            moved.append((more, pair))
            step = step + more * pair.natural
        squared = _inner(q, gradient, rest)
        squared += sum(part * float(other.mean @ gradient) for part, other in moved)
        return step, squared

    def ahead(self, best: Point, rate: float) -> Point:
        """Return the point at a share of a whole step; one that is not finite if there is none."""
        at: _Place = best.at
        q: Any = at.state.posterior
        share = (best.direction - at.gradient.natural_parameters) / len(self.members)
        extra = q.with_natural_parameters(share)
        factors = {
            site: at.state.factor(site) + (own + extra) * rate for site, own in at.each.items()
        }
        return self.tried(at, with_factors(at.state, factors))

    def tried(self, at: _Place, state: State) -> Point:
        """Return the point of a state; one that is not finite if it cannot be evaluated."""
        with contextlib.suppress(PosterityError, np.linalg.LinAlgError), np.errstate(all="ignore"):
            if self.federation.agreement.admits(state.posterior):
                return self.point(self.place(state))
        nothing = math.inf, 0.0, math.inf, False
        return Point(at, at.gradient.natural_parameters, *map(np.asarray, nothing))

    def secant(self, before: _Place, pair: _Pair | None) -> float:
        """Return the share of a step at which the free energy is least if it is quadratic."""
        if pair is None or not pair.along > 0:
            return 1.0
        share = float(pair.mean @ before.gradient.natural_parameters) / pair.along
        return max(share, self.effort.least)

    def remember(self, pair: _Pair | None) -> None:
        """Keep what a step tells of the curvature, if that is positive."""
        if pair is not None and pair.along > 0:
            self.pairs = [*self.pairs, pair][-self.effort.memory :]

    def ended(self, best: Point, tolerance: float) -> Descended:
        """Return the end, where each factor is the gradient of its site."""
        at: _Place = best.at
        if not best.finite:
            nothing = math.inf, math.inf, math.inf, False, at.error, at.energy
            return Descended(self.begun, *nothing, self.looks, self.spent)
        rest = float(best.squared) / 2
        missing = at.gradient / len(self.members)
        factors = {s: canonical(at.state.factor(s) + own - missing) for s, own in at.each.items()}
        state = with_factors(at.state, factors)
        begun: Any = self.begun.posterior
        far = distance(begun, at.state.posterior)
        settled = rest <= tolerance
        left = math.inf
        flat = (math.sqrt(far) + math.sqrt(rest) / self.effort.flattest) ** 2
        if settled or rest <= self.effort.share * far:
            q: Any = at.state.posterior
            after = q + q.with_natural_parameters(best.direction)
            near = self.federation.agreement.admits(after)
            left = distance(begun, after) if near else (math.sqrt(far) + math.sqrt(rest)) ** 2
            left = max(left, at.error)
        bound = max(left, flat, at.error)
        reached = left, bound, rest, settled, at.error, at.energy
        return Descended(state, *reached, self.looks, self.spent)


def asked(federation: Federation, state: State, sites: Sequence[str], *parts: Part) -> list[Report]:
    """Return the sites' reports with these parts on the posterior of a state."""
    federation.prepare(questions := measures(state, sites, parts))
    answers: Any = [federation.demand(question) for question in questions]
    return answers


def started_at(state: State, start: Any, members: Sequence[str]) -> State:
    """Return a state with this posterior and equal factors of these sites."""
    share = canonical((start - without(state, members)) / len(members))
    return with_factors(state, dict.fromkeys(members, share))


def without(state: State, members: Sequence[str]) -> Any:
    """Return the prior times the factors of all sites but these."""
    others: Any = [state.factor(site) for site in sorted(set(state.entries) - set(members))]
    return sum(others, start=state.prior)


def with_factors(state: State, factors: Mapping[str, Any]) -> State:
    """Return the state with these factors in place of the sites' own."""
    own = {site: revised(state, site, factor, False) for site, factor in factors.items()}
    return state.with_entries(state.entries | own)


def _between(before: _Place, after: _Place) -> _Pair:
    old: Any = before.state.posterior
    new: Any = after.state.posterior
    return _Pair(
        new.natural_parameters - old.natural_parameters,
        new.mean_parameters - old.mean_parameters,
        before.gradient.natural_parameters - after.gradient.natural_parameters,
    )


def _inner(q: Any, one: np.ndarray, other: np.ndarray) -> float:
    """Return the product of two steps in the Fisher metric at ``q``, by polarisation."""

    def squared(step: np.ndarray) -> float:
        return float(q.squared_length(q.with_natural_parameters(step)))

    sizes = [math.sqrt(squared(step)) for step in (one, other)]
    if not min(sizes) > TINY:
        return 0.0
    first = one / sizes[0]
    second = other / sizes[1]
    return math.prod(sizes) * (squared(first + second) - squared(first - second)) / 4
