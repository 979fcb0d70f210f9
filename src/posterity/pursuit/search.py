"""What a pursuit goes by, and what it has found so far."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from posterity.families import DiagonalGaussian, Distribution, Mixture, Transformed
from posterity.families.about import Moments
from posterity.pursuit import bank as banks
from posterity.pursuit.bank import Bank
from posterity.pursuit.objectives import Components, Ratio
from posterity.pursuit.result import Refused, Row
from posterity.pursuit.shapes import Shape
from posterity.pursuit.target import Target
from posterity.pursuit.tempers import Temper

TAIL = 1e-3
"""The share of the mixture's own draws at which ``log q_t`` is below the floor of the ratio."""


@dataclasses.dataclass(frozen=True)
class Search:
    """What does not change in a pursuit."""

    shape: Shape
    target: Target
    """In the coordinates of components."""
    origin: Distribution
    """The base as it was given."""
    base: Any
    """Its parameters."""
    key: jax.Array
    temper: Temper
    rule: str
    polish: str | None
    attempts: int
    finalists: int
    noisy: bool
    """Whether the objectives change from step to step."""
    samples: int
    nodes: int
    steps: int

    def noise(self, place: int) -> Any:
        """That the draws of a place in the bank are made of."""
        key = jax.random.fold_in(jax.random.fold_in(self.key, 1), place)
        return self.shape.fixed_noise(key, self.samples)

    def noises(self, places: int) -> Any:
        """Of all places."""
        return jax.tree.map(lambda *rows: jnp.stack(rows), *map(self.noise, range(places)))

    def key_of(self, number: int) -> jax.Array:
        """Of one component's search; zero is the polish."""
        return jax.random.fold_in(jax.random.fold_in(self.key, 2), number)

    def posterior(self, parameters: Any, weights: np.ndarray) -> Mixture:
        """The mixture of places that have weight."""
        used = np.flatnonzero(weights > 0)
        law = self.shape.law(jax.tree.map(lambda leaf: np.asarray(leaf)[used], parameters))
        own = self.origin.law if isinstance(self.origin, Transformed) else self.origin
        if isinstance(own, DiagonalGaussian):  # a network's knows its layers
            law = own.with_moments(Moments(law.mean, law.variance))
        if isinstance(self.origin, Transformed):
            law = Transformed(law, self.origin.supports)
        return Mixture.from_standard(weights[used], law)


@dataclasses.dataclass(frozen=True)
class Places:
    """What a later call needs to go on from a pursuit."""

    search: Search
    parameters: Any
    weights: np.ndarray
    number: int

    def fits(self, search: Search) -> bool:
        """Whether another search is for the same target, by components of the same base."""
        mine, other = self.search, search
        alike = mine.shape == other.shape and mine.origin == other.origin
        return alike and bool(eqx.tree_equal(mine.target, other.target))


@dataclasses.dataclass(frozen=True)
class State:
    """What a pursuit has found so far."""

    parameters: Any
    """Of all places (K,)."""
    weights: np.ndarray
    bank: Bank
    trace: tuple[Row, ...] = ()
    refused: tuple[Refused, ...] = ()
    number: int = 0
    """Components that were sought."""
    evaluations: int = 0

    @property
    def q(self) -> Components:
        """For objectives."""
        with np.errstate(divide="ignore"):
            return Components(self.parameters, jnp.asarray(np.log(self.weights)))

    @property
    def size(self) -> int:
        """Places that have weight."""
        return int((self.weights > 0).sum())

    def ratio(self) -> Ratio:
        """``log L/q_t``, floored where all but few of the mixture's own draws lie above."""
        if not self.size:
            some = np.eye(len(self.weights))[0]
            q = Components(self.parameters, jnp.asarray(np.log(np.maximum(some, 1e-300))))
            return Ratio(q, jnp.asarray(0.0), jnp.asarray(0.0))
        floor = self.bank.tail(self.weights, TAIL)
        return Ratio(self.q, jnp.asarray(floor), jnp.asarray(1.0))

    def gain(self, bank: Bank, weights: np.ndarray) -> banks.Estimate:
        """How much more the ELBO of another mixture is, by the same draws."""
        return banks.estimate(bank.terms(weights) - self.bank.terms(self.weights))

    def with_row(self, gain: banks.Estimate, alpha: float, temper: float) -> "State":
        """With one more row of the trace, of the state as it is."""
        elbo, weights = self.bank.elbo(self.weights), self.weights
        log_q = self.bank.log_q(weights).mean(1)
        row = Row(
            components=self.size,
            elbo=elbo.value,
            standard_error=elbo.standard_error,
            gain=gain.value,
            gain_error=gain.standard_error,
            alpha=alpha,
            temper=temper,
            entropy=-float(np.sum(np.where(weights > 0, weights * log_q, 0.0))),
            effective=float(np.exp(scipy.special.entr(weights).sum())),
            evaluations=self.evaluations,
        )
        return dataclasses.replace(self, trace=(*self.trace, row))
