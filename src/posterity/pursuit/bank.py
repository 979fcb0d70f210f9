"""What the ELBO is estimated from: draws of each component, kept with all that is known of them.

A component that is added asks for its own draws and its density at the others': work that grows
with the number of components no faster than linearly a step. Each place draws with noise of its
own that stays, so that two mixtures are compared draw by draw.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.optimize
import scipy.special
from jaxtyping import Float

from posterity.pursuit import objectives
from posterity.pursuit.objectives import Components
from posterity.pursuit.shapes import Shape
from posterity.pursuit.target import Target

LEAST = -1e300
"""That keeps the logarithm of no density at all from becoming NaN."""


class Estimate(NamedTuple):
    """A Monte Carlo estimate, and its standard error."""

    value: float
    standard_error: float


@dataclasses.dataclass(frozen=True)
class Bank:
    """Draws ``z`` (K, n, ...) of places, ``log L`` there (K, n) and all densities (K, K, n).

    ``densities[i, j]`` are ``log h_i`` at the draws of ``h_j``. Empty places hold what does not
    count.
    """

    z: Any
    log_l: Float[np.ndarray, "k n"]
    densities: Float[np.ndarray, "k k n"]

    def log_q(self, weights: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
        """Of the mixture with these weights, at all draws."""
        return _log_mixture(weights, self.densities)

    def terms(self, weights: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
        """``w_j (log L - log q)`` at the draws of each place; the ELBO sums their means."""
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
        found = self.log_q(weights)[used]
        mass = np.repeat(weights[used][:, None], found.shape[1], 1).ravel() / found.shape[1]
        order = np.argsort(found.ravel())
        reached = np.searchsorted(np.cumsum(mass[order]), share)
        return float(found.ravel()[order[min(reached, len(order) - 1)]])

    def with_place(self, place: int, own: "Place") -> "Bank":
        """With another component at a place."""
        put = lambda old, new: _put(old, place, new)
        densities = self.densities.copy()
        densities[place] = own.at_others
        densities[:, place] = own.of_others
        return Bank(jax.tree.map(put, self.z, own.z), _put(self.log_l, place, own.log_l), densities)


class Place(NamedTuple):
    """What one component brings to a bank."""

    z: Any
    log_l: Float[np.ndarray, " n"]
    of_others: Float[np.ndarray, "k n"]
    """Densities of all components at its draws; its own is among them."""
    at_others: Float[np.ndarray, "k n"]
    """Its density at all draws; its own are among them."""


def whole(shape: Shape, target: Target, q: Components, noise: Any) -> Bank:
    """The bank of a mixture, from nothing; noise is (K, n, ...)."""
    z = jax.vmap(lambda own, noise: objectives.draws(shape, own, noise))(q.parameters, noise)
    count = len(q.log_weights)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), z)
    log_l = np.asarray(objectives.values(target, flat), np.float64).reshape(count, -1)
    found = np.asarray(objectives.densities(shape, q.parameters, flat), np.float64)
    return Bank(jax.tree.map(np.asarray, z), log_l, found.reshape(count, count, -1))


def place_of(
    shape: Shape, target: Target, q: Components, bank: Bank, place: int, own: Any, noise: Any
) -> Place:
    """What a component would bring to a place of a bank."""
    z = objectives.draws(shape, own, noise)
    log_l = np.asarray(objectives.values(target, z), np.float64)
    others = np.asarray(objectives.densities(shape, q.parameters, z), np.float64)
    alone = jax.tree.map(lambda leaf: leaf[None], own)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), bank.z)
    there = np.asarray(objectives.densities(shape, alone, flat), np.float64)
    there = there.reshape(bank.log_l.shape)
    itself = np.asarray(objectives.densities(shape, alone, z), np.float64)[0]
    others, there = _put(others, place, itself), _put(there, place, itself)
    return Place(jax.tree.map(np.asarray, z), log_l, others, there)


def estimate(terms: Float[np.ndarray, "k n"]) -> Estimate:
    """The sum over strata of means of terms, and its standard error."""
    if not np.isfinite(terms).all():
        return Estimate(-np.inf, np.inf)
    variance = terms.var(axis=1, ddof=1).sum() / terms.shape[1]
    return Estimate(float(terms.mean(1).sum()), float(np.sqrt(variance)))


def _put(old: np.ndarray, place: int, new: Any) -> np.ndarray:
    found = np.array(old)
    found[place] = new
    return found


def _log_mixture(
    weights: Float[np.ndarray, " k"], densities: Float[np.ndarray, "k ..."]
) -> Float[np.ndarray, "..."]:
    used = weights > 0
    logs = np.log(weights[used])
    joint = densities[used] + logs.reshape(-1, *(1,) * (densities.ndim - 1))
    most = np.maximum(joint.max(axis=0), LEAST)
    with np.errstate(divide="ignore"):  # no density at all is minus infinity
        return most + np.log(np.exp(joint - most).sum(axis=0))
