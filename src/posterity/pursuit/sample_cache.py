"""What the ELBO is estimated from: draws of each component, kept with all that is known of them.

Each slot draws with noise of its own that stays, so that two mixtures are compared draw by draw.
What is kept is a function of the mixture alone, to the last bit, however the mixture came about.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.special
from jaxtyping import Float, PyTree

from posterity.families.free_forms import FreeForm
from posterity.pursuit import objectives
from posterity.pursuit.target import Target

LEAST = -1e300
"""That keeps the logarithm of no density at all from becoming NaN."""


class Estimate(NamedTuple):
    """A Monte Carlo estimate, and its standard error."""

    value: float
    standard_error: float


@dataclasses.dataclass(frozen=True)
class SampleCache:
    """Draws ``z`` (K, n, ...) of slots, ``log L`` there (K, n) and all densities (K, K, n).

    ``densities[i, j]`` are ``log h_i`` at the draws of ``h_j``. Empty slots hold what does not
    count.
    """

    z: Any
    log_l: Float[np.ndarray, "k n"]
    densities: Float[np.ndarray, "k k n"]

    def log_q(self, weights: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
        """Of the mixture with these weights, at all draws."""
        used = weights > 0
        logs = self.densities[used] + np.log(weights[used])[:, None, None]
        most = np.maximum(logs.max(axis=0), LEAST)
        with np.errstate(divide="ignore"):  # no density at all is minus infinity
            return most + np.log(np.exp(logs - most).sum(axis=0))

    def terms(self, weights: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
        """``w_j (log L - log q)`` at the draws of each slot; the ELBO sums their means."""
        gaps = self.log_l - self.log_q(weights)
        return np.where(weights[:, None] > 0, weights[:, None] * gaps, 0.0)

    def elbo(self, weights: Float[np.ndarray, " k"]) -> Estimate:
        """Stratified over components."""
        return estimate(self.terms(weights))

    def importance(self, weights: Float[np.ndarray, " k"]) -> tuple[float, float]:
        """``log ∫ L`` by importance sampling from the mixture, and the share of effective draws."""
        with np.errstate(divide="ignore"):
            logs = np.log(weights)[:, None] + self.log_l - self.log_q(weights)
        logs = np.where(weights[:, None] > 0, logs, -np.inf)
        total = scipy.special.logsumexp(logs) - np.log(logs.shape[1])
        # Draws of a component stand for its weight: shares are of draws from the mixture.
        squares = 2 * logs - np.where(weights > 0, np.log(np.maximum(weights, 1e-300)), 0)[:, None]
        second = scipy.special.logsumexp(squares) - np.log(logs.shape[1])
        return float(total), float(np.exp(2 * total - second))

    def tail(self, weights: Float[np.ndarray, " k"], share: float) -> float:
        """What ``log q`` is less than at this share of the mixture's own draws."""
        used = weights > 0
        log_q = self.log_q(weights)[used]
        mass = np.repeat(weights[used], log_q.shape[1]) / log_q.shape[1]
        order = np.argsort(log_q.ravel())
        reached = np.searchsorted(np.cumsum(mass[order]), share)
        return float(log_q.ravel()[order[min(reached, len(order) - 1)]])

    def with_slot(
        self,
        form: FreeForm,
        target: Target,
        parameters: PyTree,
        slot: int,
        used: list[int],
        noise: PyTree,
    ) -> "SampleCache":
        """With new draws of one slot, where all components (K,) have these parameters.

        ``used`` are all slots that hold a component.
        """
        own = jax.tree.map(lambda leaf: leaf[slot], parameters)
        z, log_l = objectives.draws(form, target, own, noise)
        put = lambda old, new: with_row(old, slot, np.asarray(new))
        z, log_l = jax.tree.map(put, self.z, z), put(self.log_l, log_l)
        values = self.densities.copy()
        for other in used:
            there = jax.tree.map(lambda leaf, other=other: leaf[other], z)
            values[:, other] = objectives.densities(form, parameters, there)
        return SampleCache(z, log_l, values)


def estimate(terms: Float[np.ndarray, "k n"]) -> Estimate:
    """The sum over strata of means of terms, and its standard error."""
    if not np.isfinite(terms).all():
        return Estimate(-np.inf, np.inf)
    variance = terms.var(axis=1, ddof=1).sum() / terms.shape[1]
    return Estimate(float(terms.mean(1).sum()), float(np.sqrt(variance)))


def with_row(old: np.ndarray, row: int, new: np.ndarray) -> np.ndarray:
    """A copy of an array with another row."""
    changed = np.array(old)
    changed[row] = new
    return changed
