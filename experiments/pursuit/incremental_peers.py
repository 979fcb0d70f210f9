"""Networks of single tasks, and peers of the conjugate rule: a LeNet-5 that learns task by task.

Nothing of another task goes into a task's network, not even its random numbers: its key is of its
name. A peer gives the log chances of test images after each task, over all ten classes; it is
trained by Adam, at the same steps and batches.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import log_softmax, softmax

from posterity.arrays import keys
from posterity.families.layers import Layers
from posterity.families.network import Network
from posterity.federation.keys import site_key
from posterity.models.forward import outputs
from posterity.networks.bound import Bound, as_posterior, started
from posterity.networks.training import PACING, batches, initial, prior_arrays, step
from posterity.pursuit.weights import SampleCache, best_share

Array = np.ndarray
ROWS = 1000  # inputs that are predicted together
RATE = 2e-3  # that of `train`
step_of = jax.jit(step)


def trained(
    prior: Network,
    x: Any,
    y: Any,
    *,
    task: str,
    seed: int,
    steps: int,
    batch: int,
    on: bool = False,
) -> Network:
    """The posterior of one task under a prior; ``on`` from the prior's means and deviations.

    Steps are compiled one at a time: a convolution inside a loop that is compiled as a whole runs
    several times more slowly on a CPU. The rate of log deviations is ten times that of means.
    """
    key = keys.of_jax(site_key(keys.seeded(seed), task))
    bound = Bound(prior.layers, "categorical", 1.0, 1.0, None)
    x, y = np.asarray(x, np.float32).reshape(len(x), -1), np.asarray(y, np.int32)
    with jax.enable_x64(False):  # in single precision, whatever the caller computes in
        first, run = jax.random.split(key)
        state = initial(started(bound, prior if on else None, key=first))
        moments = prior_arrays(prior)
        chosen = batches(len(x), min(batch, len(x)), keys.of_numpy(key))
        for count, rows in zip(range(steps), chosen, strict=False):
            rate = np.float32(RATE * min(1.0, (steps - count) / max(PACING.cooling * steps, 1)))
            own = jax.random.fold_in(run, count)
            records = x[rows], y[rows], np.float32(len(x))
            state, _ = step_of(bound, state, moments, *records, rate, own)
    return as_posterior(bound, state[0])


def chances(network: Network, x: Any, draws: int) -> Array:
    """Mean chances (n, K) over draws of the weights."""
    rng, x = np.random.RandomState(0), np.asarray(x, np.float32).reshape(len(x), -1)
    mean = np.asarray(network.mean, np.float32)
    spread = np.sqrt(np.asarray(network.variance, np.float32))
    noise = [rng.standard_normal(mean.size).astype(np.float32) for _ in range(draws)]
    total = np.zeros((len(x), network.layers.outputs))
    with jax.enable_x64(False):
        for at in range(0, len(x), ROWS):
            part = x[at : at + ROWS]
            padded = np.concatenate([part, np.zeros((ROWS - len(part), x.shape[1]), np.float32)])
            for own in noise:
                logs = np.asarray(log_chances(network.layers, mean + spread * own, padded))
                total[at : at + ROWS] += np.exp(logs[: len(part)].astype(np.float64)) / draws
    return total


def shares(tasks: Sequence[tuple[Network, Array, Array]], draws: int, seed: int) -> list[Array]:
    """The weights of networks in a mixture that grows by one a task, after each of the tasks.

    The mixture before takes the place of the prior and the records of a task are the data; the new
    network, which was trained on them, has the share of the highest ELBO. Source: egorov2019.
    """
    networks = [network for network, _, _ in tasks]
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((len(tasks), draws, networks[0].layers.size))
    z = np.stack([q.mean + np.sqrt(q.variance) * e for q, e in zip(networks, noise, strict=True)])
    densities = np.stack([np.asarray(q.log_prob(z)) for q in networks])
    weights = np.eye(len(tasks))[0]
    nothing = np.zeros(z.shape[:2])
    found = [weights[:1]]
    for new, (_, x, y) in enumerate(tasks[1:], 1):
        fit = SampleCache(z, nothing, densities).log_q(weights)
        for place in np.ndindex(new + 1, draws):
            fit[place] += log_likelihood(networks[0].layers, z[place], x, y)
        weights = best_share(SampleCache(z, fit, densities), weights, new)
        found.append(weights[: new + 1])
    return found


def log_likelihood(layers: Layers, z: Array, x: Array, y: Array) -> float:
    """The sum over records, in nats, at weights ``z``."""
    with jax.enable_x64(False):
        logs = np.asarray(log_chances(layers, z.astype(np.float32), x), np.float64)
    return float(logs[np.arange(len(y)), y].sum())


@functools.partial(jax.jit, static_argnums=0)
def log_chances(layers: Layers, z: Any, x: Any) -> Any:
    """Logarithms of the classes' chances at weights ``z``."""
    return jax.nn.log_softmax(outputs(layers, z, x))


Array = np.ndarray
Tasks = list[tuple[Array, Array]]
PEERS_RATE = 1e-3
FISHER = 200  # images of a task that EWC's Fisher information is averaged over
OTHER = -1e9


class Training(NamedTuple):
    layers: Layers
    steps: int
    batch: int
    seed: int


def fine_tuned(setting: Training, tasks: Tasks, x: Array) -> Iterator[Array]:
    """Trained on each task in turn, all ten logits."""
    return _points(setting, tasks, x, masked=False, strength=0.0)


def elastic(setting: Training, tasks: Tasks, x: Array) -> Iterator[Array]:
    """Elastic weight consolidation (kirkpatrick2017), logits of the current task only."""
    return _points(setting, tasks, x, masked=True, strength=1.0)


def joint(setting: Training, tasks: Tasks, x: Array) -> Array:
    """The ceiling: as many steps on all tasks at once."""
    together = np.concatenate([x for x, _ in tasks]), np.concatenate([y for _, y in tasks])
    longer = setting._replace(steps=setting.steps * len(tasks))
    return next(_points(longer, [together], x, masked=False, strength=0.0))


def _points(
    setting: Training, tasks: Tasks, x: Array, *, masked: bool, strength: float
) -> Iterator[Array]:
    layers, rng = setting.layers, np.random.default_rng(setting.seed)
    z: Any = _start(layers, rng)
    centre, precision, linear = np.zeros_like(z), np.zeros_like(z), np.zeros_like(z)
    for own, labels in tasks:
        y, mask = labels.astype(np.int32), np.zeros(layers.outputs, np.float32)
        if masked:
            mask[:] = OTHER
            mask[np.unique(y)] = 0
        moments, pull = optax.scale_by_adam().init(z), np.float32(strength / len(y)) * precision
        every = batches(len(y), min(setting.batch, len(y)), rng)
        for rows in itertools.islice(every, setting.steps):
            z, moments = _descend(layers, z, moments, own[rows], y[rows], mask, centre, pull)
        z = np.asarray(z)
        if strength:
            fisher = len(y) * np.asarray(_fisher(layers, z, own[:FISHER], y[:FISHER], mask))
            linear, precision = linear + fisher * z, precision + fisher
            centre = linear / np.maximum(precision, np.finfo(np.float32).tiny)
        pieces = [x[at : at + 500] for at in range(0, len(x), 500)]
        logs = np.concatenate([np.asarray(log_chances(layers, z, piece)) for piece in pieces])
        yield logs.astype(np.float64)


def _start(layers: Layers, rng: np.random.Generator) -> Array:
    arrays = layers.unravel(rng.standard_normal(layers.size).astype(np.float32))
    for layer, own in zip(layers.layers, arrays, strict=True):
        own["kernel"] = own["kernel"] * np.float32(np.sqrt(2 / np.prod(layer.kernel[:-1])))
        own["bias"] = own["bias"] * 0
    return np.asarray(layers.ravel(arrays), np.float32)


@functools.partial(jax.jit, static_argnums=0)
def _descend(
    layers: Layers, z: Any, moments: Any, x: Any, y: Any, mask: Any, centre: Any, precision: Any
) -> Any:
    def loss(z: Any) -> Any:
        logs = jax.nn.log_softmax(outputs(layers, z, x) + mask)
        fit = -jnp.take_along_axis(logs, y[:, None], 1).mean()
        return fit + 0.5 * (precision * (z - centre) ** 2).sum()

    down, moments = optax.scale_by_adam().update(jax.grad(loss)(z), moments)
    return z - PEERS_RATE * down, moments


@functools.partial(jax.jit, static_argnums=0)
def _fisher(layers: Layers, z: Any, x: Any, y: Any, mask: Any) -> Any:
    def one(pair: Any) -> Any:
        image, label = pair
        value = lambda z: jax.nn.log_softmax(outputs(layers, z, image[None]) + mask)[0, label]
        return jax.grad(value)(z) ** 2

    return jax.lax.map(one, (x, y)).mean(0)


def softmax_regression(
    features: Array, y: Array, test: Array, classes: int, epochs: int = 30, rate: float = 2e-3
) -> Array:
    """Joint logistic regression on all records of the same features: log chances of ``test``.

    The ceiling of features that are fixed, by Adam in NumPy.
    """
    rng, total = np.random.default_rng(0), epochs * (len(y) // 500)
    weights = np.zeros((features.shape[1] + 1, classes), np.float32)
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    ones = lambda x: np.concatenate([x, np.ones((len(x), 1), np.float32)], 1)
    for count, places in enumerate(itertools.islice(batches(len(y), 500, rng), total)):
        x = ones(features[places])
        wrong = softmax(x @ weights, axis=1)
        wrong[np.arange(500), y[places]] -= 1
        slope = x.T @ wrong / 500 + 1e-6 * weights
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        ahead = np.sqrt(second / (1 - 0.999 ** (count + 1))) + 1e-8
        weights -= rate * (1 - count / total) * first / (1 - 0.9 ** (count + 1)) / ahead
    return log_softmax((ones(test) @ weights).astype(np.float64), axis=1)
