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
from posterity.networks.training import (
    COOLING,
    RATE,
    batches,
    initial,
    prior_arrays,
    step,
)

Array = np.ndarray

ROWS = 1000
"""Inputs that are predicted together."""
step_of = jax.jit(step)


def trained(
    layers: Layers, x: Any, y: Any, *, task: str, seed: int, variance: float, steps: int, batch: int
) -> Network:
    """The posterior of one task under independent normal weights of that variance.

    Steps are compiled one at a time: a convolution inside a loop that is compiled as a whole runs
    several times more slowly on a CPU. The rate of log deviations is ten times that of means.
    """
    key = site_key(jax.random.key(seed), task)
    bound = Bound(layers, "categorical", 1.0, 1.0, None)
    prior = Network.prior(layers, variance)
    x = np.asarray(x, np.float32).reshape(len(x), -1)
    y = np.asarray(y, np.int32)
    with jax.enable_x64(False):  # in single precision, whatever the caller computes in
        first, run = jax.random.split(key)
        state, moments = initial(started(bound, None, key=first)), prior_arrays(prior)
        chosen = batches(len(x), min(batch, len(x)), keys.of_numpy(key))
        for count, rows in zip(range(steps), chosen, strict=False):
            rate = RATE * min(1.0, (steps - count) / max(COOLING * steps, 1))
            state, _ = step_of(
                bound,
                state,
                moments,
                x[rows],
                y[rows],
                np.float32(len(x)),
                np.float32(rate),
                jax.random.fold_in(run, count),
            )
    return as_posterior(bound, state[0])


def chances(network: Network, x: Any, draws: int, seed: int = 0) -> tuple[Array, Array]:
    """Mean chances (n, K) over draws of the weights, and the mean entropy of the draws' answers."""
    rng = np.random.RandomState(seed)
    mean = np.asarray(network.mean, np.float32)
    spread = np.sqrt(np.asarray(network.variance, np.float32))
    weights = [
        mean + spread * rng.standard_normal(mean.size).astype(np.float32) for _ in range(draws)
    ] or [mean]
    x = np.asarray(x, np.float32).reshape(len(x), -1)
    total = np.zeros((len(x), network.layers.outputs))
    entropy = np.zeros(len(x))
    with jax.enable_x64(False):
        for at in range(0, len(x), ROWS):
            part = x[at : at + ROWS]
            padded = np.concatenate([part, np.zeros((ROWS - len(part), x.shape[1]), np.float32)])
            for z in weights:
                logs = np.asarray(_log_chances(network.layers, z, padded))[: len(part)]
                own = np.exp(logs.astype(np.float64))
                total[at : at + ROWS] += own / len(weights)
                entropy[at : at + ROWS] -= (own * logs).sum(1) / len(weights)
    return total, entropy


@functools.partial(jax.jit, static_argnums=0)
def _log_chances(layers: Layers, z: Any, x: Any) -> Any:
    return jax.nn.log_softmax(outputs(layers, z, x))
