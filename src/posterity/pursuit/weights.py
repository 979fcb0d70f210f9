"""The draws for the estimate of the ELBO, and the optimisation of the weights.

Each slot has fixed noise, so that two mixtures are compared draw by draw, and the cache depends on
the mixture alone. ``Σ_j w_j E_j[log L - log Σ_i w_i h_i]`` is concave in the weights, and at cached
draws it needs no evaluation of the target.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import scipy.special
from jaxtyping import Float

from posterity.arrays.search import lbfgs

DEAD = 1e-4  # Weight below which a component is removed


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: float
    standard_error: float

    @property
    def at_most(self) -> float:
        """An upper bound, by two standard errors, of a nonnegative quantity."""
        return max(self.value, 0.0) + 2 * self.standard_error


@dataclasses.dataclass(frozen=True)
class SampleCache:
    """Draws ``z`` of all slots, and ``log L`` there; the values of empty slots are finite, and not
    used. ``densities[i, j]`` are ``log h_i`` at the draws of ``h_j``.
    """

    z: Float[np.ndarray, "k n d"]
    log_l: Float[np.ndarray, "k n"]
    densities: Float[np.ndarray, "k k n"]

    def log_q(self, weights: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
        """Return ``log q`` of the mixture with these weights, at all draws."""
        used = weights > 0
        logs = self.densities[used] + np.log(weights[used])[:, None, None]
        log_q: Any = scipy.special.logsumexp(logs, axis=0)
        return log_q

    def terms(self, weights: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
        """Return ``w_j (log L - log q)`` at each slot's draws; the ELBO sums their means."""
        return weights[:, None] * (self.log_l - self.log_q(weights))

    def elbo(self, weights: Float[np.ndarray, " k"]) -> Estimate:
        """Return the ELBO in nats, stratified over components."""
        return estimate(self.terms(weights))

    def importance(self, weights: Float[np.ndarray, " k"]) -> tuple[Estimate, float]:
        """Return ``KL(q ‖ p)`` in nats, with ``log ∫ L`` by importance sampling, and the share of
        effective draws. Neither detects a mode that the mixture misses.
        """
        used = weights > 0
        mass = weights[used, None]
        gaps = (self.log_l - self.log_q(weights))[used]
        logs = np.log(mass) + gaps
        draws = np.log(gaps.shape[1])
        total = scipy.special.logsumexp(logs) - draws
        # Each component has as many draws, so squares are reweighted to draws from the mixture.
        second = scipy.special.logsumexp(2 * logs - np.log(mass)) - draws
        error = estimate(np.exp(logs - total) - mass * gaps).standard_error
        gap = float(total) - estimate(mass * gaps).value
        return Estimate(gap, error), float(np.exp(2 * total - second))

    def tail(self, weights: Float[np.ndarray, " k"], share: float) -> float:
        """Return the quantile of ``log q`` at this share of the mixture's own draws."""
        used = weights > 0
        log_q = self.log_q(weights)[used]
        mass = np.broadcast_to(weights[used, None], log_q.shape)
        return float(np.quantile(log_q, share, weights=mass, method="inverted_cdf"))


def estimate(terms: Float[np.ndarray, "k n"]) -> Estimate:
    """Return the sum over strata of the means of terms, and its standard error."""
    if not np.isfinite(terms).all():
        return Estimate(-np.inf, np.inf)
    variance = terms.var(axis=1, ddof=1).sum() / terms.shape[1]
    return Estimate(float(terms.mean(1).sum()), float(np.sqrt(variance)))


def with_row(old: np.ndarray, row: int, new: Any) -> np.ndarray:
    """Return a copy of an array with one row replaced."""
    changed = np.array(old)
    changed[row] = new
    return changed


def best_share(
    cache: SampleCache,
    weights: Float[np.ndarray, " k"],
    slot: int,
    *,
    sure: float = 15.0,  # Log odds beyond which α is set to zero or one
) -> Float[np.ndarray, " k"]:
    """Return the weights times ``1 - α``, and α for one slot, with the α of the highest ELBO. Its
    slope in α, ``E_h[log L/q] - E_q_t[log L/q]``, decreases, and its root is bracketed.
    """
    # Only two laws are mixed: the mixture so far, and the component at the slot.
    log_q = cache.log_q(weights)
    log_h = cache.densities[slot]

    def slope(odds: float) -> float:
        less = -np.logaddexp(0, odds)  # log(1 - α)
        more = -np.logaddexp(0, -odds)  # log α
        means = (cache.log_l - np.logaddexp(less + log_q, more + log_h)).mean(1)
        return float(means[slot] - weights @ means)

    if slope(-sure) <= 0:
        alpha = 0.0
    elif slope(sure) >= 0:
        alpha = 1.0
    else:
        alpha = scipy.special.expit(scipy.optimize.brentq(slope, -sure, sure, xtol=1e-6))
    return with_row((1 - alpha) * weights, slot, alpha)


def corrective(
    cache: SampleCache,
    weights: Float[np.ndarray, " k"],
    *,
    steps: int = 300,  # Most steps of the optimisation of all weights
) -> Float[np.ndarray, " k"]:
    """Optimise all weights, starting from these; empty slots stay empty."""
    used = np.flatnonzero(weights > 0)
    if len(used) == 1:
        return weights
    densities = cache.densities[np.ix_(used, used)]
    log_l = cache.log_l[used]

    def least(logits: np.ndarray) -> tuple[float, np.ndarray]:
        own = scipy.special.softmax(logits)
        log_q = scipy.special.logsumexp(densities + np.log(own)[:, None, None], axis=0)
        gaps = log_l - log_q
        # The slope in w_j: the gaps at its draws, less its part of the density at all draws.
        spread = (np.exp(densities - log_q) * own[:, None]).mean(2).sum(1)
        slope = gaps.mean(1) - spread
        return -float(own @ gaps.mean(1)), -own * (slope - own @ slope)

    begin = np.log(weights[used])
    logits, _, _ = lbfgs(least, begin - begin.mean(), most=steps)
    changed = np.zeros_like(weights)
    changed[used] = scipy.special.softmax(logits)
    return changed


def pruned(weights: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """Return the weights without those below :data:`DEAD`, normalised."""
    kept = np.where(weights >= DEAD, weights, 0.0)
    return kept / kept.sum()
