"""Posteriors of the Inference Gym, whose moments are known: `python -m experiments.pursuit.gym`.

    pip install --no-deps inference_gym tfp-nightly dm-tree

All methods work on flat vectors of numbers without bounds, and begin with what nothing of the
target is in: a base of mean zero and deviation three. What is measured is of the gym's own
parameters: the worst squared bias of a mean in units of the true variance, and the worst logarithm
of a deviation over the true one. Peers have as many gradients as `pursue` took.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posterity
from experiments import harness
from experiments.pursuit import CACHE, RESULTS, peers
from posterity.errors import ConvergenceWarning, ParameterError
from posterity.families import Gaussian
from posterity.pursuit import Fixed

TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "Banana": ("Banana", {}),
    "Eight schools": ("EightSchools", {}),
    "Neal's funnel": ("NealsFunnel", {}),
    "Quartic, not identified": ("NonIdentifiableQuarticMeasurementModel", {}),
    "Ill-conditioned Gaussian": ("IllConditionedGaussian", {}),
    "Brownian motion": ("BrownianMotionMissingMiddleObservations", {}),
    "Brownian motion, scales unknown": ("BrownianMotionUnknownScalesMissingMiddleObservations", {}),
    "Log-Gaussian Cox process": ("SyntheticLogGaussianCoxProcess", {}),
    "Stochastic volatility": ("StochasticVolatilitySP500Small", {"use_markov_chain": True}),
}
DEVIATION = 3.0
"""Of the base, in every coordinate."""
DRAWS = 10_000
MANY = 30
"""Dimensions beyond which components are few and one λ is tried."""
RATE = 0.01
"""Of Adam, for NumPyro's guides; halved twice over a run."""
MOST = 200_000
"""Gradients of a peer."""
WRONG = 0.1
"""True variances: a squared bias that nothing may have that says it has converged."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """A target of the gym over flat vectors without bounds, and the truth about its parameters."""

    size: int
    log_density: Callable[[Any], Any]
    parameters: Callable[[Any], Any]
    mean: np.ndarray
    deviation: np.ndarray


def problem(name: str) -> Problem:
    """A target by its name."""
    from inference_gym import using_jax

    kind, options = TARGETS[name]
    own = getattr(using_jax.targets, kind)(**options)
    model = using_jax.targets.VectorModel(own, flatten_sample_transformations=True)
    bijector, truth = model.default_event_space_bijector, model.sample_transformations["identity"]

    def log_density(z: Any) -> Any:
        # A copy: its bijectors keep what they computed by the identity of their arguments.
        volume = bijector.forward_log_det_jacobian(z + 0.0, event_ndims=1)
        return model.unnormalized_log_prob(bijector.forward(z)) + volume

    mean, deviation = truth.ground_truth_mean, truth.ground_truth_standard_deviation
    if deviation is None:  # of two parameters, by quadrature
        axis = np.linspace(-5, 5, 2001)
        grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
        logs = np.asarray(jax.lax.map(log_density, jnp.asarray(grid), batch_size=10_000))
        weights = np.exp(logs - logs.max())
        deviation = np.sqrt(weights @ grid**2 / weights.sum())
    return Problem(
        int(model.event_shape[0]),
        log_density,
        jax.jit(jax.vmap(lambda z: truth(bijector.forward(z)))),
        np.asarray(mean, float),
        np.asarray(deviation, float),
    )


@dataclasses.dataclass(frozen=True)
class Found:
    """Draws (n, d), and what they cost."""

    draws: Any
    gradients: int
    status: str = ""


def pursued(target: Problem, seed: int, _: int) -> Found:
    """By `posterity.pursue`, its components Gaussians of any covariance."""
    size = target.size
    base = Gaussian.from_standard(np.zeros(size), DEVIATION**2 * np.eye(size))
    few: dict[str, Any] = {"components": 2, "finalists": 1, "schedule": Fixed(1.0)}
    options = few if size > MANY else {}
    try:
        result = posterity.pursue(target.log_density, base, key=jax.random.key(seed), **options)
    except ParameterError as error:
        return Found(np.full((2, size), np.nan), 0, f"failed: {error}")
    draws = result.posterior.sample(jax.random.key(seed + 1), (DRAWS,))
    return Found(draws, result.trace[-1].evaluations, str(result.status))


def guided(kind: str, target: Problem, seed: int, budget: int) -> Found:
    """By one of NumPyro's automatic guides."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO, autoguide
    from numpyro.optim import Adam

    def model() -> None:
        flat = dist.ImproperUniform(dist.constraints.real_vector, (), (target.size,))
        numpyro.factor("density", target.log_density(numpyro.sample("z", flat)))

    start = numpyro.infer.init_to_value(values={"z": np.zeros(target.size)})
    guide = getattr(autoguide, kind)(model, init_loc_fn=start)
    schedule = lambda step: RATE * 0.25 ** (step / budget)
    svi = SVI(model, guide, Adam(schedule), Trace_ELBO())
    ended = svi.run(jax.random.key(seed), budget, progress_bar=False)
    drawn = guide.sample_posterior(jax.random.key(seed + 1), ended.params, sample_shape=(DRAWS,))
    return Found(drawn["z"], budget)


def found_a_path(target: Problem, seed: int, budget: int) -> Found:
    """By BlackJAX's Pathfinder, from a draw of the base."""
    import blackjax

    begin, draw = jax.random.split(jax.random.key(seed))
    start = DEVIATION * jax.random.normal(begin, (target.size,))
    most = min(budget, 100)
    state, _ = blackjax.vi.pathfinder.approximate(
        begin, target.log_density, start, num_samples=200, maxiter=most
    )
    draws, _ = blackjax.vi.pathfinder.sample(draw, state, DRAWS)
    return Found(draws, most)


def sampled(target: Problem, seed: int, budget: int) -> Found:
    """By NumPyro's NUTS: one chain, as far as the gradients go."""
    start = 0.1 * np.random.default_rng(seed).normal(size=(1, target.size))
    draws, before, each = peers.drawn_by_nuts(
        target.log_density, start, key=jax.random.key(seed), warmup=500, draws=2000
    )
    total = before + np.cumsum(each)
    kept = max(int((total <= budget).sum()), 2)
    return Found(draws[:kept], int(total[kept - 1]))


METHODS: dict[str, Callable[[Problem, int, int], Found]] = {
    "pursue": pursued,
    "AutoMultivariateNormal": functools.partial(guided, "AutoMultivariateNormal"),
    "AutoLaplaceApproximation": functools.partial(guided, "AutoLaplaceApproximation"),
    "AutoIAFNormal": functools.partial(guided, "AutoIAFNormal"),
    "Pathfinder": found_a_path,
    "NUTS": sampled,
}


def measured(name: str, method: str, seed: int, budget: int) -> dict[str, Any]:
    """One run, judged by the truth."""
    target, clock = problem(name), harness.Clock()
    with jax.enable_x64(True):
        found = METHODS[method](target, seed, budget)
        seconds = clock.seconds
        drawn = np.asarray(target.parameters(jnp.asarray(found.draws)), np.float64)
    bias = (drawn.mean(0) - target.mean) / target.deviation
    return {
        "squared bias": harness.rounded((bias**2).max()),
        "log ratio of deviations": harness.rounded(
            np.abs(np.log(drawn.std(0) / target.deviation)).max()
        ),
        "gradients": found.gradients,
        **seconds,
        "status": found.status,
    }


def run(
    names: list[str], methods: list[str], seeds: int, results: Path, cache: Path, only_kept: bool
) -> dict[str, Any]:
    """All that is asked for; what was measured before is kept in the cache."""
    tables: dict[str, Any] = {}
    for name in TARGETS:
        for seed in range(seeds):
            budget = MOST
            for method in METHODS:
                key = f"gym-{name}-{method}-{seed}"
                asked = name in names and method in methods and not only_kept
                compute = functools.partial(measured, name, method, seed, budget)
                row = harness.kept(cache, key, compute if asked else None)
                if row is None:
                    continue
                if method == "pursue" and row["gradients"]:
                    budget = min(row["gradients"], MOST)
                tables.setdefault(name, {}).setdefault(method, []).append(row)
                harness.write(results, "gym", {"targets": tables, "wrong": wrong(tables)})
                print(name, method, seed, row, flush=True)
    return tables


def wrong(tables: dict[str, Any]) -> list[str]:
    """Targets whose pursuit says that it has converged, and is wrong by more than it may be."""
    return [
        name
        for name, table in tables.items()
        for row in table.get("pursue", [])
        if row["status"].startswith("converged") and row["squared bias"] > WRONG
    ]


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = harness.command_line(__doc__, RESULTS, CACHE)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help="names; all by default")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="all by default")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ConvergenceWarning)
    names = list(TARGETS)[:1] if chosen.quick else chosen.targets
    run(names, chosen.methods, chosen.seeds, chosen.results, chosen.cache, chosen.only_kept)


if __name__ == "__main__":
    main()
