"""Table 5: test log likelihoods of UCI tables: `python -m experiments.dark_knowledge.regression`.

The standard deviation of the noise and the prior variance of each layer's weights have inverse
gamma priors and are learnt on the training records alone, by expectation maximisation: chains are
run, expectations are averages over their draws. Units of y are then standard deviations of the
noise, so that the same compiled program serves all splits and sets of one size.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from experiments import harness
from experiments.dark_knowledge import CACHE, RESULTS
from experiments.data import UCI_NAMES, Regression, uci_regression
from posterity import distill
from posterity.distillation import Langevin, Perturbed
from posterity.errors import ConvergenceWarning
from posterity.models import NeuralNetwork
from posterity.models.forward import outputs
from posterity.networks import GaussianPrior, Layers

Array = NDArray[np.float64]
LOG_2PI = float(np.log(2 * np.pi))
SHAPE, RATE = 2.0, 1.0
"""Of the gamma priors of precisions, in units where y and weights are of order one."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a table is treated."""

    hidden: int = 50
    chains: int = 4
    batch: int = 100
    rounds: int = 2
    """Of expectation maximisation."""
    burn_in: int = 3000
    """Steps of each chain, in a round."""
    draws: int = 50
    """Of each chain, in a round."""
    thin: int = 40
    teacher_burn_in: int = 8000
    """Steps of each chain before the student listens."""
    spread: float = 0.1
    """Of the noise on the inputs that the student learns on, in standard deviations of columns."""
    steps: int = 10_000
    """Of the student; the teacher makes ``listen`` for each."""
    listen: int = 3


@dataclasses.dataclass(frozen=True)
class Units:
    """What brings records to order one, from the training records."""

    shift: Array
    scale: Array
    y_shift: float
    y_scale: float

    @classmethod
    def of(cls, x: Array, y: Array) -> Units:
        """Means and standard deviations; constant columns become zero."""
        spread = x.std(0)
        return cls(x.mean(0), np.where(spread > 0, spread, 1.0), float(y.mean()), float(y.std()))

    def inputs(self, x: Array) -> Array:
        """Standardised."""
        return (x - self.shift) / self.scale

    def targets(self, y: Array) -> Array:
        """Standardised."""
        return (y - self.y_shift) / self.y_scale


@dataclasses.dataclass(frozen=True)
class Learnt:
    """Hyperparameters, of standardised data."""

    noise_variance: float
    prior_variances: tuple[float, float]

    @property
    def deviation(self) -> float:
        """Of the noise."""
        return self.noise_variance**0.5

    def prior(self, net: NeuralNetwork) -> Any:
        """Of weights where y is in standard deviations of the noise."""
        first, second = self.prior_variances
        assert net.layers is not None
        return GaussianPrior((first, second / self.noise_variance)).network(net.layers)


START = Learnt(0.08, (0.3, 0.03))


def network(columns: int, settings: Settings) -> NeuralNetwork:
    """One hidden layer; noise of variance one."""
    layers = Layers.dense(columns, settings.hidden, 1)
    return NeuralNetwork.of_layers(layers, likelihood="gaussian", noise_variance=1.0)


def teacher(
    net: NeuralNetwork,
    x: Array,
    y: Array,
    learnt: Learnt,
    settings: Settings,
    *,
    burn_in: int | None = None,
    thin: int | None = None,
) -> Langevin:
    """Chains on standardised records."""
    data = (x.astype(np.float32), (y / learnt.deviation).astype(np.float32))
    return Langevin(
        net,
        learnt.prior(net),
        data,
        chains=settings.chains,
        batch_size=settings.batch,
        thin=settings.thin if thin is None else thin,
        burn_in=settings.burn_in if burn_in is None else burn_in,
    )


def learn(net: NeuralNetwork, x: Array, y: Array, settings: Settings, *, key: Any) -> Learnt:
    """Expectation maximisation over the precisions of noise and weights."""
    learnt = START
    for number in range(settings.rounds):
        own = jax.random.fold_in(key, number)
        chains = teacher(net, x, y, learnt, settings)
        draws = flat(net, chains.sample(settings.draws, key=own).stack)
        learnt = improved(net, x, y, learnt, draws)
    return learnt


def improved(net: NeuralNetwork, x: Array, y: Array, learnt: Learnt, draws: Array) -> Learnt:
    """The modes of noise and prior variances, given draws of the weights."""
    residuals = y - learnt.deviation * values(net, draws, x)
    layers: Any = net.layers
    first = layers.layers[0].inputs * layers.layers[0].outputs + layers.layers[0].outputs
    parts = draws[:, :first], draws[:, first:] * learnt.deviation
    # the output layer's weights are small, as there are many: in units of one over their number
    count = parts[1].shape[1]
    spread = [
        _mode((parts[0] ** 2).mean() * first, first),
        _mode((parts[1] ** 2).mean() * count * count, count) / count,
    ]
    noise = _mode((residuals**2).mean() * len(y), len(y), rate=0.01)
    return Learnt(float(noise), (float(spread[0]), float(spread[1])))


def _mode(total: float, count: int, rate: float = RATE) -> float:
    """Of a variance, by the mean of its precision, given a sum of so many squares."""
    return (rate + total / 2) / (SHAPE + count / 2)


def flat(net: NeuralNetwork, samples: Any) -> Array:
    """(S, p) weights of draws."""
    if isinstance(samples, np.ndarray):
        return samples
    leaves = jax.tree.leaves(samples)
    return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in leaves], 1)


def values(net: NeuralNetwork, draws: Array, x: Array) -> Array:
    """(S, n) what each of the draws says."""
    with jax.enable_x64(False):
        single = jnp.asarray(x, jnp.float32)
        found = [np.asarray(_values(net.layers, part, single)) for part in _parts(draws)]
    return np.concatenate(found).astype(np.float64)


def _parts(draws: Array) -> list[Any]:
    return [jnp.asarray(part, jnp.float32) for part in np.array_split(draws, -(-len(draws) // 200))]


def _each(layers: Any, draws: Any, x: Any) -> Any:
    return jax.vmap(lambda z: outputs(layers, z, x)[:, 0])(draws)


_values = jax.jit(_each, static_argnums=0)


# --- one split -------------------------------------------------------------------------------

TEACHER, STUDENT = "SGLD", "distilled"
PAPER = {TEACHER: -2.306, STUDENT: -2.350, "PBP": -2.574, "VI": -2.903, "SGD": -2.7639}
"""Table 5, Boston."""


def log_normal(y: Array, mean: Array, variance: Any) -> Array:
    """Of each record, in nats."""
    return -((y - mean) ** 2 / variance + np.log(variance) + LOG_2PI) / 2


def one_split(table: Regression, split: int, settings: Settings) -> dict[str, Any]:
    """Scores on the records of one split that were kept for tests, in the units of y."""
    test = table.is_test[split]
    units = Units.of(table.X[~test], table.y[~test])
    x, y = units.inputs(table.X[~test]), units.targets(table.y[~test])
    x_test, y_test = units.inputs(table.X[test]), units.targets(table.y[test])
    net, key = network(x.shape[1], settings), jax.random.key(split)
    begin = time.perf_counter()
    learnt = learn(net, x, y, settings, key=jax.random.fold_in(key, 0))
    half = time.perf_counter()
    chains = teacher(
        net, x, y, learnt, settings, burn_in=settings.teacher_burn_in, thin=settings.listen
    )
    # The probe is only looked at: what the teacher says of the test inputs, over all its draws.
    student = distill(
        chains,
        inputs=Perturbed(x.astype(np.float32), settings.spread),
        steps=settings.steps,
        key=jax.random.fold_in(key, 1),
        probe=x_test.astype(np.float32),
    )
    end = time.perf_counter()
    predicted = student.student.predict(x_test.astype(np.float32))
    noise = learnt.noise_variance
    (said, spread), (mean, variance) = (
        (learnt.deviation * own.mean.reshape(-1), noise * np.asarray(own.variance).reshape(-1))
        for own in (student.teacher, predicted)
    )
    # in the units of y a density is smaller by as much as y is wider
    offset = np.log(units.y_scale)
    found: dict[str, Any] = {
        "test log likelihood": {
            TEACHER: float(log_normal(y_test, said, spread + noise).mean() - offset),
            STUDENT: float(log_normal(y_test, mean, variance + noise).mean() - offset),
        },
        "RMSE": {
            TEACHER: float(np.sqrt(np.mean((said - y_test) ** 2)) * units.y_scale),
            STUDENT: float(np.sqrt(np.mean((mean - y_test) ** 2)) * units.y_scale),
        },
        "variance of the function": {
            "teacher's over the noise's": float(spread.mean() / noise),
            "student's over the noise's": float(variance.mean() / noise),
            "correlation of logarithms": float(np.corrcoef(np.log(spread), np.log(variance))[0, 1]),
        },
        "learnt": {
            "deviation of the noise": learnt.deviation * units.y_scale,
            "prior variance, hidden": learnt.prior_variances[0],
            "prior variance, output": learnt.prior_variances[1],
        },
        "student's gap by its own account": student.status.left,
        "temperature of the chains": float(student.temperature or np.nan),
        "seconds": {"hyperparameters": half - begin, "teacher and student": end - half},
    }
    return found


# --- the run ---------------------------------------------------------------------------------

LARGE = {
    "protein": Settings(hidden=100, batch=500, chains=4),
    **{name: Settings(batch=500, chains=4) for name in ("kin8nm", "naval", "power")},
}
WITHIN = 0.05


def run(
    names: Sequence[str],
    splits: int | None = None,
    results: Path = RESULTS,
    cache: Path = CACHE,
    *,
    only_kept: bool = False,
) -> dict[str, Any]:
    """Measure, judge and write; returns what `regression.json` holds.

    Splits that an earlier run kept are not run again; ``only_kept`` writes down what there is.
    """
    tables: dict[str, Any] = {}
    for name in names:
        table = uci_regression(name)
        count = len(table.is_test) if splits is None else min(splits, len(table.is_test))
        settings = LARGE.get(name, Settings())
        rows = []
        for split in range(count):
            make = functools.partial(one_split, table, split, settings)
            place = f"regression-{name}-{split}"
            row = harness.kept(cache, place, None if only_kept else make, settings)
            if row is not None:
                rows.append(row)
                print(name, split, row["test log likelihood"], flush=True)
        if rows:
            tables[name] = judged(name, rows, settings, len(table.is_test))
    found = {
        "paper": {"test log likelihood, table 5, Boston": PAPER},
        "protocol": "standard splits of hernandezlobato2015; standardised by the training records; "
        "log likelihood in nats a record, on the scale of y",
        "spread": "standard error of the mean over splits, which share records",
        "seeds": "the number of the split",
        "goals": [goal for own in tables.values() for goal in own.pop("goals")],
        "tables": tables,
        "made with": harness.versions(),
    }
    harness.write(results, "regression", found)
    return found


def judged(
    name: str, rows: Sequence[Mapping[str, Any]], settings: Settings, splits: int
) -> dict[str, Any]:
    """Statistics over splits, and the verdicts."""
    scores = [row["test log likelihood"] for row in rows]
    behind = harness.statistics([row[TEACHER] - row[STUDENT] for row in scores])
    statistics = harness.over_seeds(rows)
    goals = [
        harness.at_most(
            f"{name}: the student at most {WITHIN} nats below its teacher", behind, WITHIN
        )
    ]
    if name == "boston":
        measured = statistics["test log likelihood"][STUDENT]
        goals.append(harness.at_least("boston: distilled at least -2.35", measured, -2.35))
    return {
        "splits run, of": [len(rows), splits],
        "settings": dataclasses.asdict(settings),
        "teacher less student": behind,
        **statistics,
        "goals": goals,
    }


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = harness.command_line(__doc__, RESULTS, CACHE)
    parser.add_argument("tables", nargs="*", default=list(UCI_NAMES), help="names; all by default")
    parser.add_argument("--splits", type=int, default=None, help="the first so many")
    chosen = parser.parse_args(arguments)
    # what has not converged is judged by its score below
    warnings.simplefilter("ignore", ConvergenceWarning)
    found = run(
        chosen.tables, chosen.splits, chosen.results, chosen.cache, only_kept=chosen.only_kept
    )
    for goal in found["goals"]:
        print("met " if goal["met"] else "not met ", goal["goal"], goal["measured"]["mean"])


if __name__ == "__main__":
    main()
