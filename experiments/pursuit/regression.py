"""Regression by pursued mixtures: `python -m experiments.pursuit.regression`.

First a line with Student noise and two instruments that contradict each other, so that the
posterior has two modes; then networks of one hidden layer on UCI tables.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import harness
from experiments.dark_knowledge.regression import Units
from experiments.data import Regression, uci_regression
from experiments.pursuit import CACHE, RESULTS, pictures, predictions
from experiments.pursuit.predictions import MEAN_FIELD, OURS, TRUTH, Problem
from posterity.errors import ConvergenceWarning
from posterity.families import DiagonalGaussian
from posterity.models import FunctionModel, NeuralNetwork
from posterity.networks import GaussianPrior, Layers, train

TABLES = ("boston", "yacht", "energy", "concrete")
FREEDOM, SCALE, SLOPE = 2.0, 0.3, 2.0


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is run."""

    counts: tuple[int, ...] = (1, 2, 4, 8)
    steps: int = 4000
    """Of rivals' climbs."""
    burn_in: int | None = None
    """Of the chains of SGLD."""
    """Components."""
    sets: int = 10
    """Of records of the line."""
    pairs: int = 5
    """Of records of the line: one an instrument."""
    tests: int = 400
    tables: tuple[str, ...] = TABLES
    splits: int = 5
    """Of 20."""
    hidden: int = 20
    network_counts: tuple[int, ...] = (1, 2, 4)
    batch: int | None = None
    vi_steps: int | None = None


FULL = Effort()
QUICK = Effort(counts=(1, 2), steps=50, burn_in=250, sets=1, pairs=4, tests=20, tables=())


# --- a line ----------------------------------------------------------------------------------


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


def one_line(seed: int, effort: Effort) -> dict[str, Any]:
    """Scores on one set of records, and the weight of the lesser mode."""
    problem = line(seed, effort)
    points, weights = predictions.exact(problem)
    chains = {"burn_in": effort.burn_in}
    found = predictions.curve(problem, effort.counts, seed, steps=effort.steps, chains=chains)
    up = float(weights[points[:, 1] > 0].sum())
    return {
        **found,
        TRUTH: predictions.score(problem, points, weights),
        "weight of the lesser mode": min(up, 1 - up),
    }


# --- networks --------------------------------------------------------------------------------


def noise_deviation(x: Any, y: Any, hidden: int, seed: int) -> float:
    """Of standardised y: what one network leaves of a tenth of the training records."""
    order = np.random.default_rng(seed).permutation(len(y))
    out, own = order[: len(y) // 10], order[len(y) // 10 :]
    problem = network(x[own], y[own], x[out], y[out], hidden, 0.3)
    mode = predictions.modes(problem, 1, seed)[0]
    said = np.asarray(problem.model.outputs(mode.astype(np.float32), problem.test[0]))
    return float(np.sqrt(np.mean((0.3 * said.reshape(-1) - y[out]) ** 2)))


def network(x: Any, y: Any, x_test: Any, y_test: Any, hidden: int, deviation: float) -> Problem:
    """y in standard deviations of the noise: one compiled program serves all splits."""
    layers = Layers.dense(x.shape[1], hidden, 1)
    net = NeuralNetwork.of_layers(layers, likelihood="gaussian", noise_variance=1.0)
    variances = prior_variances(hidden, deviation)
    prior = GaussianPrior(variances).network(layers)
    mean, variance = np.asarray(prior.mean), np.asarray(prior.variance)
    column = lambda own: (own / deviation)[:, None]
    law = DiagonalGaussian.from_standard(mean, variance)
    return Problem(net, law, law, (x, column(y)), (x_test, column(y_test)))


def prior_variances(hidden: int, deviation: float) -> tuple[float, float]:
    """Of weights into hidden units and out of them."""
    return (1.0, 1.0 / hidden / deviation**2)


def one_split(table: Regression, split: int, effort: Effort) -> dict[str, Any]:
    """Scores on the records of one split that were kept for tests, in the units of y."""
    test = table.is_test[split]
    units = Units.of(table.X[~test], table.y[~test])
    x, y = units.inputs(table.X[~test]), units.targets(table.y[~test])
    deviation = noise_deviation(x, y, effort.hidden, split)
    problem = network(
        x, y, units.inputs(table.X[test]), units.targets(table.y[test]), effort.hidden, deviation
    )
    rival = variational(problem, effort, deviation, split)
    chains = {"chains": 4, "thin": 40, "burn_in": 5000}
    found = predictions.curve(
        problem, effort.network_counts, split, batch=effort.batch, chains=chains, rival=rival
    )
    # in the units of y a density is smaller by as much as y is wider
    offset = math.log(units.y_scale * deviation)
    lower = lambda own: (
        {k: v - offset for k, v in own.items()} if isinstance(own, dict) else own - offset
    )
    scores = (OURS, predictions.ENSEMBLE, MEAN_FIELD, predictions.LANGEVIN)
    return {
        **{name: lower(found[name]) for name in scores},
        **{name: own for name, own in found.items() if name not in scores},
        "deviation of the noise": deviation * units.y_scale,
    }


def variational(problem: Problem, effort: Effort, deviation: float, seed: int) -> Any:
    """Draws of mean-field VI by the library's own training of networks."""
    net: Any = problem.model
    fitted = train(
        net.layers, tuple(own.astype(np.float32) for own in problem.train),
        key=jax.random.key(seed), likelihood="gaussian", noise_variance=1.0,
        prior=GaussianPrior(prior_variances(effort.hidden, deviation)), steps=effort.vi_steps,
    )  # fmt: skip
    posterior = fitted.posterior
    law = DiagonalGaussian.from_standard(
        np.asarray(posterior.mean, np.float64), np.asarray(posterior.variance, np.float64)
    )
    return predictions.draws_of(law, seed)


# --- the run ---------------------------------------------------------------------------------


def run(
    effort: Effort, results: Path = RESULTS, cache: Path = CACHE, *, only_kept: bool = False
) -> dict[str, Any]:
    """Measure, judge, draw and write; returns what `regression.json` holds."""
    goals, curves = [], {}
    small = dataclasses.replace(effort, tables=(), splits=0, sets=0)
    rows = []
    for seed in range(effort.sets):
        make = functools.partial(one_line, seed, effort)
        row = harness.kept(cache, f"line-{seed}", None if only_kept else make, small)
        if row is not None:
            rows.append(row)
            print("line", seed, {k: row[k] for k in (TRUTH, OURS, MEAN_FIELD)}, flush=True)
    line_report = None
    if rows:
        most = max(effort.counts)
        own = predictions.gain(rows, most)
        goals.append(predictions.verdict("line with two instruments", own))
        line_report = {
            "sets": len(rows),
            "gain over mean-field VI": own,
            **harness.over_seeds(rows),
        }
        curves["line, two instruments"] = rows
    tables = {}
    for name in effort.tables:
        table = uci_regression(name)
        rows = []
        for split in range(effort.splits):
            make = functools.partial(one_split, table, split, effort)
            place = f"network-{name}-{split}"
            row = harness.kept(cache, place, None if only_kept else make, small)
            if row is not None:
                rows.append(row)
                print(name, split, {k: row[k] for k in (OURS, MEAN_FIELD)}, flush=True)
        if rows:
            most = max(effort.network_counts)
            own = predictions.gain(rows, most)
            goals.append(predictions.verdict(f"{name}, network, {most} components", own))
            tables[name] = {
                "splits run, of": [len(rows), len(table.is_test)],
                "gain over mean-field VI": own,
                **harness.over_seeds(rows),
            }
            curves[name] = rows
    found = {
        "paper": "the slides print no numbers",
        "line": line_report,
        "line's setting": f"y = a + b x + Student noise ({FREEDOM:g} degrees, scale {SCALE:g}); "
        f"N(0, 4) priors; {effort.pairs} pairs of records, of slopes {SLOPE:g} and -{SLOPE:g}; "
        f"{effort.tests} test records of both; truth by a grid",
        "networks": tables,
        "networks' setting": f"one hidden layer of {effort.hidden} rectified units; weights "
        f"N(0, 1) and N(0, 1/{effort.hidden}); noise known: what one network leaves of a tenth of "
        "the training records; standard splits; mean-field VI is the library's own training, with "
        "local noise; log likelihood in nats a record, on the scale of y",
        "spread": "standard error of the mean over data sets, or over splits, which share records",
        "seeds": "numbers of data sets and splits",
        "goals": goals,
        "effort": dataclasses.asdict(effort),
        "made with": harness.versions(),
    }
    harness.write(results, "regression", found)
    if curves:
        pictures.curves(curves, results / "regression.png")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = harness.command_line(__doc__, RESULTS, CACHE)
    parser.add_argument("tables", nargs="*", default=list(TABLES), help="names; none: see --line")
    parser.add_argument("--line", action="store_true", help="the line alone")
    parser.add_argument("--splits", type=int, default=FULL.splits, help="the first so many")
    chosen = parser.parse_args(arguments)
    # what has not converged is judged by its score
    warnings.simplefilter("ignore", ConvergenceWarning)
    tables = () if chosen.line else tuple(chosen.tables)
    effort = QUICK if chosen.quick else dataclasses.replace(
        FULL, tables=tables, splits=chosen.splits
    )  # fmt: skip
    found = run(effort, chosen.results, chosen.cache, only_kept=chosen.only_kept)
    harness.print_goals(found["goals"])


if __name__ == "__main__":
    main()
