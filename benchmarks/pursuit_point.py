"""One set-up of the benchmark of pursuit, in a process of its own: JSON in as the argument.

Everyone approximates the same density with Gaussians of independent coordinates, which are added
one at a time from draws of the same base law; KL(q ‖ p) is taken by quadrature, off the clock.
"""

import dataclasses
import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure import answer
from experiments.pursuit.targets import TARGETS, Gaussians, Target, divergence

Note = Callable[[Gaussians], None]  # called with the mixture each time that a component came in
WIDEST, NARROWEST, FAR = 2.0, 1e-3, 4.0
"""In standard deviations of the base law: the bounds that peers' components have, as the theory of
boosting asks for; without them they leave for ever at the second component."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """A target, how many components at most, and steps and draws of a peer's component."""

    target: str
    components: int
    steps: int = 2000
    draws: int = 16
    rate: float = 0.05

    @property
    def density(self) -> Target:
        return TARGETS[self.target]()


def ours(problem: Problem, seed: int, note: Note) -> None:
    """`posterity.pursue` with its defaults, which notes the greedy mixtures and the polished one.

    It stops by itself.
    """
    import jax

    import posterity
    from experiments.pursuit.densities import gaussians
    from posterity.families import DiagonalGaussian

    target = problem.density
    base = DiagonalGaussian.from_standard(
        np.zeros(target.size), np.full(target.size, target.reach**2)
    )
    posterity.pursue(
        target.log_density,
        base,
        components=problem.components,
        key=jax.random.key(seed),
        progress=lambda step: note(gaussians(step.result.posterior)),
    )


def numpyro_loop(problem: Problem, seed: int, note: Note) -> None:
    """A boosting loop on NumPyro's SVI: one compiled scan serves all components.

    The residual bound is the evidence bound of a model with a factor -log q_t; weights are
    2 / (t + 2).
    """
    import jax
    import jax.numpy as jnp

    target, rng = problem.density, np.random.default_rng(seed)
    size, most = target.size, problem.components
    run = _numpyro_program(problem)
    weights, means = np.zeros(most), np.zeros((most, size))
    deviations = np.ones((most, size))
    for number in range(most):
        mixture = tuple(jnp.asarray(own, jnp.float32) for own in (weights, means, deviations))
        start = jnp.asarray(target.reach * rng.normal(size=size), jnp.float32)
        found = run(jax.random.key(1000 * seed + number), start, mixture, float(number > 0))
        weights = _harmonic(weights, number)
        means[number] = np.asarray(found["mean"])
        deviations[number] = np.asarray(found["deviation"])
        note(Gaussians.of(weights[: number + 1], means[: number + 1], deviations[: number + 1]))


_programs: dict[Problem, Any] = {}


def _numpyro_program(problem: Problem) -> Any:
    """Compiled at its first call, and kept: a second run is a warm one."""
    if problem in _programs:
        return _programs[problem]
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO

    target = problem.density

    def model(start: Any, mixture: Any, grown: Any) -> None:
        space = dist.ImproperUniform(dist.constraints.real_vector, (), (target.size,))
        z = numpyro.sample("z", space)
        weights, means, deviations = mixture
        each = dist.Normal(means, deviations).to_event(1).log_prob(z)
        log_q = jax.nn.logsumexp(each, b=weights)
        numpyro.factor("target", target.log_density(z))
        # at first there is no mixture
        numpyro.factor("away", -jnp.where(grown > 0, log_q, 0.0))

    def guide(start: Any, mixture: Any, grown: Any) -> None:
        near = dist.constraints.interval(-FAR * target.reach, FAR * target.reach)
        narrow = dist.constraints.interval(NARROWEST * target.reach, WIDEST * target.reach)
        first = jnp.full(target.size, 0.3 * target.reach)
        mean = numpyro.param("mean", start, constraint=near)
        deviation = numpyro.param("deviation", first, constraint=narrow)
        numpyro.sample("z", dist.Normal(mean, deviation).to_event(1))

    fall = lambda step: problem.rate * (1 + jnp.cos(jnp.pi * step / problem.steps)) / 2
    optimiser = numpyro.optim.Adam(fall)
    svi = SVI(model, guide, optimiser, Trace_ELBO(num_particles=problem.draws))

    @jax.jit
    def run(key: Any, start: Any, mixture: Any, grown: Any) -> Any:
        state = svi.init(key, start, mixture, grown)
        step = lambda state, _: (svi.update(state, start, mixture, grown)[0], None)
        state, _ = jax.lax.scan(step, state, None, length=problem.steps)
        return svi.get_params(state)

    _programs[problem] = run
    return run


def _harmonic(weights: np.ndarray, number: int) -> np.ndarray:
    new = 2 / (number + 2)
    weights = (1 - new) * weights
    weights[number] = new
    return weights


LOOPS: dict[str, Callable[[Problem, int, Note], None]] = {"pursue": ours, "NumPyro": numpyro_loop}


def course(problem: Problem, loop: str, seed: int) -> dict[str, Any]:
    """Seconds and KL as components came in; KL is taken when all is over."""
    laws: list[Gaussians] = []
    stamps: list[tuple[float, float]] = []
    begin = (time.perf_counter(), time.process_time())

    def note(law: Gaussians) -> None:
        stamps.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
        laws.append(law)

    LOOPS[loop](problem, seed, note)
    found = [divergence(problem.density, law).reverse for law in laws]
    wall, cpu = zip(*stamps, strict=True)
    return {
        "wall_s": list(wall),
        "cpu_s": list(cpu),
        "kl": [value if np.isfinite(value) else None for value in found],
    }


def reached(loop: str) -> Callable[..., dict[str, Any]]:
    """Courses of one loop: the first from cold, with what is compiled; the others warm."""

    def measure(problem: Problem, seed: int, runs: int, budget: float) -> dict[str, Any]:
        warnings.simplefilter("ignore")
        if loop == "NumPyro" and importlib.util.find_spec("numpyro") is None:
            return {"absent": "peer absent: no package numpyro"}
        cold = course(problem, loop, seed)
        warm, began = [], time.perf_counter()
        for number in range(runs):
            if warm and time.perf_counter() - began > budget:
                break
            warm.append(course(problem, loop, seed + 1 + number))
        return {"cold": cold, "warm": warm}

    return measure


def growth(problem: Problem, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Seconds of each component's step, in a second run, when all is compiled."""
    import jax

    import posterity
    from posterity.families import DiagonalGaussian

    warnings.simplefilter("ignore")
    target = problem.density
    base = DiagonalGaussian.from_standard(
        np.zeros(target.size), np.full(target.size, target.reach**2)
    )
    steps = []
    for number in range(runs + 1):
        stamps = [time.perf_counter()]
        posterity.pursue(
            target.log_density,
            base,
            components=problem.components,
            key=jax.random.key(seed + number),
            polish=None,
            progress=lambda _, stamps=stamps: stamps.append(time.perf_counter()),
        )
        steps.append(np.diff(stamps))
    least = min(map(len, steps))
    each = np.median([own[:least] for own in steps[1:]], 0)
    return {"step_s": each.tolist(), "runs": runs}


KINDS = {**{name: reached(name) for name in LOOPS}, "growth": growth}

if __name__ == "__main__":
    answer(Problem, KINDS)
