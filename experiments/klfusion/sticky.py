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

from posterity.arguments import COUNT, POSITIVE
from posterity.arrays.typing import Float, Int, KeyArray
from posterity.errors import ConvergenceWarning, StructureError
from posterity.families import (
    Dirichlet,
    ExponentialFamily,
    HiddenMarkov,
    Plate,
    at_rest,
)
from posterity.ledger import Ledger
from posterity.models.hidden_markov import check_emissions, counted, padded
from posterity.models.records import Records

Array = np.ndarray
ROUNDS = 500
"""Rounds of a restart, at most."""
TOLERANCE = 1e-6
"""The share of the bound by which a round must raise it to be followed by another."""


@dataclasses.dataclass(frozen=True)
class StickyFit:
    """What :func:`fit_sticky` found.

    Attributes:
        posterior: emissions, transitions and start of ``K`` states.
        prior: the same of no data, with equal popularities, so that no state is told from
            another: what is fused.
        popularity: ``β``, the expected share of moves that go to each state (K,).
        bound: the evidence lower bound of the best restart, in nats.
        trace: the bound after each of its rounds; it never falls.
        bounds: of all restarts.
        converged: whether the best restart did within the rounds it had.
    """

    posterior: HiddenMarkov
    prior: HiddenMarkov
    popularity: Float[Array, " k"]
    bound: float
    trace: list[float] = dataclasses.field(repr=False)
    bounds: list[float] = dataclasses.field(repr=False)
    converged: bool

    def ledger(self, site: str) -> Ledger:
        """Prior and posterior as the ledger of one site."""
        return Ledger.of_site(site, prior=self.prior, posterior=self.posterior)


def fit_sticky(
    sequences: Sequence[Any],
    emission: ExponentialFamily,
    *,
    key: KeyArray,
    states: int = 15,
    concentration: float | int = 1.0,
    stay: float | int = 0.0,
    top: float | int | None = 1.0,
    initial: float | int = 1.0,
    restarts: int = 10,
    rounds: int = ROUNDS,
    tolerance: float = TOLERANCE,
) -> StickyFit:
    """A posterior of hidden states from the sequences of one site.

    Args:
        sequences: of vectors (T, d) or symbols (T,); see :func:`posterity.models.padded`.
        emission: the prior of one state's emissions.
        key: of the starts.
        states: the truncation ``K``: states beyond what the data ask for stay empty.
        concentration: ``α`` of each row of transitions.
        stay: ``κ``, what staying has more.
        top: ``γ``, the concentration of the popularities; None for equal ones, a finite
            sticky hidden Markov model.
        initial: the concentration of the initial probabilities.
        restarts: starts from k-means of different seeds (random labels, of symbols); the one of
            the highest bound is taken.
        rounds: of a restart, at most.
        tolerance: the share of the bound that a round must gain, else it was the last.

    Warns:
        ConvergenceWarning: if the best restart has not converged.

    Raises:
        StructureError, ParameterError: for sequences that are none; see ``padded``.

    Source: fox2011; johnson2014.

    >>> from posterity.families import NormalWishart
    >>> rng = np.random.default_rng(0)
    >>> x = np.repeat([0.0, 9.0, 0.0], 30)[:, None] + rng.normal(size=(90, 1))
    >>> one = NormalWishart.from_standard(np.zeros(1), 0.1, np.eye(1), 3.0)
    >>> fit = fit_sticky([x], one, states=4, restarts=2, key=jax.random.key(0))
    >>> fit.posterior.occupancy(fit.prior).round().tolist()
    [60.0, 30.0, 0.0, 0.0]
    """
    COUNT.check(states=states, restarts=restarts, rounds=rounds)
    POSITIVE.check(concentration=concentration, initial=initial, tolerance=tolerance)
    POSITIVE.or_none().check(top=top)
    check_emissions(emission)
    x, lengths = padded(sequences)
    _check_fits(x, emission)
    prior = HiddenMarkov.prior(
        at_rest(emission),
        states=states,
        concentration=concentration,
        stay=stay,
        initial=initial,
    )
    sticks = Sticks(float(concentration), float(stay), None if top is None else float(top))
    seeds = np.random.default_rng(np.asarray(jax.random.key_data(key))).spawn(restarts)
    problem = Problem(prior, sticks, Records.of((x, lengths)))
    runs = [_ascend(problem, _start(problem, seed), rounds, tolerance) for seed in seeds]
    best = max(runs, key=lambda run: run.trace[-1])
    if not best.converged:
        rises = [
            f": the last one raised the bound by {rise:.2g} nats" for rise in np.diff(best.trace)
        ]
        warnings.warn(
            f"the best of {restarts} restarts has not converged in {rounds} rounds"
            f"{rises[-1] if rises else ''}. Give more rounds",
            ConvergenceWarning,
            stacklevel=2,
        )
    posterior = prior + best.counts
    order = np.argsort(-posterior.occupancy(prior), kind="stable")
    return StickyFit(
        posterior=posterior.relabel(np.argsort(order), states),
        prior=prior,
        popularity=best.popularity[order],
        bound=best.trace[-1],
        trace=best.trace,
        bounds=[run.trace[-1] for run in runs],
        converged=best.converged,
    )


def _check_fits(x: Array, emission: ExponentialFamily) -> None:
    wanted = 2 if emission.emits_symbols else 3
    size = emission.own_size
    fits = x.ndim == wanted and (x.shape[2] == size if wanted == 3 else x.max() < size)
    if not fits:
        raise StructureError(
            found=f"sequences of {'symbols' if x.ndim == 2 else f'{x.shape[2]} channels'} for "
            f"{emission!r}",
            expected=f"symbols below {size}" if wanted == 2 else f"vectors (T, {size})",
            fix="Give the prior of one state's emissions the dimensions of the data.",
        )


# --- popularities --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sticks:
    """How popularities enter the rows: ``α``, ``κ`` and ``γ``, None where they are all equal."""

    concentration: float
    stay: float
    top: float | None

    def rows(self, popularity: Float[Array, " k"]) -> Float[Array, "k k"]:
        """Prior concentrations of the rows."""
        return self.concentration * popularity + self.stay * np.eye(len(popularity))

    def log_prior(self, popularity: Float[Array, " k"]) -> float:
        """Log density of the sticks, in nats: each is ``Beta(1, γ)``, the last takes the rest."""
        if self.top is None or len(popularity) == 1:
            return 0.0
        left = 1 - np.cumsum(popularity)[:-1]
        before = np.concatenate([[1.0], left[:-1]])
        kept = np.log(np.maximum(left, 1e-300)) - np.log(np.maximum(before, 1e-300))
        return float(len(kept) * np.log(self.top) + (self.top - 1) * kept.sum())

    def improved(
        self, popularity: Float[Array, " k"], counts: Float[Array, "k k"]
    ) -> Float[Array, " k"]:
        """Popularities of higher posterior density, rows summed out; the same if none is found."""
        if self.top is None or len(popularity) == 1:
            return popularity
        start = _logits(popularity)
        inside = [(-30.0, 30.0)] * len(start)
        found = scipy.optimize.minimize(
            self._loss, start, (counts,), jac=True, method="L-BFGS-B", bounds=inside
        )
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
        top = float(self.top or 1.0)
        value += (top - 1) * float(-np.logaddexp(0.0, logits).sum())
        return -value, -(gradient - (top - 1) * share)


def _popularity(logits: Float[Array, " s"]) -> Float[Array, " k"]:
    """Sticks broken one after the other; the last takes what is left."""
    share = np.append(scipy.special.expit(logits), 1.0)
    left = np.concatenate([[1.0], np.cumprod(1 - share[:-1])])
    return np.maximum(share * left, 1e-12)


def _logits(popularity: Float[Array, " k"]) -> Float[Array, " s"]:
    left = np.cumsum(popularity[::-1])[::-1]
    share = np.clip(popularity[:-1] / left[:-1], 1e-12, 1 - 1e-12)
    return np.clip(scipy.special.logit(share), -30.0, 30.0)


# --- coordinate ascent ---------------------------------------------------------------------------


class Problem(NamedTuple):
    """What one site fits: the exchangeable prior, how rows depend on popularities, and data."""

    prior: HiddenMarkov
    sticks: Sticks
    records: Records

    def prior_at(self, popularity: Float[Array, " k"]) -> HiddenMarkov:
        """The prior, given popularities."""
        rows = Plate(Dirichlet(self.sticks.rows(popularity) - 1))
        return HiddenMarkov(self.prior.blocks, transitions=rows)


class _Run(NamedTuple):
    counts: HiddenMarkov
    popularity: Array
    trace: list[float]
    converged: bool


def _ascend(problem: Problem, counts: HiddenMarkov, rounds: int, tolerance: float) -> _Run:
    """Popularities, then parameters, then paths, in turns, until the bound stays."""
    states = problem.prior.states
    popularity, trace = np.full(states, 1 / states), []
    for _ in range(rounds):
        moves = np.asarray(counts.transitions.members.concentration_minus_one)  # pyright: ignore
        popularity = problem.sticks.improved(popularity, moves)
        prior = problem.prior_at(popularity)
        q = prior + counts
        with jax.enable_x64(True):
            value, counts = jax.device_get(counted(q, problem.records))
        counts = at_rest(counts)
        bound = float(value) - float(q.kl(prior)) + problem.sticks.log_prior(popularity)
        trace.append(bound)
        if len(trace) > 1 and trace[-1] - trace[-2] <= tolerance * abs(trace[-1]):
            return _Run(counts, popularity, trace, True)
    return _Run(counts, popularity, trace, False)


def _start(problem: Problem, rng: np.random.Generator) -> HiddenMarkov:
    """Counts if each step had the one state that k-means gives it, the heaviest first."""
    (x, lengths), states = problem.records.data, problem.prior.states
    real = np.arange(x.shape[1]) < np.asarray(lengths)[:, None]
    flat = x[real]
    random = flat.ndim == 1
    labels = rng.integers(states, size=len(flat)) if random else _kmeans(flat, states, rng)
    rank = np.argsort(np.argsort(-np.bincount(labels, minlength=states), kind="stable"))
    labels = rank[labels]
    onehot = np.eye(states)[labels]
    paths = np.split(labels, np.cumsum(lengths)[:-1])
    moves, starts = np.zeros((states, states)), np.zeros(states)
    for path in paths:
        starts[path[0]] += 1
        np.add.at(moves, (path[:-1], path[1:]), 1.0)
    return HiddenMarkov(
        emissions=Plate(problem.prior.emissions.members.observed(flat, onehot)),  # pyright: ignore
        initial=Dirichlet(starts),
        transitions=Plate(Dirichlet(moves)),
    )


def _kmeans(x: Float[Array, "n d"], size: int, rng: np.random.Generator) -> Int[Array, " n"]:
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
