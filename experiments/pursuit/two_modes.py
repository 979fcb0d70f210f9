"""Posteriors with two modes, by pursued mixtures: `python -m experiments.pursuit.two_modes`.

A line with Student noise and two instruments that contradict each other; and a logistic regression
on two features of which one matters, and that are all but the same in training.
"""

import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import posterity
from experiments import harness
from experiments.dark_knowledge.peers import flat
from experiments.pursuit import PLACE, peers
from experiments.pursuit.targets import Array
from posterity.distillation import SGLD, Langevin
from posterity.errors import ConvergenceWarning
from posterity.families import DiagonalGaussian, Mixture
from posterity.models import FunctionModel, LogisticRegression, Model
from posterity.pursuit import Joint

GOAL = "pursue above mean-field VI by more than two standard errors"
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
    with warnings.catch_warnings():
        # each size is scored, also one that is too small to have converged
        warnings.simplefilter("ignore", ConvergenceWarning)
        posterity.pursue(target, problem.base, components=components, **options)
    return steps


def draws_of(law: Any, seed: int) -> Array:
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


FREEDOM, SCALE, SLOPE = 2.0, 0.3, 2.0
"""Degrees of freedom and scale of the noise, and the slope that the instruments disagree about."""
EFFECT, APART = 3.0, 0.15
"""Of the feature that matters; the standard deviation of the difference between both."""
SPIKE, SLAB = 0.2, 3.0
"""Standard deviations of the prior of an effect: none to speak of, or one; each half the time."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is run: components, steps of rivals' climbs, burn-in of SGLD, sets of records.

    ``pairs`` are records of the line, one an instrument; ``records`` those of the twin features.
    """

    counts: tuple[int, ...] = (1, 2, 4, 8)
    steps: int = 4000
    burn_in: int | None = None
    lines: int = 10
    twins: int = 16
    pairs: int = 5
    records: int = 60
    tests: int = 400


QUICK = Effort((1, 2), steps=50, burn_in=250, lines=1, twins=1, pairs=4, records=10, tests=20)


def student(z: Any, data: Any) -> Any:
    """Log likelihoods (n,) of records (x, y): y = z₀ + z₁ x + Student noise of known scale."""
    x, y = data
    away = (y - z[0] - z[1] * x[:, 0]) / SCALE
    constant = math.lgamma((FREEDOM + 1) / 2) - math.lgamma(FREEDOM / 2)
    constant -= math.log(FREEDOM * math.pi) / 2 + math.log(SCALE)
    return constant - (FREEDOM + 1) / 2 * jnp.log1p(away**2 / FREEDOM)


LINE = FunctionModel(student, lambda z, x: z[0] + z[1] * x[:, 0], "gaussian", SCALE**2)


def line(seed: int, effort: Effort) -> Problem:
    """Both instruments see the same inputs; one has the slope 2, the other -2."""
    rng = np.random.default_rng(seed)

    def records(pairs: int) -> tuple[Any, Any]:
        x = np.tile(rng.uniform(-2, 2, pairs), 2)
        slope = np.repeat([SLOPE, -SLOPE], pairs)
        return x[:, None], slope * x + SCALE * rng.standard_t(FREEDOM, 2 * pairs)

    prior = DiagonalGaussian.from_standard(np.zeros(2), np.full(2, 4.0))
    return Problem(LINE, prior, prior, records(effort.pairs), records(effort.tests // 2))


def spike_and_slab() -> Mixture:
    """Each effect of two is small or large: four laws of both."""
    pairs = np.array(list(itertools.product([SPIKE**2, SLAB**2], repeat=2)))
    each = DiagonalGaussian.from_standard(np.zeros((4, 2)), pairs)
    return Mixture.from_standard(np.ones(4), each)


def twins(seed: int, effort: Effort) -> Problem:
    """Two features that are all but the same where one learns, and are not where one predicts."""
    rng = np.random.default_rng(seed)
    effects = EFFECT * np.eye(2)[rng.integers(2)]

    def labelled(x: Any) -> tuple[Any, Any]:
        chance = 1 / (1 + np.exp(-x @ effects))
        return x, (rng.uniform(size=len(x)) < chance).astype(np.float64)

    first = rng.normal(size=effort.records)
    x = np.stack([first, first + APART * rng.normal(size=effort.records)], 1)
    base = DiagonalGaussian.from_standard(np.zeros(2), np.full(2, SLAB**2))
    train, test = labelled(x), labelled(rng.normal(size=(effort.tests, 2)))
    return Problem(LogisticRegression(), spike_and_slab(), base, train, test)


PROBLEMS: dict[str, tuple[Callable[[int, Effort], Problem], Callable[[Any], Any], str, str]] = {
    "line with two instruments": (
        line,
        lambda points: points[:, 1] > 0,
        "lines",
        f"y = a + b x + Student noise ({FREEDOM:g} degrees, scale {SCALE:g}); N(0, 4) priors; "
        f"pairs of records, of slopes {SLOPE:g} and -{SLOPE:g}; test records of both",
    ),
    "twin features": (
        twins,
        lambda points: points[:, 0] > points[:, 1],
        "twins",
        f"x₂ = x₁ + {APART:g} noise, independent in the test; one effect is {EFFECT:g}, one 0; "
        f"each has the prior N(0, {SPIKE**2:.2g})/2 + N(0, {SLAB**2:g})/2",
    ),
}
"""By name: the problem of a seed, which points are in one of the modes, sets in `Effort`, words."""


def scores(name: str, seed: int, effort: Effort) -> dict[str, Any]:
    make, in_one, *_ = PROBLEMS[name]
    problem = make(seed, effort)
    points, weights = exact(problem)
    options = {"steps": effort.steps, "chains": {"burn_in": effort.burn_in}}
    one = float(weights[in_one(points)].sum())
    return {
        **curve(problem, effort.counts, seed, **options),
        TRUTH: score(problem, points, weights),
        "weight of the lesser mode": min(one, 1 - one),
    }


def curves(problems: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Test log likelihoods, a panel a problem: mixtures and ensembles by size, others as levels."""
    size = (3.4 * len(problems), 3.2)
    with harness.figure(path, 1, len(problems), figsize=size) as axes:
        for axis, (problem, told) in zip(axes[0], problems.items(), strict=True):
            for name, color in ((OURS, "#1d70b8"), (ENSEMBLE, "#c1121f")):
                sizes = [int(count) for count in told[name]]
                harness.errorbar(axis, sizes, [*told[name].values()], color=color, label=name)
                axis.set_xticks(sizes)
            styles = {MEAN_FIELD: "--", LANGEVIN: ":", TRUTH: "-"}
            for name, style in styles.items():
                level = told[name]["mean"]
                axis.axhline(level, color="black", linestyle=style, linewidth=0.9, label=name)
            axis.set_title(problem, fontsize=9)
            axis.set_xlabel("components")
        axes[0, 0].set_ylabel("test log likelihood, nats a record")
        axes[0, 0].legend(fontsize=7)


def run(place: harness.Place = PLACE, *, quick: bool = False) -> dict[str, Any]:
    effort, goals, reports = QUICK if quick else Effort(), [], {}
    few = dataclasses.replace(effort, lines=0, twins=0)
    for name, (_, _, sets, setting) in PROBLEMS.items():
        rows = []
        for seed in range(getattr(effort, sets)):
            make = functools.partial(scores, name, seed, effort)
            row = place.kept(f"{sets}-{seed}", make, few)
            if row is not None:
                rows.append(row)
                print(name, seed, {k: row[k] for k in (TRUTH, OURS, MEAN_FIELD)}, flush=True)
        if rows:
            most = str(max(effort.counts))
            gain = harness.statistics([row[OURS][most] - row[MEAN_FIELD] for row in rows])
            error = gain["standard error"]
            met = None if error is None else bool(gain["mean"] > 2 * error)
            goals.append({"goal": f"{name}: {GOAL}", "measured": gain, "met": met})
            reports[name] = {
                "setting": setting,
                "data sets": len(rows),
                "gain over mean-field VI": gain,
                **harness.over_seeds(rows),
            }
    found = {
        "paper": "the slides print no numbers",
        "truth": "by a grid: two parameters",
        "spread": "standard error of the mean over data sets",
        "seeds": "numbers of data sets",
        "goals": goals,
        "effort": dataclasses.asdict(effort),
        **reports,
    }
    place.write("two_modes", found)
    if reports:
        curves(reports, place.results / "two_modes.png")
    return found


if __name__ == "__main__":
    harness.command(run)
