"""A contextual bandit that pays for exploring: a wheel with five arms.

After riquelme2018: contexts are uniform on a disc. The first arm pays a little more than the others
everywhere; outside of a radius one of the other four, which depends on the quadrant, pays much
more. Who only exploits stays with the first arm. There the pays are 1.2, 1.0 and 50 with noise of
0.01; here 1.2, 1.0 and 5 with noise of 0.3, as a likelihood as narrow as theirs would have to be
widened for any chain.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.dark_knowledge import utility_networks as networks
from experiments.dark_knowledge.utility_networks import Array, Effort
from posterity import distill
from posterity.errors import ConvergenceWarning
from posterity.models import NeuralNetwork
from posterity.networks import Layers

TEACHER, STUDENT, GREEDY, EPSILON, UNIFORM = (
    "full teacher", "student", "plug-in, greedy", "plug-in, epsilon-greedy", "uniform",
)  # fmt: skip
METHODS = (STUDENT, TEACHER, GREEDY, EPSILON, UNIFORM)
ARMS = 5
RADIUS, BEST, ELSE, FAR, NOISE = 0.8, 1.2, 1.0, 5.0, 0.3
OFTEN = 0.1
"""Share of decisions at random of the epsilon-greedy one."""
NET = NeuralNetwork.of_layers(
    networks.without_biases(3 * ARMS, 50, 1), likelihood="gaussian", noise_variance=NOISE**2
)
VARIANCE = 1.0
"""Of the prior of each weight: values of an arm are about zero, give or take five."""
HIDDEN = (50, 50)
FEW = 64


@dataclasses.dataclass(frozen=True)
class Decisions:
    """How many there are, and after how many the models are fitted anew."""

    count: int = 400
    twice: int = 2
    """How often each arm is tried at first."""
    fits: tuple[int, ...] = (10, 20, 40, 70, 100, 150, 200, 300)
    sizes: tuple[int, ...] = (64, 512)
    effort: Effort = dataclasses.field(default_factory=lambda: Effort(steps=1500))


# --- the wheel -----------------------------------------------------------------------------------


def contexts(count: int, rng: np.random.Generator) -> Array:
    """(count, 2), uniform on the disc."""
    angle, radius = 2 * np.pi * rng.random(count), np.sqrt(rng.random(count))
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)


def pays(x: Array) -> Array:
    """(n, ARMS): what each arm pays on average."""
    found = np.full((len(x), ARMS), ELSE)
    found[:, 0] = BEST
    far = np.linalg.norm(x, axis=1) > RADIUS
    quadrant = 1 + (x[:, 0] < 0) + 2 * (x[:, 1] < 0)
    found[far, quadrant[far]] = FAR
    return found


def features(x: Array, arms: Any) -> Array:
    """(n, 3 ARMS): the context and a one in the arm's own columns, zero in all others."""
    found = np.zeros((len(x), ARMS, 3))
    found[np.arange(len(x)), arms] = np.concatenate([x, np.ones((len(x), 1))], 1)
    return found.reshape(len(x), -1)


def choices(x: Array) -> Array:
    """(n ARMS, 3 ARMS): each context with each arm."""
    return features(np.repeat(x, ARMS, 0), np.tile(np.arange(ARMS), len(x)))


def anywhere(key: Any, n: int) -> Any:
    """Contexts with arms, at random: where a student listens; traced."""
    one, two, three = jax.random.split(key, 3)
    angle = 2 * jnp.pi * jax.random.uniform(one, (n,))
    radius = jnp.sqrt(jax.random.uniform(two, (n,)))
    x = jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle), jnp.ones(n)], 1)
    arm = jax.nn.one_hot(jax.random.randint(three, (n,), 0, ARMS), ARMS)
    return (arm[:, :, None] * x[:, None, :]).reshape(n, -1)


# --- who decides ---------------------------------------------------------------------------------


def taught(data: Any, plan: Decisions, key: Any) -> Any:
    """A student of chains on what was paid."""
    rng = np.random.default_rng(0)
    return distill(
        networks.chains(NET, VARIANCE, data, plan.effort), Layers.dense(3 * ARMS, *HIDDEN, 2),
        key=key, inputs=anywhere, split=True, steps=plan.effort.steps, batch_size=FEW,
        probe=features(contexts(FEW, rng), rng.integers(ARMS, size=FEW)),
    )  # fmt: skip


def decided(
    method: str, data: Any, x: Array, plan: Decisions, seed: int, at: int
) -> tuple[Any, dict[str, Any]]:
    """Arms (n,) for contexts, from what was paid so far; what is noted."""
    rng, key = np.random.default_rng([seed, at, 7]), jax.random.fold_in(jax.random.key(seed), at)
    shape = (len(x), ARMS)
    if method == UNIFORM:
        return rng.integers(ARMS, size=len(x)), {}
    if method in (GREEDY, EPSILON):
        weights = networks.modes(NET, VARIANCE, data, plan.effort.mode_steps, seed=seed, count=1)
        arms = networks.outputs(NET, weights, choices(x))[0].reshape(shape).argmax(1)
        if method == EPSILON:
            aside = rng.random(len(x)) < OFTEN
            arms = np.where(aside, rng.integers(ARMS, size=len(x)), arms)
        return arms, {}
    if method == TEACHER:
        draws = networks.kept(NET, VARIANCE, data, plan.effort, key)
        values = networks.each(draws, choices(x)).reshape(-1, *shape)
        # One draw a decision: that of every arm at once.
        return values[rng.integers(len(values), size=len(x)), np.arange(len(x))].argmax(1), {}
    found = taught(data, plan, key)
    said = found.student.predict(choices(x))
    drawn = said.mean + np.sqrt(said.variance) * rng.standard_normal(said.mean.shape)
    theirs = found.student.predict(found.probe)
    return drawn.reshape(shape).argmax(1), {
        "gap": found.status.left,
        "correlation": float(
            np.corrcoef(
                np.log(theirs.variance.ravel()), np.log(found.teacher.variance.ravel())
            )[0, 1]
        ),
        "median ratio of deviations": float(
            np.median(np.sqrt(theirs.variance / found.teacher.variance))
        ),
    }  # fmt: skip


# --- a run ---------------------------------------------------------------------------------------


def run(method: str, seed: int, plan: Decisions) -> dict[str, Any]:
    """What was lost by each decision of one method, against the best arm there."""
    begin, rng = time.process_time(), np.random.default_rng([seed, 13])
    x = contexts(plan.count, rng)
    noise = NOISE * rng.standard_normal(plan.count)
    mean = pays(x)
    first = plan.twice * ARMS
    arms, notes, deciding = np.arange(first) % ARMS, [], 0.0
    ends = [*[at for at in plan.fits if at < plan.count], plan.count]
    if ends[0] != first:
        raise ValueError(f"fits begin at {ends[0]}, after {first} first decisions")
    for at, end in itertools.pairwise(ends):
        paid = mean[np.arange(at), arms] + noise[:at]
        data = networks.filled(features(x[:at], arms), paid[:, None], plan.sizes)
        then = time.process_time()
        with warnings.catch_warnings():
            # Chains as short as these still spread, a student as short is not yet its teacher:
            # their decisions are judged below.
            warnings.simplefilter("ignore", ConvergenceWarning)
            # Filled up, so that few programs are compiled.
            block = np.zeros((BLOCK, 2))
            block[: end - at] = x[at:end]
            new, note = decided(method, data, block, plan, seed, at)
        deciding += time.process_time() - then
        arms = np.concatenate([arms, new[: end - at]])
        notes.append(note)
    lost = mean.max(1) - mean[np.arange(plan.count), arms]
    return {
        "method": method,
        "seed": seed,
        "regret": np.cumsum(lost).round(3).tolist(),
        "regret of uniform, expected": np.cumsum(mean.max(1) - mean.mean(1)).round(3).tolist(),
        "notes": [note for note in notes if note],
        "CPU s": time.process_time() - begin,
        "CPU s of a fit": deciding / len(ends[:-1]),
    }


BLOCK = 100
"""Most decisions between two fits."""


def timed(plan: Decisions) -> dict[str, Any]:
    """Processor time of one decision once the model is there."""
    rng = np.random.default_rng(0)
    x, arms = contexts(50, rng), rng.integers(ARMS, size=50)
    data = networks.filled(features(x, arms), pays(x)[np.arange(50), arms][:, None], plan.sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        draws = networks.kept(NET, VARIANCE, data, plan.effort, jax.random.key(0))
        brief = dataclasses.replace(plan, effort=dataclasses.replace(plan.effort, steps=50))
        student = taught(data, brief, jax.random.key(0)).student
    one = choices(x[:1])
    single = draws.stack[:1]

    def sampled() -> Any:
        said = student.predict(one)
        return (said.mean + np.sqrt(said.variance) * rng.standard_normal(said.mean.shape)).argmax()

    found = {
        "teacher, one draw": networks.seconds(
            lambda: networks.outputs(NET, single, one).argmax(), 20
        ),
        "teacher, mean and variance over all draws": networks.seconds(
            lambda: networks.each(draws, one).var(0), 20
        ),
        "student, mean and variance": networks.seconds(sampled, 20),
    }
    return {
        "what": "CPU s of one decision among five arms",
        **found,
        "ratio, all draws to student": found["teacher, mean and variance over all draws"]
        / found["student, mean and variance"],
        "numbers held by the teacher": int(draws.stack.size),
        "numbers held by the student": student.size,
    }
