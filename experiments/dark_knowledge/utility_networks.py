"""Networks whose compiled programs serve data that grow, and the mode that a user would plug in.

A chain is compiled for a number of records. Here data grow from round to round, so they are filled
up with rows of zeros to a few sizes. The networks have no biases, only a column of ones among their
inputs: of a row of zeros they say zero whatever their weights are, so its likelihood is constant
and the posterior is that of the true records alone.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from posterity.distillation import Draws, Langevin
from posterity.models import NeuralNetwork
from posterity.networks import Dense, Layers

Array = NDArray[np.float64]
RATE = 1e-2
"""Of the mode's Adam."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much every fit does; the same for all methods."""

    chains: int = 8
    climb: int = 300
    burn_in: int = 500
    draws: int = 25
    """Of each chain, that the full teacher keeps."""
    apart: int = 10
    """Steps between two of these."""
    steps: int = 1500
    """Of the student."""
    mode_steps: int = 400
    batch: int = 64


def without_biases(inputs: int, hidden: int, outputs: int) -> Layers:
    """A perceptron that is zero at zero."""
    return Layers(
        (Dense(inputs, hidden, "relu", bias=False), Dense(hidden, outputs, "identity", bias=False))
    )


def filled(x: Array, y: Any, sizes: tuple[int, ...]) -> tuple[Any, Any]:
    """Records and rows of zeros, to the smallest of the sizes that holds them."""
    size = min(size for size in sizes if size >= len(x))
    more = size - len(x)
    x = np.concatenate([x, np.zeros((more, *x.shape[1:]))]).astype(np.float32)
    y = np.asarray(y)
    y = np.concatenate([y, np.zeros((more, *y.shape[1:]), y.dtype)])
    return x, y.astype(np.int32 if y.dtype.kind in "iu" else np.float32)


def chains(net: NeuralNetwork, variance: float, data: Any, effort: Effort) -> Langevin:
    """The teacher of both: the one that keeps its draws, and the one that a student hears."""
    return Langevin(
        net, net.prior(variance=variance), data, chains=effort.chains, batch_size=effort.batch,
        climb=effort.climb, burn_in=effort.burn_in,
    )  # fmt: skip


# --- the full posterior --------------------------------------------------------------------------


def kept(net: NeuralNetwork, variance: float, data: Any, effort: Effort, key: Any) -> Draws:
    """The full teacher: draws of all chains, some steps apart."""
    found = chains(net, variance, data, effort).sample(effort.draws * effort.apart, key=key)
    # Thinned here and not by `thin`, which thins the burn-in as well: as many times longer.
    samples = found.stack.reshape(-1, effort.chains, net.size)[effort.apart - 1 :: effort.apart]
    return Draws(net, samples.reshape(-1, net.size))


def each(draws: Draws, x: Any) -> Array:
    """(S, n, k): what each of the draws says."""
    with jax.enable_x64(False):
        found = _each(draws, jnp.asarray(x, jnp.float32))
        return np.asarray(found, np.float64)


@jax.jit
def _each(draws: Draws, x: Any) -> Any:
    return draws.outputs(draws.stack, x)


# --- the mode ------------------------------------------------------------------------------------


def modes(
    net: NeuralNetwork, variance: float, data: Any, steps: int, *, seed: int, count: int
) -> Any:
    """(count, p): weights of highest posterior density that Adam finds, from as many starts."""
    rng = np.random.default_rng([seed, 77])
    assert net.layers is not None
    starts = [
        np.concatenate([
            rng.normal(size=place.shape).ravel() * np.sqrt(2 / place.shape[0])
            for places in net.layers.places for place in places.values()
        ])
        for _ in range(count)
    ]  # fmt: skip
    with jax.enable_x64(False):
        starts = jnp.asarray(np.stack(starts), jnp.float32)
        return np.asarray(_modes(net, steps, starts, data, jnp.float32(variance)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _modes(net: NeuralNetwork, steps: int, starts: Any, data: Any, variance: Any) -> Any:
    adam = optax.adam(optax.cosine_decay_schedule(RATE, steps))

    def loss(z: Any) -> Any:
        return (z**2).sum() / (2 * variance) - net.log_likelihood(z, data).sum()

    def step(carry: Any, _: Any) -> Any:
        z, moments = carry
        moves, moments = adam.update(jax.vmap(jax.grad(loss))(z), moments)
        return (optax.apply_updates(z, moves), moments), None

    return jax.lax.scan(step, (starts, adam.init(starts)), None, steps)[0][0]


def outputs(net: NeuralNetwork, weights: Any, x: Any) -> Array:
    """(count, n, k): of each of some flat weights."""
    with jax.enable_x64(False):
        return np.asarray(_outputs(net, jnp.asarray(weights), jnp.asarray(x, jnp.float32)))


@functools.partial(jax.jit, static_argnums=0)
def _outputs(net: NeuralNetwork, weights: Any, x: Any) -> Any:
    return jax.vmap(lambda z: net.outputs(z, x))(weights)


# --- time ----------------------------------------------------------------------------------------


def seconds(do: Callable[[], Any], times: int) -> float:
    """Processor time of one call, the least of three averages; after one that compiles."""
    do()
    found = []
    for _ in range(3):
        begin = time.process_time()
        for _ in range(times):
            do()
        found.append((time.process_time() - begin) / times)
    return min(found)
