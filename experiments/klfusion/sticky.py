"""Sticky hierarchical Dirichlet process hidden Markov models, by truncated variational inference.

Rows of transitions are ``Dirichlet(α β + κ e_k)``: they share the popularity ``β`` of states,
broken off a stick with concentration ``γ`` and truncated at ``K`` states, and stay where they are
more often than that (teh2006, fox2011). The posterior is mean-field over emissions, transitions and
paths, with a point estimate of the sticks of ``β`` (liang2007, johnson2014): all updates but that
of the sticks are conjugate, so each round raises the evidence lower bound.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy

from posterity.errors import ConvergenceWarning
from posterity.families import Dirichlet, ExponentialFamily, HiddenMarkov, Plate, at_rest
from posterity.ledger import Ledger
from posterity.models.hidden_markov import EMISSIONS, counted, padded
from posterity.models.records import Records

Array = np.ndarray
ROUNDS = 500  # rounds of a restart, at most
TOLERANCE = 1e-6  # the share of the bound by which a round must raise it to be followed by another


@dataclasses.dataclass(frozen=True)
class StickyFit:
    posterior: HiddenMarkov  # emissions, transitions and start of ``K`` states, the busiest first
    # the same of no data, with equal popularities, so that no state is told from another: what is
    # fused
    prior: HiddenMarkov
    popularity: Array  # ``β``, the expected share of moves that go to each state (K,)
    # the evidence lower bound, in nats, after each round of the best restart; it never falls
    trace: list[float] = dataclasses.field(repr=False)
    bounds: list[float] = dataclasses.field(repr=False)  # at the end of all restarts
    converged: bool  # whether the best restart did within the rounds it had

    def ledger(self, site: str) -> Ledger:
        """Prior and posterior as the ledger of one site."""
        return Ledger.of_site(site, prior=self.prior, posterior=self.posterior)


def fit_sticky(
    sequences: Sequence[Any],
    emission: ExponentialFamily,
    *,
    key: Any,
    states: int,
    concentration: float = 1.0,
    stay: float = 0.0,
    top: float = 1.0,
    restarts: int = 10,
    rounds: int = ROUNDS,
) -> StickyFit:
    """A posterior of at most ``states`` hidden states from the sequences (T, d) of one site.

    ``emission`` is the prior of one state's emissions, ``concentration`` the ``α`` of rows,
    ``stay`` is ``κ`` and ``top`` is ``γ``. Of restarts from k-means of different seeds the one of
    the highest bound is taken; a ConvergenceWarning if it has not converged.

    Source: fox2011; johnson2014.
    """
    EMISSIONS.check(emission=emission)
    options = {"states": states, "concentration": concentration, "stay": stay, "initial": 1.0}
    prior = HiddenMarkov.prior(at_rest(emission), **options)
    sticks = Sticks(float(concentration), float(stay), float(top))
    seeds = np.random.default_rng(np.asarray(jax.random.key_data(key))).spawn(restarts)
    problem = Problem(prior, sticks, Records.of(padded(sequences)))
    runs = [_ascend(problem, _start(problem, seed), rounds) for seed in seeds]
    best = max(runs, key=lambda run: run.trace[-1])
    if not best.converged:
        warnings.warn(
            f"the best of {restarts} restarts has not converged in {rounds} rounds. Give more",
            ConvergenceWarning,
            stacklevel=2,
        )
    posterior = prior + best.counts
    order = np.argsort(-posterior.occupancy(prior), kind="stable")
    posterior, bounds = posterior.relabel(np.argsort(order), states), [r.trace[-1] for r in runs]
    popularity = best.popularity[order]
    return StickyFit(posterior, prior, popularity, best.trace, bounds, best.converged)


@dataclasses.dataclass(frozen=True)
class Sticks:
    """How popularities enter the rows: ``α``, ``κ`` and ``γ``."""

    concentration: float
    stay: float
    top: float

    def rows(self, popularity: Array) -> Array:
        """Prior concentrations (K, K) of the rows."""
        return self.concentration * popularity + self.stay * np.eye(len(popularity))

    def log_prior(self, popularity: Array) -> float:
        """Log density of the sticks, in nats: each is ``Beta(1, γ)``, the last takes the rest."""
        if len(popularity) == 1:
            return 0.0
        left = 1 - np.cumsum(popularity)[:-1]
        before = np.concatenate([[1.0], left[:-1]])
        kept = np.log(np.maximum(left, 1e-300)) - np.log(np.maximum(before, 1e-300))
        return float(len(kept) * np.log(self.top) + (self.top - 1) * kept.sum())

    def improved(self, popularity: Array, counts: Array) -> Array:
        """Popularities of higher posterior density, rows summed out; the same if none is found."""
        if len(popularity) == 1:
            return popularity
        start, options = _logits(popularity), {"jac": True, "method": "L-BFGS-B"}
        inside = [(-30.0, 30.0)] * len(start)
        found = scipy.optimize.minimize(self._loss, start, (counts,), bounds=inside, **options)
        better = found.fun < self._loss(start, counts)[0]
        return _popularity(found.x) if better else popularity

    def _loss(self, logits: Array, counts: Array) -> tuple[float, Array]:
        """Minus the log density and its gradient in the sticks' logits."""
        popularity = _popularity(logits)
        rows = self.rows(popularity)
        gammaln, digamma = scipy.special.gammaln, scipy.special.digamma
        value = float((gammaln(rows + counts) - gammaln(rows)).sum())
        slope = self.concentration * (digamma(rows + counts) - digamma(rows)).sum(0)
        # β_k = v_k Π_{l<k} (1 - v_l), and dv = v (1 - v) dlogit.
        share = scipy.special.expit(logits)
        tail = np.cumsum((slope * popularity)[::-1])[::-1]
        gradient = (1 - share) * (slope * popularity)[:-1] - share * tail[1:]
        value += (self.top - 1) * float(-np.logaddexp(0.0, logits).sum())
        return -value, -(gradient - (self.top - 1) * share)


def _popularity(logits: Array) -> Array:
    """Sticks broken one after the other; the last takes what is left."""
    share = np.append(scipy.special.expit(logits), 1.0)
    left = np.concatenate([[1.0], np.cumprod(1 - share[:-1])])
    return np.maximum(share * left, 1e-12)


def _logits(popularity: Array) -> Array:
    left = np.cumsum(popularity[::-1])[::-1]
    share = np.clip(popularity[:-1] / left[:-1], 1e-12, 1 - 1e-12)
    return np.clip(scipy.special.logit(share), -30.0, 30.0)


class Problem(NamedTuple):
    """What one site fits: the exchangeable prior, how rows depend on popularities, and data."""

    prior: HiddenMarkov
    sticks: Sticks
    records: Records


class _Run(NamedTuple):
    counts: HiddenMarkov
    popularity: Array
    trace: list[float]
    converged: bool


def _ascend(problem: Problem, counts: Any, rounds: int) -> _Run:
    """Popularities, then parameters, then paths, in turns, until the bound stays."""
    sticks, states = problem.sticks, problem.prior.states
    popularity, trace = np.full(states, 1 / states), []
    for _ in range(rounds):
        moves = np.asarray(counts.transitions.members.concentration_minus_one)
        popularity = sticks.improved(popularity, moves)
        transitions = Plate(Dirichlet(sticks.rows(popularity) - 1))
        prior = HiddenMarkov(problem.prior.blocks, transitions=transitions)
        q = prior + counts
        with jax.enable_x64(True):
            value, counts = jax.device_get(counted(q, problem.records))
        counts = at_rest(counts)
        trace.append(float(value) - float(q.kl(prior)) + sticks.log_prior(popularity))
        if len(trace) > 1 and trace[-1] - trace[-2] <= TOLERANCE * abs(trace[-1]):
            return _Run(counts, popularity, trace, True)
    return _Run(counts, popularity, trace, False)


def _start(problem: Problem, rng: np.random.Generator) -> HiddenMarkov:
    """Counts if each step had the one state that k-means gives it, the heaviest first."""
    (x, lengths), states = problem.records.data, problem.prior.states
    flat = x[np.arange(x.shape[1]) < np.asarray(lengths)[:, None]]
    labels = _kmeans(flat, states, rng)
    rank = np.argsort(np.argsort(-np.bincount(labels, minlength=states), kind="stable"))
    labels = rank[labels]
    moves, starts = np.zeros((states, states)), np.zeros(states)
    for path in np.split(labels, np.cumsum(lengths)[:-1]):
        starts[path[0]] += 1
        np.add.at(moves, (path[:-1], path[1:]), 1.0)
    members: Any = problem.prior.emissions.members
    return HiddenMarkov(
        emissions=Plate(members.observed(flat, np.eye(states)[labels])),
        initial=Dirichlet(starts),
        transitions=Plate(Dirichlet(moves)),
    )


def _kmeans(x: Array, size: int, rng: np.random.Generator) -> Array:
    """Labels by Lloyd's iteration from spread-out centres (arthur2007); channels in one unit."""
    scale = x.std(0)
    x = (x - x.mean(0)) / np.where(scale > 0, scale, 1.0)
    centres = x[rng.integers(len(x))][None]
    for _ in range(size - 1):
        far = _squares(x, centres).min(1)
        total = far.sum()
        pick = rng.choice(len(x), p=far / total) if total > 0 else rng.integers(len(x))
        centres = np.vstack([centres, x[pick]])
    labels = _squares(x, centres).argmin(1)
    for _ in range(20):
        held = np.bincount(labels, minlength=size)
        sums = np.zeros_like(centres)
        np.add.at(sums, labels, x)
        centres = np.where(held[:, None] > 0, sums / np.maximum(held, 1)[:, None], centres)
        labels = _squares(x, centres).argmin(1)
    return labels


def _squares(x: Array, centres: Array) -> Array:
    return ((x**2).sum(1)[:, None] - 2 * x @ centres.T + (centres**2).sum(1)).clip(0.0)
