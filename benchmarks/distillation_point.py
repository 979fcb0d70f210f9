"""One set-up of the benchmark of distillation, in a process of its own: JSON in as the argument.

Everyone samples the same posterior (a perceptron with rectified linear units, a standard normal
prior, a categorical likelihood) with minibatches that are picked anew at each step, and takes turns
with the others in one process.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measure import answer, peak

Run = Callable[[int], Any]  # makes so many steps, of all chains, and waits for them


@dataclasses.dataclass(frozen=True)
class Problem:
    """A perceptron, its data, and how many chains; ``steps`` are those that a turn makes."""

    sizes: tuple[int, ...]
    records: int
    batch: int
    chains: int
    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))

    def data(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs of a scale of one, labels that depend on them."""
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(self.records, self.sizes[0])).astype(np.float32)
        towards = rng.normal(size=(self.sizes[0], self.sizes[-1]))
        return x, np.argmax(x @ towards, 1).astype(np.int32)

    def weights(self, seed: int) -> list[dict[str, np.ndarray]]:
        rng = np.random.default_rng(seed + 1)
        return [
            {
                "bias": np.zeros(after, np.float32),
                "kernel": (rng.normal(size=(before, after)) / before**0.5).astype(np.float32),
            }
            for before, after in pairwise(self.sizes)
        ]


SIZE = 1e-6  # the step size: small enough for every posterior here, and of no weight for the time


def speed(problem: Problem, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Seconds a chain-step of everyone, medians over turns; absent peers are named."""
    everyone: dict[str, tuple[Run, int, int]] = {}
    absent: dict[str, str] = {}
    for enter in (ours, public, jax_peers, torch_peers):
        for name, made in enter(problem, seed):
            if isinstance(made, str):
                absent[name] = made
            else:
                everyone[name] = made
    wall: dict[str, list[float]] = {name: [] for name in everyone}
    cpu: dict[str, list[float]] = {name: [] for name in everyone}
    first = {}
    for name, (run, steps, _) in everyone.items():
        before = time.perf_counter()
        run(steps)
        first[name] = time.perf_counter() - before
    began = time.perf_counter()
    while len(wall["gradient"]) < runs and (
        not wall["gradient"] or time.perf_counter() - began < budget
    ):
        for name, (run, steps, chains) in everyone.items():
            before, before_cpu = time.perf_counter(), time.process_time()
            run(steps)
            wall[name].append((time.perf_counter() - before) / (steps * chains))
            cpu[name].append((time.process_time() - before_cpu) / (steps * chains))
    return {
        "turns": len(wall["gradient"]),
        "wall_s_a_chain_step": {name: median(own) for name, own in wall.items()},
        "cpu_s_a_chain_step": {name: median(own) for name, own in cpu.items()},
        "over_langevin_wall": _ratios(wall),
        "over_langevin_cpu": _ratios(cpu),
        "first_call_s": first,
        "absent": absent,
    }


def _ratios(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Medians over turns of everyone's time over ours: neighbours in time, which share a load."""
    base = seconds[OURS]
    return {
        name: median(a / b for a, b in zip(own, base, strict=True)) for name, own in seconds.items()
    }


OURS = "Langevin"
EAGER_SHARE = 200
"""Of the steps of a compiled run, what an eager one makes in a turn: one in so many."""


def eager_steps(problem: Problem) -> int:
    """Steps of a peer that comes back to Python after each."""
    return max(problem.steps // EAGER_SHARE, 5)


# --- posterity -----------------------------------------------------------------------------------


def ours(problem: Problem, seed: int) -> Iterator[tuple[str, Any]]:
    """The kernel with either noise, momentum, and what a gradient alone takes."""
    import jax
    import jax.numpy as jnp

    from posterity.distillation.sampling import noise
    from posterity.distillation.sampling.kernels import SGHMC, SGLD
    from posterity.families.layers import Layers
    from posterity.models.forward import apply

    layers = Layers.dense(*problem.sizes)
    x, y = map(jnp.asarray, problem.data(seed))
    scale = problem.records / problem.batch

    def log_density(position: Any, x: Any, y: Any) -> Any:
        forward = lambda own, x: apply(layers, own, x)[-1]
        shown = jax.vmap(forward, (0, 1), 1)(position, x)
        own = jnp.where(y[..., None] == jnp.arange(shown.shape[-1]), shown, 0.0)
        likelihood = own.sum() - jax.nn.logsumexp(shown, -1).sum()
        prior = sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(position))
        return scale * likelihood - prior / 2

    def slope(position: Any, key: Any) -> Any:
        shape = (problem.batch, problem.chains)
        pick = noise.indices(key, shape, problem.records)
        return jax.grad(log_density)(position, x[pick], y[pick])

    start = jax.tree.map(
        lambda leaf: jnp.stack([jnp.asarray(leaf)] * problem.chains), problem.weights(seed)
    )

    def scanned(step: Any, state: Any) -> Run:
        """Steps in one compiled program, which goes on from where the last turn ended."""
        count = problem.steps
        many = jax.jit(
            lambda state, key: jax.lax.scan(step, state, jax.random.split(key, count))[0]
        )
        kept = [state]

        def run(steps: int) -> None:
            assert steps == count
            kept[0] = jax.block_until_ready(many(kept[0], jax.random.key(seed)))

        return run

    for name, kernel in {
        "SGLD in a scan": SGLD(SIZE),
        "SGLD in a scan, exact normals": SGLD(SIZE, noise="normal"),
        "SGHMC in a scan": SGHMC(SIZE),
    }.items():

        def step(state: Any, key: Any, kernel: Any = kernel) -> Any:
            gradient = slope(state.position, key)
            return kernel.step(state, gradient, key=key)[0], None

        yield name, (scanned(step, kernel.init(start)), problem.steps, problem.chains)

    # The gradient of another minibatch at each step, written where the last one was.
    gradient = lambda state, key: ((state[0], slope(state[0], key)), None)
    yield "gradient", (scanned(gradient, (start, start)), problem.steps, problem.chains)


def public(problem: Problem, seed: int) -> Iterator[tuple[str, Any]]:
    """What a user calls: `Langevin(...).sample(...)`, from the start to a draw that is kept."""
    teacher = langevin(problem, seed, thin=problem.steps)
    yield "Langevin", (sampled(teacher, seed), problem.steps, problem.chains)


def langevin(problem: Problem, seed: int, thin: int) -> Any:
    """Chains that start at once, whose steps are all alike; so many of them a draw."""
    from posterity.distillation import SGLD, Langevin
    from posterity.models import NeuralNetwork
    from posterity.networks import Layers

    net = NeuralNetwork.of_layers(Layers.dense(*problem.sizes))
    return Langevin(
        net,
        net.prior(variance=1.0),
        problem.data(seed),
        kernel=SGLD(SIZE),
        chains=problem.chains,
        batch_size=problem.batch,
        thin=thin,
        climb=0,
        burn_in=0,
    )


def sampled(teacher: Any, seed: int) -> Run:
    """One draw of each chain, so many steps on."""
    import jax

    return lambda steps: teacher.sample(1, key=jax.random.key(seed))


# --- peers ---------------------------------------------------------------------------------------


def missing(package: str) -> str | None:
    """A line that says that a package is not here, if so."""
    if importlib.util.find_spec(package) is None:
        return f"peer absent: no package {package!r}"
    return None


def jax_peers(problem: Problem, seed: int) -> Iterator[tuple[str, Any]]:
    """BlackJAX, its own gradients and noise: stepped from Python, and inside a scan."""
    said = missing("blackjax")
    if said:
        yield "BlackJAX", said
        return
    import blackjax
    import jax
    import jax.numpy as jnp
    from blackjax.sgmcmc.gradients import grad_estimator

    x, y = map(jnp.asarray, problem.data(seed))

    def forward(position: Any, x: Any) -> Any:
        for index, own in enumerate(position):
            x = x @ own["kernel"] + own["bias"]
            x = jax.nn.relu(x) if index < len(position) - 1 else x
        return x

    log_prior = lambda p: -sum((leaf**2).sum() for leaf in jax.tree.leaves(p)) / 2

    def log_likelihood(position: Any, record: Any) -> Any:
        x, label = record
        return jax.nn.log_softmax(forward(position, x))[label]

    sgld = blackjax.sgld(grad_estimator(log_prior, log_likelihood, problem.records))

    def step(position: Any, key: Any) -> Any:
        picked, own = jax.random.split(key)
        places = jax.random.randint(picked, (problem.batch,), 0, problem.records)
        return sgld.step(own, position, (x[places], y[places]), SIZE)

    def loop(step: Any, position: Any) -> Run:
        compiled, kept = jax.jit(step), [position]

        def run(steps: int) -> None:
            for key in jax.random.split(jax.random.key(seed), steps):
                kept[0] = compiled(kept[0], key)
            jax.block_until_ready(kept[0])

        return run

    position = jax.tree.map(jnp.asarray, problem.weights(seed))
    few = max(problem.steps // 20, 5)
    yield "BlackJAX, Python loop, one chain", (loop(step, position), few, 1)
    if problem.chains > 1:
        position = jax.tree.map(lambda leaf: jnp.stack([leaf] * problem.chains), position)
        alone = step
        step = lambda position, key: jax.vmap(alone)(
            position, jax.random.split(key, problem.chains)
        )
        yield "BlackJAX, Python loop, vmapped", (loop(step, position), few, problem.chains)

    count = max(problem.steps // 4, 5)  # it is slower, and a chunk's length is of no weight
    many = jax.jit(
        lambda position, key: jax.lax.scan(
            lambda own, key: (step(own, key), None), position, jax.random.split(key, count)
        )[0]
    )
    kept = [position]

    def scan(steps: int) -> None:
        kept[0] = jax.block_until_ready(many(kept[0], jax.random.key(seed)))

    yield "BlackJAX in a scan", (scan, count, problem.chains)


def torch_peers(problem: Problem, seed: int) -> Iterator[tuple[str, Any]]:
    """A plain loop, the posteriors package, and chains under torch.func.vmap."""
    said = missing("torch")
    if said:
        yield "PyTorch", said
        return
    import torch

    x, y = (torch.from_numpy(own) for own in problem.data(seed))
    y = y.long()
    pick = lambda: torch.randint(problem.records, (problem.batch,))
    steps, scale = eager_steps(problem), problem.records / problem.batch
    # Threads that wait for each other at every small product only slow it down.
    cores = (1, torch.get_num_threads()) if math.prod(problem.sizes) > 10_000 else (1,)
    start = [
        torch.from_numpy(own[name].copy())
        for own in problem.weights(seed)
        for name in ("kernel", "bias")
    ]

    def forward(weights: Any, x: Any) -> Any:
        for index in range(0, len(weights), 2):
            x = torch.addmm(weights[index + 1], x, weights[index])
            x = torch.relu(x) if index < len(weights) - 2 else x
        return x

    def log_density(weights: Any, x: Any, y: Any) -> Any:
        likelihood = -torch.nn.functional.cross_entropy(forward(weights, x), y, reduction="sum")
        return scale * likelihood - sum((own * own).sum() for own in weights) / 2

    def loop(noise: bool) -> Run:
        weights = [own.clone().requires_grad_() for own in start]

        def run(steps: int) -> None:
            for _ in range(steps):
                places = pick()
                slopes = torch.autograd.grad(log_density(weights, x[places], y[places]), weights)
                with torch.no_grad():
                    for own, slope in zip(weights, slopes, strict=True):
                        own.add_(slope, alpha=SIZE / 2)
                        if noise:
                            own.add_(torch.randn_like(own), alpha=math.sqrt(SIZE))

        return run

    def threaded(run: Run, threads: int) -> Run:
        def on(steps: int) -> None:
            torch.set_num_threads(threads)
            run(steps)

        return on

    for threads in dict.fromkeys(cores):
        kind = f"{threads} thread{'s' * (threads > 1)}, one chain"
        yield f"PyTorch loop, {kind}", (threaded(loop(True), threads), steps, 1)
        made = posteriors_peer(start, log_density, lambda: (x, y, pick()))
        if isinstance(made, str):
            yield "posteriors", made
        else:
            yield f"posteriors, {kind}", (threaded(made, threads), steps, 1)
    yield "PyTorch loop without noise, 1 thread", (threaded(loop(False), 1), steps, 1)
    if problem.chains == 1:
        return

    from torch.func import grad, vmap

    slopes_of = vmap(grad(log_density), in_dims=(0, 0, 0))
    stacked = [torch.stack([own] * problem.chains) for own in start]

    def chains(steps: int) -> None:
        for _ in range(steps):
            places = torch.randint(problem.records, (problem.chains, problem.batch))
            slopes = slopes_of(stacked, x[places], y[places])
            with torch.no_grad():
                for own, slope in zip(stacked, slopes, strict=True):
                    own.add_(slope, alpha=SIZE / 2)
                    own.add_(torch.randn_like(own), alpha=math.sqrt(SIZE))

    yield "PyTorch, torch.func.vmap", (threaded(chains, 1), steps, problem.chains)


def posteriors_peer(start: list[Any], log_density: Any, data: Any) -> Run | str:
    """The posteriors package, or a line that says that it is not here."""
    said = missing("posteriors")
    if said:
        return said
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        from posteriors.sgmcmc import sgld

    def log_posterior(weights: Any, batch: Any) -> Any:
        return log_density(list(weights.values()), *batch), torch.empty(0)

    transform = sgld.build(log_posterior, lr=SIZE / 2)
    kept = [transform.init({str(index): own.clone() for index, own in enumerate(start)})]

    def run(steps: int) -> None:
        for _ in range(steps):
            x, y, places = data()
            kept[0], _ = transform.update(kept[0], (x[places], y[places]), inplace=False)

    return run


# --- students ------------------------------------------------------------------------------------


class Enough(Exception):
    """Ends a run, from within what it calls after each chunk."""


SKIPPED = 2  # chunks at the start that are not timed: the first one waits for its program


def student(problem: Problem, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """A step of `distill` beside one of its teacher's alone, chunk by chunk in turns."""
    import jax

    from posterity.distillation import distill
    from posterity.distillation.distill import CHUNKS

    alone = sampled(langevin(problem, seed, thin=problem.steps), seed)
    alone(problem.steps)
    both: dict[str, list[float]] = {"wall": [], "cpu": []}
    teacher: dict[str, list[float]] = {"wall": [], "cpu": []}
    mark: list[Any] = []

    def after(progress: Any) -> None:
        if mark:
            steps = progress.step - mark[0]
            both["wall"].append((time.perf_counter() - mark[1]) / steps)
            both["cpu"].append((time.process_time() - mark[2]) / steps)
            before, before_cpu = time.perf_counter(), time.process_time()
            alone(problem.steps)
            teacher["wall"].append((time.perf_counter() - before) / problem.steps)
            teacher["cpu"].append((time.process_time() - before_cpu) / problem.steps)
        turns = len(both["wall"]) - SKIPPED
        if turns >= runs or (turns > 0 and sum(both["wall"]) * problem.steps > budget):
            raise Enough
        mark[:] = [progress.step, time.perf_counter(), time.process_time()]

    moving = langevin(problem, seed, thin=1)
    # so many that each of its chunks has as many steps as a turn of the teacher alone
    steps, first = problem.steps * CHUNKS, jax.random.key(seed)
    with contextlib.suppress(Enough):
        distill(moving, key=first, batch_size=problem.batch, steps=steps, progress=after)
    found = {"turns": len(both["wall"]) - SKIPPED}
    for clock in ("wall", "cpu"):
        pairs = list(zip(both[clock], teacher[clock], strict=True))[SKIPPED:]
        found |= {
            f"both_{clock}_s": median(own for own, _ in pairs),
            f"teacher_{clock}_s": median(own for _, own in pairs),
            f"ratio_{clock}": median(a / b for a, b in pairs),
        }
    return found


def memory(problem: Problem, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Peak memory of a whole run of `distill`, whose steps are those of the problem."""
    import jax

    from posterity.distillation import distill

    teacher = langevin(problem, seed, thin=1)

    def call() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that few steps do not converge
            distill(teacher, key=jax.random.key(seed), steps=problem.steps)

    return {**peak(call), "samples": problem.steps * problem.chains}


if __name__ == "__main__":
    # Torch's threads that wait for each other leave the cores to others meanwhile.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    answer(Problem, {"speed": speed, "student": student, "memory": memory})
