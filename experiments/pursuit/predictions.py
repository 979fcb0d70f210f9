"""A posterior over parameters, test records, and what mixtures and their rivals say of them."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import posterity
from experiments import harness
from experiments.pursuit import peers
from experiments.pursuit.targets import Array
from posterity.distillation import SGLD, Langevin
from posterity.errors import ConvergenceWarning
from posterity.families import DiagonalGaussian
from posterity.models import Model
from posterity.pursuit import Joint

DRAWS = 1000
"""Of a law, over which predictions are averaged."""

MEAN_FIELD, ENSEMBLE, LANGEVIN, OURS, TRUTH = (
    *("mean-field VI", "deep ensemble", "SGLD", "pursue", "truth"),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A model with its prior, records to learn from, and records to be judged by.

    ``base`` is of the kind that components are, and as wide as the prior: where searches start.
    """

    model: Model
    prior: Any
    base: DiagonalGaussian
    train: tuple[Array, Array]
    test: tuple[Array, Array]

    @property
    def size(self) -> int:
        """Of the parameters."""
        return len(self.base.precision)


def score(problem: Problem, draws: Array, weights: Array | None = None) -> float:
    """Mean over test records of log E[p(y | x, z)], in nats, over draws (S, p) of the posterior."""
    chances = np.full(len(draws), 1 / len(draws)) if weights is None else weights
    each = np.concatenate([_each(problem, part) for part in np.array_split(draws, _parts(draws))])
    with np.errstate(divide="ignore"):
        return float(np.logaddexp.reduce(each + np.log(chances)[:, None], 0).mean())


def _parts(draws: Array) -> int:
    return -(-len(draws) // 500)


def _each(problem: Problem, draws: Array) -> Array:
    with jax.enable_x64(True):
        data = jax.tree.map(jnp.asarray, problem.test)
        found = _likelihoods(problem.model, jnp.asarray(draws, jnp.float64), data)
        return np.asarray(found, np.float64)


@eqx.filter_jit
def _likelihoods(model: Any, draws: Any, data: Any) -> Any:
    return jax.vmap(lambda z: model.log_likelihood(z, data))(draws)


# --- ours ------------------------------------------------------------------------------------


def pursued(problem: Problem, components: int, seed: int) -> list[Any]:
    """The result of `posterity.pursue` after each component.

    It stops by itself, so there may be fewer.
    """
    target = Joint(problem.model, problem.prior, problem.train)
    steps: list[Any] = []
    add = lambda now: steps.append(now.result)
    key = jax.random.key(seed)
    posterity.pursue(target, problem.base, components=components, key=key, progress=add)
    return steps


def draws_of(law: Any, seed: int, number: int = DRAWS) -> Array:
    """(number, p)."""
    with jax.enable_x64(True):
        return np.asarray(law.sample(jax.random.key(seed), (number,)), np.float64)


# --- rivals ----------------------------------------------------------------------------------


def mean_field(problem: Problem, seed: int, steps: int = 4000, batch: int = 16) -> Array:
    """(DRAWS, p) of one Gaussian of independent coordinates, by Adam on sampled gradients."""
    with jax.enable_x64(True):
        scale = jnp.asarray(problem.base.precision) ** -0.5
        key = jax.random.key(seed)
        mean, shape = _mean_field(*_parts_of(problem), scale, key, steps, batch)
        noise = jax.random.normal(jax.random.key(seed + 1), (DRAWS, problem.size))
        return np.asarray(scale * (mean + jnp.exp(shape) * noise), np.float64)


def modes(problem: Problem, members: int, seed: int, steps: int = 4000) -> Array:
    """(members, p) ends of climbs to the posterior's modes, from draws of the prior.

    A deep ensemble: the same network trained again and again, each time from another start.
    """
    with jax.enable_x64(True):
        starts = jnp.asarray(problem.base.sample(jax.random.key(seed), (members,)))
        return np.asarray(_modes(*_parts_of(problem), starts, steps), np.float64)


def _parts_of(problem: Problem) -> tuple[Any, Any, Any]:
    # data are arguments of compiled programs and no constants: one serves all sets of records
    return problem.model, problem.prior, jax.tree.map(jnp.asarray, problem.train)


@eqx.filter_jit
def _mean_field(
    model: Any, prior: Any, train: Any, scale: Any, key: Any, steps: int, batch: int
) -> Any:
    def bound(at: Any, key: Any) -> Any:
        mean, shape = at
        z = scale * (mean + jnp.exp(shape) * jax.random.normal(key, (batch, len(scale))))
        joint = lambda z: prior.log_prob(z) + model.log_likelihood(z, train).sum()
        return jax.vmap(joint)(z).mean() + shape.sum()

    start, own = jax.random.split(key)
    first = jax.random.normal(start, scale.shape), jnp.full(scale.shape, jnp.log(0.3))
    return peers.climb(bound, first, steps, peers.CAREFUL, own)


@eqx.filter_jit
def _modes(model: Any, prior: Any, train: Any, starts: Any, steps: int) -> Any:
    how = dataclasses.replace(peers.CAREFUL, rate=0.02)
    # these climbs have no noise: the key is not used
    joint = lambda z, _: prior.log_prob(z) + model.log_likelihood(z, train).sum()
    return jax.vmap(lambda z: peers.climb(joint, z, steps, how, jax.random.key(0)))(starts)


def langevin(problem: Problem, seed: int, draws: int = 50, **options: Any) -> Array:
    """(S, p) of the library's chains."""
    with warnings.catch_warnings():
        # that chains have not met is said by their score
        warnings.simplefilter("ignore", ConvergenceWarning)
        options = {"kernel": SGLD(), **options}
        chains = Langevin(problem.model, problem.prior, problem.train, **options)
        found = chains.sample(draws, key=jax.random.key(seed)).stack
    leaves = jax.tree.leaves(found)
    return np.concatenate([np.asarray(a, np.float64).reshape(len(a), -1) for a in leaves], 1)


# --- over components -------------------------------------------------------------------------


def curve(
    problem: Problem,
    counts: Sequence[int],
    seed: int,
    *,
    chains: Mapping[str, Any],
    steps: int,
) -> dict[str, Any]:
    """Test log likelihood of each method, in nats a record, against the number of components."""
    members = modes(problem, max(counts), seed, steps)
    grown = pursued(problem, max(counts), seed)
    # where it stopped by itself, what it had stays
    at = {str(count): grown[min(count, len(grown)) - 1] for count in counts}
    ours = {name: score(problem, draws_of(step.posterior, seed)) for name, step in at.items()}
    used = {name: float(step.trace[-1].effective) for name, step in at.items()}
    bounds = {name: float(step.elbo) for name, step in at.items()}
    return {
        OURS: ours,
        ENSEMBLE: {str(k): score(problem, members[:k]) for k in counts},
        MEAN_FIELD: score(problem, mean_field(problem, seed, steps)),
        LANGEVIN: score(problem, langevin(problem, seed, **chains)),
        "components found": len(grown),
        "effective number of components": used,
        "evidence lower bound": bounds,
    }


def gain(rows: Sequence[Mapping[str, Any]], most: int) -> dict[str, Any]:
    """By how much the largest mixture is above mean-field VI, over data sets."""
    values = [row[OURS][str(most)] - row[MEAN_FIELD] for row in rows]
    return harness.statistics(values)


def verdict(text: str, measured: Mapping[str, Any]) -> dict[str, Any]:
    """More than two standard errors above nothing."""
    error = measured["standard error"]
    met = None if error is None else bool(measured["mean"] > 2 * error)
    goal = f"{text}: pursue above mean-field VI by more than two standard errors"
    return {"goal": goal, "measured": measured, "met": met}


@functools.cache
def plane(side: int = 281, reach: float = 7.0) -> Array:
    """(side², 2) points of a grid on which a posterior of two parameters is summed."""
    line = np.linspace(-reach, reach, side)
    return np.stack([own.ravel() for own in np.meshgrid(line, line)], 1)


def exact(problem: Problem) -> tuple[Array, Array]:
    """Points and weights of the posterior of two parameters, but for those of no weight."""
    points = plane()
    with jax.enable_x64(True):
        log_p = np.asarray(_log_joints(*_parts_of(problem), jnp.asarray(points)), np.float64)
    weights = np.exp(log_p - log_p.max())
    keep = weights > 1e-9
    return points[keep], weights[keep] / weights[keep].sum()


@eqx.filter_jit
def _log_joints(model: Any, prior: Any, train: Any, points: Any) -> Any:
    joint = lambda z: prior.log_prob(z) + model.log_likelihood(z, train).sum()
    return jax.lax.map(joint, points, batch_size=4096)
