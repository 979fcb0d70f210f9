"""Local posteriors: mean-field Gaussians over a network's weights by stochastic gradients."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.families.network import Network
from posterity.ledger import Ledger
from posterity.networks.adam import Moments, ascend
from posterity.networks.bound import Bound, Parameters, as_posterior, started
from posterity.networks.layers import Layers
from posterity.networks.priors import GaussianPrior, Horseshoe, Prior, as_network

CHUNK = 50
"""Steps that are compiled into one program, after which it is seen how far training has come."""
FASTER = 10.0
"""How much faster log standard deviations move than means: they have further to go."""
COOLING = 0.3
"""The share of the steps, at the end, over which the rate falls to zero."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """What :func:`train` gives back.

    ``posterior`` and ``prior`` are Gaussian; under a horseshoe they have its two first moments.
    ``trace`` is the evidence lower bound in nats a record, averaged over each ``CHUNK`` of steps.
    """

    posterior: Network
    prior: Network
    trace: np.ndarray
    temperature: float

    def ledger(self, site: str) -> Ledger:
        """The posterior as the ledger of one site, to be saved, sent and fused."""
        return Ledger.of_site(site, prior=self.prior, posterior=self.posterior)


def train(
    layers: Layers,
    data: Any,
    *,
    key: jax.Array,
    prior: Prior | None = None,
    likelihood: str = "categorical",
    noise_variance: float | int = 1.0,
    temperature: float | int = 1.0,
    steps: int = 2000,
    batch: int = 100,
    learning_rate: float = 2e-3,
    start: Network | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Trained:
    """Fit a mean-field Gaussian over the weights of a network to one site's data."""
    prior = GaussianPrior() if prior is None else prior
    gaussian = as_network(prior, layers)
    horseshoe = prior if isinstance(prior, Horseshoe) else None
    if isinstance(prior, Network) and start is None:
        start = prior
    bound = Bound(layers, likelihood, float(noise_variance), float(temperature), horseshoe)
    x, y = _arrays(data, layers, likelihood)
    begin, run = jax.random.split(key)
    own = jax.tree.map(jnp.asarray, started(bound, start, key=begin))
    state = (own, Moments.of(own))
    known, trace = _prior_arrays(gaussian, horseshoe), []
    chunks = -(-steps // CHUNK)
    indices = _batches(len(x), min(batch, len(x)), run)
    for chunk in range(chunks):
        index = np.stack([next(indices) for _ in range(CHUNK)]).astype(np.int32)
        done = (chunk + np.arange(CHUNK) / CHUNK) / chunks
        rates = learning_rate * np.minimum(1, (1 - done) / COOLING)
        chunk_key = jax.random.fold_in(run, chunk)
        state, value = _chunk(bound, state, known, x, y, index, rates.astype(np.float32), chunk_key)
        trace.append(float(value))
        if progress is not None:
            progress((chunk + 1) * CHUNK, chunks * CHUNK, trace[-1])
    return Trained(as_posterior(bound, state[0]), gaussian, np.array(trace), float(temperature))


def _arrays(data: Any, layers: Layers, likelihood: str) -> tuple[Any, Any]:
    x, y = data
    kind = np.int32 if likelihood == "categorical" else np.float32
    x = np.asarray(x, np.float32).reshape(len(x), -1)
    return jnp.asarray(x), jnp.asarray(np.asarray(y).astype(kind))


def _prior_arrays(prior: Network, horseshoe: Horseshoe | None) -> Any:
    """Mean and log deviation by layer; under a horseshoe those of weights over their scale."""
    layers = prior.layers
    mean = layers.unravel(np.asarray(prior.mean, np.float32))
    log = layers.unravel(np.asarray(np.log(prior.variance) / 2, np.float32))
    if horseshoe is not None:
        log[:-1] = jax.tree.map(np.zeros_like, log[:-1])
    return mean, log


def _batches(count: int, size: int, key: Any) -> Iterator[np.ndarray]:
    """Places of records, all once before any comes again."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32))
    waiting = np.zeros(0, np.int64)
    while True:
        while len(waiting) < size:
            waiting = np.concatenate([waiting, rng.permutation(count)])
        yield waiting[:size]
        waiting = waiting[size:]


@functools.partial(jax.jit, static_argnums=0)
def _chunk(
    bound: Bound, state: Any, prior: Any, x: Any, y: Any, index: Any, rates: Any, key: Any
) -> tuple[Any, Any]:
    """Several steps, and the mean bound on their batches."""

    def step(carry: Any, now: Any) -> tuple[Any, Any]:
        own, moments = carry
        places, rate, number = now
        value, gradient = jax.value_and_grad(bound)(
            own, prior, x[places], y[places], len(x), key=jax.random.fold_in(key, number)
        )
        own, moments = ascend(own, gradient, moments, _rates(own, rate))
        return (own, moments), value

    state, values = jax.lax.scan(step, state, (index, rates, jnp.arange(len(rates))))
    return state, values.mean()


def _rates(own: Parameters, rate: Any) -> Any:
    """Ten times the mean's for log deviations, and for the logarithms of scales."""
    slow = {"mean": rate}
    return {n: jax.tree.map(lambda _: slow.get(n, FASTER * rate), part) for n, part in own.items()}
