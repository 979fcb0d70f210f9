"""The settings and the state of a pursuit."""

import dataclasses
from typing import Any

import numpy as np
import scipy.special
from jaxtyping import Float, PyTree

from posterity.arrays import keys
from posterity.arrays.tree import taken
from posterity.arrays.typing import KeyArray
from posterity.families import Distribution, Mixture, Transformed
from posterity.families.gaussian_forms import GaussianForm
from posterity.families.names import names_of, with_names
from posterity.models.nodes import normal_pairs
from posterity.pursuit import objectives
from posterity.pursuit.objectives import Components, Ratio, batched
from posterity.pursuit.result import Covered, Refused, Row
from posterity.pursuit.schedules import LambdaSchedule
from posterity.pursuit.target import Target
from posterity.pursuit.weights import Estimate, SampleCache, estimate, with_row


@dataclasses.dataclass(frozen=True)
class Search:
    """The settings of a pursuit, which stay constant."""

    form: GaussianForm
    target: Target  # In the coordinates of components
    origin: Distribution  # The base as it was given
    base: Distribution  # The base over the coordinates of components
    key: KeyArray
    schedule: LambdaSchedule
    polish: str | None
    attempts: int
    finalists: int
    samples: int
    nodes: Float[np.ndarray, "n noise"]
    """Fixed noise of the objectives."""
    fresh: int = 0
    """Number of starts required in a last search, else 0; bounds climbs from unexplained draws."""

    def sampled(self, parameters: PyTree, weights: Float[np.ndarray, " k"]) -> SampleCache:
        """Return the cache of a mixture."""
        slots = len(weights)
        z = np.zeros((slots, self.samples, self.form.size))
        nothing = np.zeros((slots, slots, self.samples))
        cache = SampleCache(z, nothing[0], nothing)
        for slot in np.flatnonzero(weights).tolist():
            cache = self.with_slot(cache, parameters, slot)
        return cache

    def with_slot(self, cache: SampleCache, parameters: PyTree, slot: int) -> SampleCache:
        """Return the cache with new draws of one slot, from fixed noise."""
        own = taken(parameters, slot)
        key = keys.fold_in(keys.fold_in(self.key, 1), slot)
        drawn = objectives.drawn(self.form, own, objectives.noise(self.form, key, self.samples))
        z = with_row(cache.z, slot, drawn)
        log_l = with_row(cache.log_l, slot, batched(objectives.values, (self.target,), drawn))
        densities = with_row(cache.densities, slot, self.form.log_prob(own, z))
        densities[:, slot] = objectives.densities(self.form, parameters, drawn).T
        return SampleCache(z, log_l, densities)

    def key_of(self, number: int) -> KeyArray:
        """Return the key of one component's search, or of the polish for number zero."""
        return keys.fold_in(keys.fold_in(self.key, 2), number)

    def posterior(self, state: "State") -> Mixture:
        """Return the mixture of the slots of positive weight."""
        used = state.used
        law = self.form.law(taken(state.parameters, used), self.base)
        supports = self.origin.unmapped[1]
        law = law if supports is None else Transformed(law, supports)
        mixture = Mixture.from_standard(state.weights[used], law)
        return with_names(mixture, names_of(self.origin, "components"))


def nodes_of(form: GaussianForm, number: int) -> Float[np.ndarray, "n noise"]:
    """Return quasi-random noise in mirrored pairs, standardised in each dimension."""
    nodes = normal_pairs(form.size, max(number // 2, 1))
    return nodes / nodes.std(0)


@dataclasses.dataclass(frozen=True)
class State:
    """The state of a pursuit: the mixture so far and its trace."""

    parameters: Any  # The parameters of all slots, stacked along a first axis (K,)
    weights: Float[np.ndarray, " k"]
    cache: SampleCache
    trace: tuple[Row, ...] = ()
    refused: tuple[Refused, ...] = ()
    number: int = 0  # Number of components searched for
    evaluations: int = 0
    covered: Covered = dataclasses.field(default_factory=Covered)

    @property
    def q(self) -> Components:
        """The mixture, for objectives."""
        return Components(self.parameters, np.log(self.weights))

    @property
    def gap(self) -> Estimate:
        """The divergence of the mixture from the target, estimated by its own draws, in nats."""
        return self.cache.importance(self.weights)[0]

    @property
    def log_z(self) -> float:
        """The logarithm of ``∫ L``, by importance sampling from the mixture."""
        return self.cache.elbo(self.weights).value + self.gap.value

    @property
    def last_gain(self) -> Estimate:
        """The gain of the ELBO by the last component."""
        return Estimate(self.trace[-1].gain, self.trace[-1].gain_error)

    @property
    def used(self) -> list[int]:
        """Slots of positive weight."""
        return np.flatnonzero(self.weights > 0).tolist()

    def ratio(
        self,
        *,
        # Share of the mixture's own draws at which ``log q_t`` is below the floor of the ratio.
        tail: float = 1e-3,
    ) -> Ratio:
        """Return ``log L/q_t`` with a floor below nearly all of the mixture's own draws."""
        if not self.used:
            return Ratio(None, 0.0)
        return Ratio(self.q, self.cache.tail(self.weights, tail))

    def gain(self, cache: SampleCache, weights: Float[np.ndarray, " k"]) -> Estimate:
        """Return the gain in the ELBO by another mixture, with common draws."""
        return estimate(cache.terms(weights) - self.cache.terms(self.weights))

    def with_row(self, gain: Estimate, alpha: float, lam: float) -> "State":
        """Return this state with a row added to the trace that describes it."""
        elbo = self.cache.elbo(self.weights)
        weights = self.weights
        log_q = self.cache.log_q(weights).mean(1)
        row = Row(
            components=len(self.used),
            elbo=elbo.value,
            standard_error=elbo.standard_error,
            gain=gain.value,
            gain_error=gain.standard_error,
            alpha=alpha,
            lam=lam,
            entropy=-float(weights @ log_q),
            effective=float(np.exp(scipy.special.entr(weights).sum())),
            evaluations=self.evaluations,
        )
        return dataclasses.replace(self, trace=(*self.trace, row))
