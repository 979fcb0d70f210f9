"""Probabilistic backpropagation: Gaussian weights by moment matching, record after record.

One network for regression with rectified units; the precisions of weights and of noise have gamma
distributions. Every layer divides what it sums by the root of how many numbers it sums, so that one
precision serves all layers. Source: hernandezlobato2015.
"""

import dataclasses
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

Array = np.ndarray
SHAPE, RATE = 6.0, 6.0
"""Of the gamma distributions that both precisions have before data: six observations' worth."""
EPOCHS = 40
LOG_2PI = float(np.log(2 * np.pi))


class Gamma(NamedTuple):
    shape: Any
    rate: Any

    @property
    def variance(self) -> Any:
        return self.rate / (self.shape - 1)


class State(NamedTuple):
    """What is believed: weights (one array (out, in + 1) a layer), and the two precisions.

    ``sites`` are the Gaussians that stand for each weight's prior, as natural parameters.
    """

    means: tuple[Any, ...]
    variances: tuple[Any, ...]
    noise: Gamma
    weights: Gamma
    sites: tuple[tuple[Any, Any], ...]


@dataclasses.dataclass(frozen=True)
class Probabilistic:
    """A fitted network, in the units of its data."""

    state: State
    shift: Array
    scale: Array
    y_shift: float
    y_scale: float

    def predict(self, x: Array) -> tuple[Array, Array, float]:
        """Mean (n,) and variance (n,) of the function, and the variance of the noise."""
        with jax.enable_x64(True):
            scaled = jnp.asarray((x - self.shift) / self.scale)
            weights = self.state.means, self.state.variances
            mean, variance = map(np.asarray, jax.vmap(lambda r: forward(*weights, r))(scaled))
            noise = float(self.state.noise.variance)
        square = self.y_scale**2
        return mean * self.y_scale + self.y_shift, variance * square, noise * square


def fit(
    x: Array, y: Array, *, hidden: tuple[int, ...] = (50,), epochs: int = EPOCHS, seed: int
) -> Probabilistic:
    """As the paper does: data standardised, each epoch all records once in a new order."""
    shift, scale = x.mean(0), np.where(x.std(0) > 0, x.std(0), 1.0)
    y_shift, y_scale = float(y.mean()), float(y.std())
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        records = jnp.asarray((x - shift) / scale), jnp.asarray((y - y_shift) / y_scale)
        state = started((x.shape[1], *hidden, 1), rng)
        for _ in range(epochs):
            order = jnp.asarray(rng.permutation(len(y)), jnp.int32)
            state = _priors_again(_epoch(state, records[0][order], records[1][order]))
        state = jax.tree.map(np.asarray, state)
    return Probabilistic(state, shift, scale, y_shift, y_scale)


def started(sizes: tuple[int, ...], rng: np.random.Generator) -> State:
    """The prior with means scattered, for at zero all units would stay the same."""
    shapes = [(after, before + 1) for before, after in itertools.pairwise(sizes)]
    start = Gamma(jnp.asarray(SHAPE), jnp.asarray(RATE))
    means = tuple(jnp.asarray(rng.normal(size=s) / np.sqrt(s[1])) for s in shapes)
    variances = tuple(jnp.full(s, start.variance) for s in shapes)
    sites = tuple((jnp.zeros(s), jnp.full(s, 1 / start.variance)) for s in shapes)
    return State(means, variances, start, start, sites)


def forward(means: Any, variances: Any, x: Any) -> tuple[Any, Any]:
    """Mean and variance of the output for one record (d,)."""
    mean, variance = x, jnp.zeros_like(x)
    for number, (m, v) in enumerate(zip(means, variances, strict=True)):
        if number:
            mean, variance = rectified(mean, variance)
        mean, variance = jnp.append(mean, 1.0), jnp.append(variance, 0.0)
        count = len(mean)
        both = m**2 @ variance + v @ (mean**2 + variance)
        mean, variance = m @ mean / jnp.sqrt(count), both / count
    return mean[0], variance[0]


def rectified(mean: Any, variance: Any) -> tuple[Any, Any]:
    """The first two moments of ``max(a, 0)`` of a Gaussian ``a``."""
    deviation = jnp.sqrt(variance)
    ratio = mean / deviation
    density = jnp.exp(-(ratio**2) / 2 - LOG_2PI / 2)
    chance = ndtr(ratio)
    first = mean * chance + deviation * density
    second = (mean**2 + variance) * chance + mean * deviation * density
    # far below zero both terms cancel: no variance is left, and none may come out negative
    return jnp.maximum(first, 0.0), jnp.maximum(second - first**2, 1e-12)


def _log_normal(value: Any, variance: Any) -> Any:
    return -(value**2 / variance + jnp.log(variance) + LOG_2PI) / 2


def _tilted(q: Gamma, log_evidence: Any) -> Gamma:
    """The gamma distribution after a factor whose evidence is known at three shapes.

    It has the first two moments of the precision (not of its logarithm).
    """
    zero, one, two = (log_evidence(Gamma(q.shape + k, q.rate)) for k in range(3))
    shape = 1 / (jnp.exp(zero + two - 2 * one) * (q.shape + 1) / q.shape - 1)
    rate = 1 / (
        jnp.exp(two - one) * (q.shape + 1) / q.rate - jnp.exp(one - zero) * q.shape / q.rate
    )
    good = jnp.isfinite(shape) & jnp.isfinite(rate) & (shape > 1) & (rate > 0)
    return Gamma(jnp.where(good, shape, q.shape), jnp.where(good, rate, q.rate))


@jax.jit
def _epoch(state: State, x: Any, y: Any) -> State:
    def record(state: State, now: Any) -> tuple[State, None]:
        row, target = now

        def log_evidence(weights: Any, noise: Gamma) -> Any:
            mean, variance = forward(*weights, row)
            return _log_normal(target - mean, noise.variance + variance)

        own = state.means, state.variances
        by_mean, by_variance = jax.grad(log_evidence)(own, state.noise)
        noise = _tilted(state.noise, lambda gamma: log_evidence(own, gamma))
        moved = [_moved(*four) for four in zip(*own, by_mean, by_variance, strict=True)]
        means, variances = zip(*moved, strict=True)
        return state._replace(means=means, variances=variances, noise=noise), None

    return jax.lax.scan(record, state, (x, y))[0]


def _moved(mean: Any, variance: Any, by_mean: Any, by_variance: Any) -> tuple[Any, Any]:
    """Moments of a Gaussian times a factor, from the gradients of the log evidence."""
    new = variance - variance**2 * (by_mean**2 - 2 * by_variance)
    good = jnp.isfinite(new) & (new > 0) & jnp.isfinite(by_mean)
    return jnp.where(good, mean + variance * by_mean, mean), jnp.where(good, new, variance)


@jax.jit
def _priors_again(state: State) -> State:
    """One sweep of expectation propagation over the factors that are the weights' priors."""
    found, gamma = [], state.weights
    for m, v, (linear, precision) in zip(state.means, state.variances, state.sites, strict=True):
        gamma, rows = jax.lax.scan(
            _one_prior, gamma, tuple(a.ravel() for a in (m, v, linear, precision))
        )
        found.append([a.reshape(m.shape) for a in rows])
    means, variances, *sites = zip(*found, strict=True)
    return State(means, variances, state.noise, gamma, tuple(zip(*sites, strict=True)))


def _one_prior(gamma: Gamma, now: Any) -> tuple[Gamma, Any]:
    mean, variance, linear, precision = now
    left = 1 / variance - precision
    cavity = 1 / left
    centre = cavity * (mean / variance - linear)

    total = gamma.variance + cavity
    # derivatives of the log evidence by the cavity's mean and variance
    slopes = -centre / total, (centre**2 / total - 1) / (2 * total)
    mean, variance = _moved(centre, cavity, *slopes)
    good = (left > 0) & (variance > 0) & jnp.isfinite(mean)
    tilted = _tilted(gamma, lambda q: _log_normal(centre, q.variance + cavity))
    changed = mean, variance, mean / variance - left * centre, 1 / variance - left
    kept = lambda new, old: jnp.where(good, new, old)
    return Gamma(*map(kept, tilted, gamma)), tuple(map(kept, changed, now))
