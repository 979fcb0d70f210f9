"""Table 2 and figure 1: two classes in the plane: `python -m experiments.dark_knowledge.toy2d`."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.diagnostics import split_gelman_rubin

from experiments import harness
from experiments.dark_knowledge import PLACE, figures, peers
from experiments.dark_knowledge.peers import Array
from posterity import distill
from posterity.distillation import SGLD, Box, Langevin
from posterity.models import NeuralNetwork
from posterity.models.forward import outputs
from posterity.networks import Layers

TEACHER = Layers.dense(2, 10, 2)
STUDENTS = {"2-10-2": (10,), "2-100-2": (100,), "2-10-10-2": (10, 10)}
PRIOR_VARIANCE = 1.0
PER_CLASS, SEPARATION = 10, 1.0
BOX, SIDE = 6.0, 51  # half of a side of what is drawn, and grid points along it
TESTS = 2000

PAPER = {"SGD": 0.246, "SGLD": 0.007, "2-10-2": 0.031, "2-100-2": 0.014, "2-10-10-2": 0.009}


@dataclasses.dataclass(frozen=True)
class Reference:
    """How much of the posterior itself is drawn."""

    chains: int = 8
    warmup: int = 500
    draws: int = 2500
    seed: int = 0


def data() -> tuple[Array, Array]:
    """Ten records a class, normal about (1, 1) and (-1, -1) with standard deviation 1."""
    return drawn(np.random.default_rng(0), PER_CLASS)


def tests() -> tuple[Array, Array]:
    return drawn(np.random.default_rng([0, 1]), TESTS // 2)


def drawn(rng: np.random.Generator, per_class: int) -> tuple[Array, Array]:
    y = np.repeat([0, 1], per_class)
    centre = np.where(y[:, None] == 1, SEPARATION, -SEPARATION)
    return rng.normal(size=(len(y), 2)) + centre, y


def grid(side: int = SIDE) -> Array:
    """(side², 2) points of the display, row after row from below."""
    line = np.linspace(-BOX, BOX, side)
    return np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)


@dataclasses.dataclass(frozen=True)
class Predictive:
    """Of n inputs: chances of the classes (n, 2), and the part of the entropy (n,) that weights
    are to blame for, in nats; None where a method does not say.
    """

    chances: Array
    mutual_information: Array | None = None


def truth_draws(reference: Reference, cache: Path) -> Array:
    """(chains, draws, 52) weights of the posterior."""
    x, y = data()
    rng = np.random.default_rng(reference.seed)
    start = rng.normal(size=(reference.chains, TEACHER.size)) / 2
    options = {name: getattr(reference, name) for name in ("warmup", "draws", "seed")}
    density = peers.classes(TEACHER, x, y, PRIOR_VARIANCE)
    make = lambda: {"draws": peers.nuts(density, start, **options)}
    path = cache / f"toy2d-{harness.digest(TEACHER, PRIOR_VARIANCE, reference)}.npz"
    return harness.kept_arrays(path, make)["draws"]


def averaged(draws: Array, x: Array) -> Predictive:
    """What a stack (S, p) of weights says together, in double precision."""
    with jax.enable_x64(True):
        first, entropy = _sums(jnp.asarray(draws), jnp.asarray(x))
        chances, within = np.asarray(first) / len(draws), np.asarray(entropy) / len(draws)
    return Predictive(chances, np.maximum(entropies(chances) - within, 0))


@jax.jit
def _sums(draws: Any, x: Any) -> Any:
    def one(sums: Any, z: Any) -> Any:
        logs = jax.nn.log_softmax(outputs(TEACHER, z, x))
        chances = jnp.exp(logs)
        return (sums[0] + chances, sums[1] - (chances * logs).sum(-1)), None

    start = jnp.zeros((len(x), 2)), jnp.zeros(len(x))
    return jax.lax.scan(one, start, draws)[0]


def entropies(chances: Array) -> Array:
    return -(chances * np.log(np.maximum(chances, 1e-300))).sum(-1)


def kl(truth: Array, found: Array) -> float:
    """Mean over inputs of KL(truth ‖ found), in nats."""
    floor = 1e-300
    ratio = np.log(np.maximum(truth, floor)) - np.log(np.maximum(found, floor))
    return float((truth * ratio).sum(-1).mean())


SGD, LIKELIHOOD, OURS, PAPERS = "SGD", "SGD, without the prior", "ours", "the paper's optimiser"


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is run: ``draws`` of each chain, for the teacher's own score; ``steps`` of students,
    by default the library's. A ``brief`` run leaves out all students but the first.
    """

    seeds: int = 5
    draws: int = 1000
    steps: int | None = None
    paper_steps: int = 400_000
    side: int = SIDE
    reference: Reference = Reference()
    brief: bool = False

    @property
    def students(self) -> dict[str, tuple[int, ...]]:
        return dict(list(STUDENTS.items())[: 1 if self.brief else 3])


QUICK = Effort(
    seeds=1,
    draws=100,
    steps=1500,
    paper_steps=1500,
    side=15,
    reference=Reference(chains=2, warmup=150, draws=300),
    brief=True,
)

THIN = 25
PAPER_STEP, PAPER_BURN_IN, PAPER_DRAWS = 0.05, 5000, 1000
"""SGLD as in the paper: one chain, a thousand samples; the step size is not stated there."""
PAPER_RATE, PAPER_DECAY, PAPER_TIMES = 0.1, 0.8, 25
"""The student's SGD: the rate falls by a fifth, so many times a run."""


def teacher(**options: Any) -> Langevin:
    (x, y), net = data(), NeuralNetwork.of_layers(TEACHER)
    records = x.astype(np.float32), y.astype(np.int32)
    prior = net.prior(variance=PRIOR_VARIANCE)
    return Langevin(net, prior, records, **{"kernel": SGLD(), **options})


def papers_teacher(**options: Any) -> Langevin:
    kernel = SGLD(step_size=PAPER_STEP)
    return teacher(kernel=kernel, chains=1, burn_in=PAPER_BURN_IN, **options)


def mode(seed: int, *, prior: bool) -> Array:
    """(1, 52) the best weights, with the prior or one a thousand times as wide."""
    density = peers.classes(TEACHER, *data(), PRIOR_VARIANCE if prior else 1e3)
    return peers.mode(density, TEACHER.size, seed=seed)[None]


def of_student(
    effort: Effort, hidden: Sequence[int], seed: int, *, split: bool = False, paper: bool = False
) -> dict[str, Any]:
    """What a student of the box says, and how long it took.

    The paper's hears one chain after each of its steps and learns by SGD.
    """
    own: dict[str, Any] = {} if effort.steps is None else {"steps": effort.steps}
    if paper:
        every = max(effort.paper_steps // PAPER_TIMES, 1)
        rates = optax.exponential_decay(PAPER_RATE, every, PAPER_DECAY, staircase=True)
        own = {"steps": effort.paper_steps, "optimiser": optax.sgd(rates)}
    own |= {"inputs": Box([-BOX, -BOX], [BOX, BOX]), "key": jax.random.key(seed)}
    layers = Layers.dense(2, *hidden, 3 if split else 2)
    chains, begin = papers_teacher() if paper else teacher(), time.perf_counter()
    found = distill(chains, layers, split=split, **own)
    more = {"seconds": time.perf_counter() - begin, "gap by its own account": found.status.left}

    def say(x: Array) -> Predictive:
        said = found.student.predict(x)
        return Predictive(said.mean, said.mutual_information)

    return said(effort, say, **more)


def of_chains(effort: Effort, chains: Langevin, count: int, seed: int) -> dict[str, Any]:
    begin = time.perf_counter()
    found = chains.sample(count, key=jax.random.fold_in(jax.random.key(seed), 1))
    draws = peers.flat(found.stack)
    seconds = time.perf_counter() - begin
    return said(effort, functools.partial(averaged, draws), seconds=seconds)


def methods(effort: Effort) -> dict[str, Callable[[int], dict[str, Any]]]:
    part, thin = functools.partial, max(effort.paper_steps // PAPER_DRAWS, 1)
    at_mode = lambda seed, prior: said(effort, part(averaged, mode(seed, prior=prior)))
    few = min(PAPER_DRAWS, effort.draws)
    found: dict[str, Callable[[int], dict[str, Any]]] = {
        SGD: part(at_mode, prior=True),
        LIKELIHOOD: part(at_mode, prior=False),
        f"SGLD, {OURS}": part(of_chains, effort, teacher(thin=THIN), effort.draws),
        f"SGLD, {PAPERS}": part(of_chains, effort, papers_teacher(thin=thin), few),
    }
    for name, hidden in effort.students.items():
        for label, options in STYLES.items():
            found[f"{name}, {label}"] = part(of_student, effort, hidden, **options)
    return found


def said(effort: Effort, say: Callable[[Array], Predictive], **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"seconds": None, **more}
    for place, x in places(effort).items():
        own = say(x)
        part = own.mutual_information
        found[place] = {
            "chances": np.round(own.chances[:, 1], 6).tolist(),
            "mutual information": None if part is None else np.round(part, 6).tolist(),
        }
    return found


def places(effort: Effort) -> dict[str, Array]:
    return {"grid": grid(effort.side), "tests": tests()[0]}


SPLIT = "ours, split"
STYLES: dict[str, dict[str, bool]] = {OURS: {}, SPLIT: {"split": True}, PAPERS: {"paper": True}}


def run(
    place: harness.Place = PLACE, *, seeds: int | None = None, quick: bool = False
) -> dict[str, Any]:
    """Measure, judge, draw and write; returns what `toy2d.json` holds.

    Methods that have not run with every seed are left out, and goals that need them say so.
    """
    effort = QUICK if quick else Effort()
    effort = dataclasses.replace(effort, seeds=seeds or effort.seeds)
    plain = dataclasses.replace(effort, seeds=1, reference=Reference(), paper_steps=0), THIN
    paper = effort.paper_steps, PAPER_STEP, PAPER_BURN_IN, PAPER_RATE, PAPER_DECAY, PAPER_TIMES
    rows = []
    for seed in range(effort.seeds):
        row = {}
        for name, make in methods(effort).items():
            title = f"toy2d-{seed}-{name.replace(', ', '-').replace(' ', '_')}"
            settings = (plain, paper) if name.endswith(PAPERS) else (plain,)
            found = place.kept(title, functools.partial(make, seed), *settings)
            if found is not None:
                row[name] = found
        rows.append(row)
        print("seed", seed, *row, sep="; ", flush=True)
    draws = truth_draws(effort.reference, place.cache)
    flat = draws.reshape(-1, TEACHER.size)
    truth = {place: averaged(flat, x) for place, x in places(effort).items()}
    found = {
        "paper": {
            "KL, table 2": PAPER,
            "how": "mean over inputs; that they are those of the grid "
            "on which students learn is our reading",
        },
        "problem": f"{PER_CLASS} records a class; normal about (1, 1) and (-1, -1), deviation 1; "
        f"weights N(0, {PRIOR_VARIANCE:g}); grid of {effort.side}² points on "
        f"[-{BOX:g}, {BOX:g}]²; {TESTS} new records",
        "seeds": f"data 0; methods 0 to {effort.seeds - 1}",
        "spread": "standard error of the mean over seeds of the methods",
        "effort": dataclasses.asdict(effort),
        "reference": reference_report(draws, places(effort), truth),
        **judged(rows, truth, effort),
    }
    place.write("toy2d", found)
    figures.plane(truth["grid"], rows[0], data(), effort, place.results)
    return found


def reference_report(
    draws: Array, places: Mapping[str, Array], truth: Mapping[str, Predictive]
) -> dict[str, Any]:
    half = len(draws) // 2
    parts = [own.reshape(-1, TEACHER.size) for own in (draws[:half], draws[half:])]
    few = places["grid"][:: max(len(places["grid"]) // 40, 1)]
    with jax.enable_x64(True):
        of_one = lambda z: jax.nn.softmax(outputs(TEACHER, z, jnp.asarray(few)))[:, 1]
        each = jax.jit(jax.vmap(of_one))
        chances = np.stack([np.asarray(each(jnp.asarray(chain))) for chain in draws])
    mean = lambda numbers: harness.rounded(float(np.mean(numbers)))
    return {
        "by": "NUTS of NumPyro, double precision",
        "chains, draws of each": list(draws.shape[:2]),
        "KL between halves of the chains": {
            place: harness.rounded(kl(*(averaged(own, x).chances for own in parts)))
            for place, x in places.items()
        },
        "largest split R-hat of a chance on the grid": harness.rounded(
            split_gelman_rubin(chances).max()
        ),
        "mean mutual information": {p: mean(own.mutual_information) for p, own in truth.items()},
        "mean entropy": {p: mean(entropies(own.chances)) for p, own in truth.items()},
    }


def judged(
    rows: Sequence[Mapping[str, Any]], truth: Mapping[str, Predictive], effort: Effort
) -> dict[str, Any]:
    names = [name for name in rows[0] if all(name in row for row in rows)]
    divergence: dict[str, Any] = {place: {} for place in truth}
    for place, name in itertools.product(truth, names):
        ones = [np.clip(row[name][place]["chances"], 1e-6, 1 - 1e-6) for row in rows]
        values = [kl(truth[place].chances, np.stack([1 - one, one], 1)) for one in ones]
        divergence[place][name] = harness.statistics(values)
    split = {
        name: harness.over_seeds([apart(truth["grid"], row[name]["grid"]) for row in rows])
        for name in names
        if rows[0][name]["grid"]["mutual information"] is not None and name not in (SGD, LIKELIHOOD)
    }
    on_grid = divergence["grid"]
    wanted = {
        f"SGLD, {OURS}": ("SGLD, our defaults: KL at most 0.001", 0.001),
        f"SGLD, {PAPERS}": ("SGLD, one chain: KL at most the paper's 0.007", PAPER["SGLD"]),
    }
    for name in effort.students:
        for label in (OURS, SPLIT):
            wanted[f"{name}, {label}"] = f"student {name}, {label}: KL at most 0.005", 0.005
        text = f"student {name}, {PAPERS}: KL at most the paper's {PAPER[name]}"
        wanted[f"{name}, {PAPERS}"] = text, PAPER[name]
    goals = [
        harness.at_most(text, on_grid[name], bound)
        if name in on_grid
        else {"goal": text, "measured": {"mean": None}, "met": "not run"}
        for name, (text, bound) in wanted.items()
    ]
    seconds = {
        name: harness.statistics([row[name]["seconds"] for row in rows])
        for name in names
        if rows[0][name]["seconds"] is not None
    }
    return {
        "KL to the true predictive, grid": on_grid,
        "KL to the true predictive, new records": divergence["tests"],
        "mutual information, grid": split,
        "seconds, beside other work": seconds,
        "goals": goals,
    }


def apart(truth: Predictive, row: Mapping[str, Any]) -> dict[str, float]:
    said, true = np.asarray(row["mutual information"]), np.asarray(truth.mutual_information)
    return {
        "mean": float(said.mean()),
        "mean of the truth": float(true.mean()),
        "mean error, absolute": float(np.abs(said - true).mean()),
        "correlation": float(np.corrcoef(said, true)[0, 1]),
    }


if __name__ == "__main__":
    harness.command(run)
