"""Posteriors of the Inference Gym, whose moments are known: `python -m experiments.pursuit.gym`.

    pip install --no-deps inference_gym tfp-nightly dm-tree six decorator gast flowjax paramax

All methods work on flat vectors of numbers without bounds, and begin with what nothing of the
target is in: a base of mean zero and deviation three. What is measured is of the gym's own
parameters: the worst squared bias of a mean in units of the true variance, and the worst logarithm
of a deviation over the true one. Peers have as many gradients as `pursue` took.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

import posterity
from experiments import harness
from experiments.pursuit import CACHE, RESULTS, peers
from posterity.families import Gaussian
from posterity.pursuit import Fixed, reweighted

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
"""Dimensions beyond which components are found from one peak each, by one λ."""
MORE = 101
"""Dimensions from which there is one component."""
RATE = 0.01
"""Of Adam, for NumPyro's guides; halved twice over a run."""
BATCH = 10
"""Draws at each of these steps."""
MOST = 200_000
"""Gradients of a peer."""
PATH = 100
"""Steps of one path of Pathfinder."""
RIGHT = 0.01
"""True variances: a squared bias that is little."""
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
    if "UnknownScales" in kind:
        mean, deviation = brownian_truth()
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


def brownian_truth() -> tuple[np.ndarray, np.ndarray]:
    """Means and deviations of a Brownian motion's parameters, by quadrature over its two scales.

    Given these all else is Gaussian. The means that the gym prints for this target are up to .1
    variances off.
    """
    from inference_gym.internal.datasets import brownian_motion_missing_middle_observations as data

    y, times = np.asarray(data.OBSERVED_LOC, float), np.arange(1.0, 31.0)
    seen = np.isfinite(y)
    values, vectors = np.linalg.eigh(np.minimum.outer(times[seen], times[seen]))
    between, projected = np.minimum.outer(times, times[seen]) @ vectors, vectors.T @ y[seen]
    logs = np.linspace(np.log(1e-5), np.log(5.0), 300)
    steps, noise = (np.exp(2 * own).ravel() for own in np.meshgrid(logs, logs))
    variances = steps[:, None] * values + noise[:, None]
    fit = -(projected**2 / variances + np.log(variances)).sum(1) / 2
    # Both scales are log normal (0, 2).
    weights = scipy.special.softmax(fit - (np.log(steps) ** 2 + np.log(noise) ** 2) / 32)
    kept = weights > 1e-12
    weights, steps, noise, variances = (a[kept] for a in (weights, steps, noise, variances))
    means = steps[:, None] * (projected / variances) @ between.T
    left = steps[:, None] * (times - steps[:, None] * (1 / variances) @ (between**2).T)
    all_means = np.c_[np.sqrt(steps), means, np.sqrt(noise)]
    mean = weights @ all_means
    within = np.c_[np.zeros(len(steps)), left, np.zeros(len(steps))]
    return mean, np.sqrt(weights @ ((all_means - mean) ** 2 + within))


@dataclasses.dataclass(frozen=True)
class Found:
    """Draws (n, d), what they cost, and their weights (n,) where these differ."""

    draws: Any
    gradients: int
    status: str = ""
    weights: Any = None


def pursued(target: Problem, seed: int, _: int) -> tuple[Found, Found]:
    """By `posterity.pursue`, its components Gaussians of any covariance; and reweighted."""
    size, key = target.size, jax.random.key(seed)
    base = Gaussian.from_standard(np.zeros(size), DEVIATION**2 * np.eye(size))
    few = {"components": 8 if size < MORE else 1, "finalists": 1, "schedule": Fixed(1.0)}
    options: dict[str, Any] = few if size > MANY else {}
    result = posterity.pursue(target.log_density, base, key=key, **options)
    count = result.trace[-1].evaluations
    drawn = result.posterior.sample(jax.random.key(seed + 1), (DRAWS,))
    weighted = reweighted(result.posterior, target.log_density, key=key, draws=DRAWS)
    tail = f"tail of weights {weighted.shape:.2f}, {100 * weighted.effective:.2g} % effective"
    return (
        Found(drawn, count, str(result.status)),
        Found(weighted.z, count, tail, weighted.weights),
    )


def guided(kind: str, target: Problem, seed: int, budget: int) -> Found:
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO, autoguide
    from numpyro.optim import Adam

    def model() -> None:
        flat = dist.ImproperUniform(dist.constraints.real_vector, (), (target.size,))
        numpyro.factor("density", target.log_density(numpyro.sample("z", flat)))

    start = numpyro.infer.init_to_value(values={"z": np.zeros(target.size)})
    guide, steps = getattr(autoguide, kind)(model, init_loc_fn=start), budget // BATCH
    schedule = lambda step: RATE * 0.25 ** (step / steps)
    svi = SVI(model, guide, Adam(schedule), Trace_ELBO(num_particles=BATCH))
    ended = svi.run(jax.random.key(seed), steps, progress_bar=False)
    drawn = guide.sample_posterior(jax.random.key(seed + 1), ended.params, sample_shape=(DRAWS,))
    return Found(drawn["z"], steps * BATCH)


def flowed(target: Problem, seed: int, budget: int) -> Found:
    """By flowjax's block neural autoregressive flow, its widths and optimiser as they come."""
    from flowjax.distributions import StandardNormal
    from flowjax.flows import block_neural_autoregressive_flow
    from flowjax.train import fit_to_key_based_loss
    from flowjax.train.losses import ElboLoss

    first, fit, draw = jax.random.split(jax.random.key(seed), 3)
    normal, steps = StandardNormal((target.size,)), budget // BATCH
    flow = block_neural_autoregressive_flow(first, base_dist=normal, invert=False)
    fitted, _ = fit_to_key_based_loss(
        fit,
        flow,
        loss_fn=ElboLoss(target.log_density, BATCH),
        steps=steps,
        learning_rate=1e-3,
        show_progress=False,
    )
    return Found(fitted.sample(draw, (DRAWS,)), steps * BATCH)


def found_paths(paths: int, target: Problem, seed: int, budget: int) -> Found:
    """By BlackJAX's Pathfinder, from draws of the base; several are weighted to the target."""
    import blackjax.vi.multipathfinder as several
    from blackjax.vi import pathfinder

    begin, draw = jax.random.split(jax.random.key(seed))
    starts = DEVIATION * jax.random.normal(begin, (paths, target.size))
    most = min(budget // paths, PATH)
    if paths == 1:
        state, _ = pathfinder.approximate(
            begin, target.log_density, starts[0], num_samples=200, maxiter=most
        )
        return Found(pathfinder.sample(draw, state, DRAWS)[0], most)
    state, _ = several.multi_approximate(
        begin, target.log_density, starts, num_samples=DRAWS // paths, maxiter=most
    )
    weights, tail = several.psis_weights(state)
    weights = np.exp(np.asarray(weights, np.float64))
    drawn = jnp.reshape(state.samples, (-1, target.size))
    return Found(drawn, most * paths, f"tail of weights {tail:.2f}", weights / weights.sum())


def sampled(target: Problem, seed: int, budget: int) -> Found:
    """By NumPyro's NUTS: one chain, as far as the gradients go."""
    start = 0.1 * np.random.default_rng(seed).normal(size=(1, target.size))
    draws, before, each = peers.drawn_by_nuts(
        target.log_density, start, key=jax.random.key(seed), warmup=500, draws=2000
    )
    total = before + np.cumsum(each)
    kept = max(int((total <= budget).sum()), 2)
    return Found(draws[:kept], int(total[kept - 1]))


OURS, CORRECTED = "pursue", "pursue, reweighted"
VARIATIONAL: dict[str, Callable[[Problem, int, int], Found]] = {
    "AutoMultivariateNormal": functools.partial(guided, "AutoMultivariateNormal"),
    "AutoLaplaceApproximation": functools.partial(guided, "AutoLaplaceApproximation"),
    "AutoIAFNormal": functools.partial(guided, "AutoIAFNormal"),
    "Block neural autoregressive flow": flowed,
    "Pathfinder": functools.partial(found_paths, 1),
    "Pathfinder, 16 paths": functools.partial(found_paths, 16),
}
PEERS = {**VARIATIONAL, "NUTS": sampled}


def measured(name: str, method: str, seed: int, budget: int) -> list[dict[str, Any]]:
    """One run, judged by the truth; of ours there are two rows."""
    target, clock = problem(name), harness.Clock()
    with jax.enable_x64(True):
        run = pursued if method == OURS else PEERS[method]
        found = run(target, seed, budget)
        seconds = clock.seconds
        several = found if isinstance(found, tuple) else (found,)
        return [_judged(target, one, seconds) for one in several]


def _judged(target: Problem, found: Found, seconds: dict[str, float]) -> dict[str, Any]:
    drawn = np.asarray(target.parameters(jnp.asarray(found.draws)), np.float64)
    mean = np.average(drawn, 0, found.weights)
    deviation = np.sqrt(np.average((drawn - mean) ** 2, 0, found.weights))
    return {
        "squared bias": harness.rounded((((mean - target.mean) / target.deviation) ** 2).max()),
        "log ratio of deviations": harness.rounded(
            np.abs(np.log(deviation / target.deviation)).max()
        ),
        "gradients": found.gradients,
        **seconds,
        "status": found.status,
    }


def run(
    targets: tuple[str, ...] = tuple(TARGETS),
    /,
    *,
    methods: tuple[str, ...] = (OURS, *PEERS),
    seeds: int = 3,
    results: Path = RESULTS,
    cache: Path = CACHE,
    only_kept: bool = False,
    quick: bool = False,
) -> None:
    """All that is asked for; what was measured before is kept in the cache."""
    names = targets[:1] if quick else targets
    tables: dict[str, Any] = {}
    for name, seed in itertools.product(TARGETS, range(seeds)):
        budget = MOST
        for method in (OURS, *PEERS):
            key = f"gym-{name}-{method}-{seed}"
            asked = name in names and method in methods and not only_kept
            compute = functools.partial(measured, name, method, seed, budget)
            rows = harness.kept(cache, key, compute if asked else None)
            if rows is None:
                continue
            if method == OURS:
                budget = min(rows[0]["gradients"], MOST)
            titles = (OURS, CORRECTED) if method == OURS else (method,)
            for title, row in zip(titles, rows, strict=True):
                tables.setdefault(name, {}).setdefault(title, []).append(row)
                print(name, title, seed, row, flush=True)
            document = {"targets": tables, "goals": goals(tables)}
            harness.write(results, "gym", document)
    picture(tables, results / "gym.png")


def middle(rows: list[dict[str, Any]]) -> float:
    """The median over seeds of the worst squared bias."""
    return float(np.median([row["squared bias"] for row in rows]))


def goals(tables: dict[str, Any]) -> list[dict[str, Any]]:
    """What is to hold of each target, by medians over seeds, beside the peers that have run."""
    verdicts = []
    for name, table in tables.items():
        if OURS not in table:
            continue
        best = min((middle(table[peer]) for peer in VARIATIONAL if peer in table), default=np.inf)
        bound = max(RIGHT, best / 2) if np.isfinite(best) else RIGHT
        false = [
            row
            for row in table.get(OURS, [])
            if row["status"].startswith("converged") and row["squared bias"] > WRONG
        ]
        verdicts.append({
            "goal": f"{name}: squared bias at most {bound:.2g}, never converged above {WRONG}",
            "measured": {title: middle(table[title]) for title in (OURS, CORRECTED)},
            "best variational peer": harness.rounded(best),
            "met": middle(table[OURS]) <= bound and not false,
            "met, reweighted": middle(table[CORRECTED]) <= bound,
        })  # fmt: skip
    return verdicts


def picture(tables: dict[str, Any], path: Path) -> None:
    """A row a target: the worst squared bias of each method and seed."""
    methods = [OURS, CORRECTED, *PEERS]
    with harness.figure(path, legend=3, figsize=(8, 5.5)) as axes:
        axis = axes[0, 0]
        for place, method in enumerate(methods):
            points = [
                (np.clip(row["squared bias"], 1e-5, 1e4), -at - 0.08 * place + 0.32)
                for at, table in enumerate(tables.values())
                for row in table.get(method, [])
            ]
            if points:
                axis.plot(
                    *np.transpose(points), "o", markersize=3.5, color=f"C{place}", label=method
                )
        axis.axvline(RIGHT, color="black", linewidth=0.7)
        axis.set_yticks(-np.arange(len(tables)), list(tables))
        axis.set(xscale="log", xlabel="worst squared bias, true variances")


if __name__ == "__main__":
    harness.command(run, targets=TARGETS)
