"""A posterior over parameters, test records, and what mixtures and their rivals say of them."""

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
from experiments.dark_knowledge.peers import flat
from experiments.pursuit import peers
from experiments.pursuit.targets import Array
from posterity.distillation import SGLD, Langevin
from posterity.errors import ConvergenceWarning
from posterity.families import DiagonalGaussian
from posterity.models import Model
from posterity.pursuit import Joint

DRAWS = 1000  # of a law, over which predictions are averaged

MEAN_FIELD, ENSEMBLE, LANGEVIN = "mean-field VI", "deep ensemble", "SGLD"
OURS, TRUTH = "pursue", "truth"


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
    def parts(self) -> tuple[Any, Any, Any]:
        """Arguments of compiled programs and no constants: one serves all sets of records."""
        return self.model, self.prior, jax.tree.map(jnp.asarray, self.train)


def score(problem: Problem, draws: Array, weights: Array | None = None) -> float:
    """Mean over test records of log E[p(y | x, z)], in nats, over draws (S, p) of the posterior."""
    chances = np.full(len(draws), 1 / len(draws)) if weights is None else weights
    with jax.enable_x64(True):
        data = jax.tree.map(jnp.asarray, problem.test)
        parts = np.array_split(np.asarray(draws, np.float64), -(-len(draws) // 500))
        each = [np.asarray(_likelihoods(problem.model, jnp.asarray(p), data)) for p in parts]
    with np.errstate(divide="ignore"):
        logs = np.concatenate(each) + np.log(chances)[:, None]
        return float(np.logaddexp.reduce(logs, 0).mean())


@eqx.filter_jit
def _likelihoods(model: Any, draws: Any, data: Any) -> Any:
    return jax.vmap(lambda z: model.log_likelihood(z, data))(draws)


@eqx.filter_jit
def _log_joints(model: Any, prior: Any, train: Any, points: Any) -> Any:
    return jax.lax.map(_joint(model, prior, train), points, batch_size=4096)


def _joint(model: Any, prior: Any, train: Any) -> Any:
    return lambda z: prior.log_prob(z) + model.log_likelihood(z, train).sum()


def pursued(problem: Problem, components: int, seed: int) -> list[Any]:
    """The result of `posterity.pursue` after each component.

    It stops by itself, so there may be fewer.
    """
    target = Joint(problem.model, problem.prior, problem.train)
    steps: list[Any] = []
    options = {"key": jax.random.key(seed), "progress": lambda now: steps.append(now.result)}
    posterity.pursue(target, problem.base, components=components, **options)
    return steps


def draws_of(law: Any, seed: int) -> Array:
    """(DRAWS, p)."""
    with jax.enable_x64(True):
        return np.asarray(law.sample(jax.random.key(seed), (DRAWS,)), np.float64)


def mean_field(problem: Problem, seed: int, steps: int = 4000, batch: int = 16) -> Array:
    """(DRAWS, p) of one Gaussian of independent coordinates, by Adam on sampled gradients."""
    with jax.enable_x64(True):
        scale = jnp.asarray(problem.base.precision) ** -0.5
        mean, shape = _mean_field(*problem.parts, scale, jax.random.key(seed), steps, batch)
        noise = jax.random.normal(jax.random.key(seed + 1), (DRAWS, len(scale)))
        return np.asarray(scale * (mean + jnp.exp(shape) * noise), np.float64)


def modes(problem: Problem, members: int, seed: int, steps: int = 4000) -> Array:
    """(members, p) ends of climbs to the posterior's modes, from draws of the prior.

    A deep ensemble: the same network trained again and again, each time from another start.
    """
    with jax.enable_x64(True):
        starts = jnp.asarray(problem.base.sample(jax.random.key(seed), (members,)))
        return np.asarray(_modes(*problem.parts, starts, steps), np.float64)


@eqx.filter_jit
def _mean_field(
    model: Any, prior: Any, train: Any, scale: Any, key: Any, steps: int, batch: int
) -> Any:
    def bound(at: Any, key: Any) -> Any:
        mean, shape = at
        z = scale * (mean + jnp.exp(shape) * jax.random.normal(key, (batch, len(scale))))
        return jax.vmap(_joint(model, prior, train))(z).mean() + shape.sum()

    start, own = jax.random.split(key)
    first = jax.random.normal(start, scale.shape), jnp.full(scale.shape, jnp.log(0.3))
    return peers.climb(bound, first, steps, peers.CAREFUL, own)


@eqx.filter_jit
def _modes(model: Any, prior: Any, train: Any, starts: Any, steps: int) -> Any:
    how, height = dataclasses.replace(peers.CAREFUL, rate=0.02), _joint(model, prior, train)
    # these climbs have no noise: the key is not used
    climb = lambda z: peers.climb(lambda z, _: height(z), z, steps, how, jax.random.key(0))
    return jax.vmap(climb)(starts)


def langevin(problem: Problem, seed: int, draws: int = 50, **options: Any) -> Array:
    """(S, p) of the library's chains."""
    with warnings.catch_warnings():
        # that chains have not met is said by their score
        warnings.simplefilter("ignore", ConvergenceWarning)
        chains = Langevin(
            problem.model, problem.prior, problem.train, **{"kernel": SGLD(), **options}
        )
        return flat(chains.sample(draws, key=jax.random.key(seed)).stack)


def curve(
    problem: Problem, counts: Sequence[int], seed: int, *, chains: Mapping[str, Any], steps: int
) -> dict[str, Any]:
    """Test log likelihood of each method, in nats a record, against the number of components."""
    members = modes(problem, max(counts), seed, steps)
    grown = pursued(problem, max(counts), seed)
    # where it stopped by itself, what it had stays
    at = {str(count): grown[min(count, len(grown)) - 1] for count in counts}
    ours = {name: score(problem, draws_of(step.posterior, seed)) for name, step in at.items()}
    return {
        OURS: ours,
        ENSEMBLE: {str(k): score(problem, members[:k]) for k in counts},
        MEAN_FIELD: score(problem, mean_field(problem, seed, steps)),
        LANGEVIN: score(problem, langevin(problem, seed, **chains)),
        "components found": len(grown),
        "effective number of components": {n: float(s.trace[-1].effective) for n, s in at.items()},
        "evidence lower bound": {name: float(step.elbo) for name, step in at.items()},
    }


@functools.cache
def plane(side: int = 281, reach: float = 7.0) -> Array:
    """(side², 2) points of a grid on which a posterior of two parameters is summed."""
    line = np.linspace(-reach, reach, side)
    return np.stack([own.ravel() for own in np.meshgrid(line, line)], 1)


def exact(problem: Problem) -> tuple[Array, Array]:
    """Points and weights of the posterior of two parameters, but for those of no weight."""
    points = plane()
    with jax.enable_x64(True):
        log_p = np.asarray(_log_joints(*problem.parts, jnp.asarray(points)), np.float64)
    weights = np.exp(log_p - log_p.max())
    keep = weights > 1e-9
    return points[keep], weights[keep] / weights[keep].sum()


def gain(rows: Sequence[Mapping[str, Any]], most: int) -> dict[str, Any]:
    """By how much the largest mixture is above mean-field VI, over data sets."""
    return harness.statistics([row[OURS][str(most)] - row[MEAN_FIELD] for row in rows])


def verdict(text: str, measured: Mapping[str, Any]) -> dict[str, Any]:
    """More than two standard errors above nothing."""
    error = measured["standard error"]
    met = None if error is None else bool(measured["mean"] > 2 * error)
    goal = f"{text}: pursue above mean-field VI by more than two standard errors"
    return {"goal": goal, "measured": measured, "met": met}
