"""Networks of tasks: a mean-field posterior each, trained on the task's own records alone.

Nothing of another task goes into it, not even its random numbers: a task's key is of its name. So
such networks, and what is made of them, do not depend on which other tasks there were.
"""

import functools
from typing import Any

import jax
import numpy as np

from posterity.arrays import keys
from posterity.families.layers import Layers
from posterity.families.network import Network
from posterity.federation.keys import site_key
from posterity.models.forward import outputs
from posterity.networks.bound import Bound, as_posterior, started
from posterity.networks.training import COOLING, RATE, batches, initial, prior_arrays, step

Array = np.ndarray
ROWS = 1000  # inputs that are predicted together
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
    key = site_key(jax.random.key(seed), task)
    bound = Bound(prior.layers, "categorical", 1.0, 1.0, None)
    x, y = np.asarray(x, np.float32).reshape(len(x), -1), np.asarray(y, np.int32)
    with jax.enable_x64(False):  # in single precision, whatever the caller computes in
        first, run = jax.random.split(key)
        state = initial(started(bound, prior if on else None, key=first))
        moments = prior_arrays(prior)
        chosen = batches(len(x), min(batch, len(x)), keys.of_numpy(key))
        for count, rows in zip(range(steps), chosen, strict=False):
            rate = np.float32(RATE * min(1.0, (steps - count) / max(COOLING * steps, 1)))
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


@functools.partial(jax.jit, static_argnums=0)
def log_chances(layers: Layers, z: Any, x: Any) -> Any:
    """Logarithms of the classes' chances at weights ``z``."""
    return jax.nn.log_softmax(outputs(layers, z, x))
