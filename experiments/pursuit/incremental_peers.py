"""Peers of the conjugate rule: one LeNet-5 that goes on from task to task.

Each gives the log chances of test images after each task, over all ten classes. It is trained by
Adam, at the same steps and batches as the networks of single tasks.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import log_softmax, softmax

from experiments.pursuit.task_networks import log_chances
from posterity.families.layers import Layers
from posterity.models.forward import outputs
from posterity.networks.training import batches

Array = np.ndarray
Tasks = list[tuple[Array, Array]]
RATE = 1e-3
FISHER = 200  # images of a task that EWC's Fisher information is averaged over
OTHER = -1e9


class Training(NamedTuple):
    """What all peers share."""

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
    return z - RATE * down, moments


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
    for step, places in enumerate(itertools.islice(batches(len(y), 500, rng), total)):
        x = ones(features[places])
        wrong = softmax(x @ weights, axis=1)
        wrong[np.arange(500), y[places]] -= 1
        slope = x.T @ wrong / 500 + 1e-6 * weights
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        ahead = np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8
        weights -= rate * (1 - step / total) * first / (1 - 0.9 ** (step + 1)) / ahead
    return log_softmax((ones(test) @ weights).astype(np.float64), axis=1)
