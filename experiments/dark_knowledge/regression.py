"""Table 5: test log likelihoods of UCI tables: `python -m experiments.dark_knowledge.regression`.

The standard deviation of the noise and the prior variance of each layer's weights have inverse
gamma priors and are learnt on the training records alone, by expectation maximisation: chains are
run, expectations are averages over their draws. Units of y are then standard deviations of the
noise, so that the same compiled program serves all splits and sets of one size.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from experiments.data import Regression
from experiments.dark_knowledge import peers_modes, peers_nuts, peers_pbp
from posterity import distill
from posterity.distillation import Langevin, Perturbed
from posterity.errors import ConvergenceWarning
from posterity.models import NeuralNetwork
from posterity.networks import GaussianPrior, Layers, describe, train
from posterity.networks.forward import outputs

Array = NDArray[np.float64]
LOG_2PI = float(np.log(2 * np.pi))
SHAPE, RATE = 2.0, 1.0
"""Of the gamma priors of precisions, in units where y and weights are of order one."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a table is treated."""

    hidden: int = 50
    chains: int = 16
    batch: int = 100
    rounds: int = 3
    """Of expectation maximisation."""
    draws: int = 100
    """Of each chain, in a round."""
    thin: int = 10
    teacher_draws: int = 200
    """Of each chain, for the teacher's own score."""
    steps: int = 20_000
    """Of the student."""


@dataclasses.dataclass(frozen=True)
class Units:
    """What brings records to order one, from the training records."""

    shift: Array
    scale: Array
    y_shift: float
    y_scale: float

    @classmethod
    def of(cls, x: Array, y: Array) -> Units:
        """Means and standard deviations; constant columns become zero."""
        spread = x.std(0)
        return cls(x.mean(0), np.where(spread > 0, spread, 1.0), float(y.mean()), float(y.std()))

    def inputs(self, x: Array) -> Array:
        """Standardised."""
        return (x - self.shift) / self.scale

    def targets(self, y: Array) -> Array:
        """Standardised."""
        return (y - self.y_shift) / self.y_scale


@dataclasses.dataclass(frozen=True)
class Learnt:
    """Hyperparameters, of standardised data."""

    noise_variance: float
    prior_variances: tuple[float, float]

    @property
    def deviation(self) -> float:
        """Of the noise."""
        return self.noise_variance**0.5

    def prior(self, net: NeuralNetwork) -> Any:
        """Of weights where y is in standard deviations of the noise."""
        first, second = self.prior_variances
        assert net.layers is not None
        return GaussianPrior((first, second / self.noise_variance)).network(net.layers)


def network(columns: int, settings: Settings) -> NeuralNetwork:
    """One hidden layer; noise of variance one."""
    layers = Layers.dense(columns, settings.hidden, 1)
    return NeuralNetwork.of_layers(layers, likelihood="gaussian", noise_variance=1.0)


def teacher(net: NeuralNetwork, x: Array, y: Array, learnt: Learnt, settings: Settings) -> Langevin:
    """Chains on standardised records."""
    data = (x.astype(np.float32), (y / learnt.deviation).astype(np.float32))
    return Langevin(
        net, learnt.prior(net), data,
        chains=settings.chains, batch=settings.batch, thin=settings.thin,
    )  # fmt: skip


def learn(net: NeuralNetwork, x: Array, y: Array, settings: Settings, *, key: Any) -> Learnt:
    """Expectation maximisation over the precisions of noise and weights."""
    learnt = Learnt(0.1, (1.0, 1.0 / settings.hidden))
    for number in range(settings.rounds):
        own = jax.random.fold_in(key, number)
        chains = teacher(net, x, y, learnt, settings)
        draws = flat(net, chains.sample(settings.draws, key=own).samples)
        learnt = improved(net, x, y, learnt, draws)
    return learnt


def improved(net: NeuralNetwork, x: Array, y: Array, learnt: Learnt, draws: Array) -> Learnt:
    """The modes of noise and prior variances, given draws of the weights."""
    residuals = y - learnt.deviation * values(net, draws, x)
    layers: Any = net.layers
    first = layers.layers[0].inputs * layers.layers[0].outputs + layers.layers[0].outputs
    parts = draws[:, :first], draws[:, first:] * learnt.deviation
    # the output layer's weights are small, as there are many: in units of one over their number
    count = parts[1].shape[1]
    spread = [
        _mode((parts[0] ** 2).mean() * first, first),
        _mode((parts[1] ** 2).mean() * count * count, count) / count,
    ]
    noise = _mode((residuals**2).mean() * len(y), len(y), rate=0.01)
    return Learnt(float(noise), (float(spread[0]), float(spread[1])))


def _mode(total: float, count: int, rate: float = RATE) -> float:
    """Of a variance, by the mean of its precision, given a sum of so many squares."""
    return (rate + total / 2) / (SHAPE + count / 2)


def flat(net: NeuralNetwork, samples: Any) -> Array:
    """(S, p) weights of draws."""
    if isinstance(samples, np.ndarray):
        return samples
    leaves = jax.tree.leaves(samples)
    return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in leaves], 1)


def values(net: NeuralNetwork, draws: Array, x: Array) -> Array:
    """(S, n) what each of the draws says."""
    with jax.enable_x64(False):
        single = jnp.asarray(x, jnp.float32)
        found = [np.asarray(_values(net.layers, part, single)) for part in _parts(draws)]
    return np.concatenate(found).astype(np.float64)


def _parts(draws: Array) -> list[Any]:
    return [jnp.asarray(part, jnp.float32) for part in np.array_split(draws, -(-len(draws) // 200))]


def _each(layers: Any, draws: Any, x: Any) -> Any:
    return jax.vmap(lambda z: outputs(layers, z, x)[:, 0])(draws)


_values = jax.jit(_each, static_argnums=0)
