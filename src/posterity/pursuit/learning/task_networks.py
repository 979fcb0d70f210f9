"""Networks of tasks: a mean-field posterior each, trained on the task's own records alone.

Nothing of another task goes into it, not even its random numbers: a task's key is of its name. So
such networks, and what is made of them, do not depend on which other tasks there were.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.errors import ParameterError
from posterity.families.layers import Layers
from posterity.families.network import Network
from posterity.federation.keys import site_key
from posterity.networks.bound import Bound, as_posterior, started
from posterity.networks.forward import outputs
from posterity.networks.training import FASTER, RATE

Array = np.ndarray

COOLING = 0.3
"""The share of the steps, at the end, over which the rate falls to zero."""
ROWS = 1000
"""Inputs that are predicted together."""


def trained(
    layers: Layers, x: Any, y: Any, *, task: str, seed: int, variance: float, steps: int, batch: int
) -> Network:
    """The posterior of one task under independent normal weights of that variance.

    Steps are compiled one at a time: a convolution inside a loop that is compiled as a whole runs
    several times more slowly on a CPU. The rate of log deviations is ten times that of means.

    Raises:
        ParameterError: if the bound is no longer finite.
    """
    key = site_key(jax.random.key(seed), task)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key), np.uint32))
    bound = Bound(layers, "categorical", 1.0, 1.0, None)
    prior = Network.prior(layers, variance)
    x = np.asarray(x, np.float32).reshape(len(x), -1)
    y = np.asarray(y, np.int32)
    import optax  # takes a while to import

    with jax.enable_x64(False):  # in single precision, whatever the caller computes in
        first, run = jax.random.split(key)
        own = jax.tree.map(jnp.asarray, started(bound, None, key=first))
        state = own, optax.scale_by_adam().init(own)
        given = (
            layers.unravel(np.asarray(prior.mean, np.float32)),
            layers.unravel(np.asarray(np.log(prior.variance) / 2, np.float32)),
        )
        value = 0.0
        for step, places in enumerate(batches(len(x), min(batch, len(x)), steps, rng)):
            rate = RATE * min(1.0, (steps - step) / max(COOLING * steps, 1))
            state, value = step_of(
                bound, state, given, x[places], y[places], np.float32(len(x)), np.float32(rate),
                jax.random.fold_in(run, step),
            )  # fmt: skip
    if not np.isfinite(value):
        raise ParameterError(
            found=f"an evidence lower bound of {value} in task {task!r}",
            expected="a finite one",
            fix="Scale inputs to about one.",
        )
    return as_posterior(bound, state[0])


def batches(count: int, size: int, steps: int, rng: np.random.Generator) -> Any:
    """Places of records, all once before any comes again."""
    waiting = np.zeros(0, np.int64)
    for _ in range(steps):
        while len(waiting) < size:
            waiting = np.concatenate([waiting, rng.permutation(count)])
        yield waiting[:size]
        waiting = waiting[size:]


@functools.partial(jax.jit, static_argnums=0)
def step_of(
    bound: Bound, state: Any, prior: Any, x: Any, y: Any, count: Any, rate: Any, key: Any
) -> Any:
    """One step of Adam up the bound: the state after it, and the bound in nats a record."""
    import optax

    own, moments = state
    value, slope = jax.value_and_grad(bound)(own, prior, x, y, count, key=key)
    climbed: Any = optax.scale_by_adam().update(slope, moments)
    ascent, moments = climbed
    own = {
        name: jax.tree.map(
            lambda leaf, up, pace=(rate if name == "mean" else FASTER * rate): leaf + pace * up,
            part,
            ascent[name],
        )
        for name, part in own.items()
    }
    return (own, moments), value


def chances(network: Network, x: Any, draws: int, seed: int = 0) -> tuple[Array, Array]:
    """Mean chances (n, K) over draws of the weights, and the mean entropy of the draws' answers."""
    rng = np.random.RandomState(seed)
    mean = np.asarray(network.mean, np.float32)
    spread = np.sqrt(np.asarray(network.variance, np.float32))
    weights = [mean + spread * rng.standard_normal(mean.size).astype(np.float32)
               for _ in range(draws)] or [mean]  # fmt: skip
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
