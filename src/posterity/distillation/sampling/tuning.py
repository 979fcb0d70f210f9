"""Step sizes of chains, tuned where they start.

The step size is limited by the largest curvature of the log density, as too large steps first raise
the temperature and then diverge, and by the noise of minibatch gradients, which also raises it. One
compiled gradient serves both estimates.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from posterity.distillation.sampling.target import Target
from posterity.runtime.programs import jitted

GRADIENTS = 64  # Minibatches from which the noise of gradients is estimated


@jitted
def gradient(target: Target, positions: PyTree, key: jax.Array) -> Any:
    """Return the gradient of the log density at each position, by one minibatch."""
    chains = len(jax.tree.leaves(positions)[0])
    return target.value_and_gradient(positions, target.minibatch(chains, key=key))[1]


def tuned(
    target: Target,
    positions: PyTree,
    friction: Any,
    *,
    scaled: bool,
    key: jax.Array,
    little: float = 0.01,  # Least tuned friction: momentum then lasts for a hundred steps
    widest: float = 30.0,  # Largest ratio of a coordinate's scale to the median
    # Largest relative excess of a temperature in its worst direction, from curvature and from
    # noise separately; without momentum, and with it.
    most: tuple[float, float] = (0.05, 0.03),
) -> tuple[PyTree, float, float]:
    """Return a scale for each coordinate, the largest safe step in its units, and the friction.

    The scale is one, or, if ``scaled``, about the posterior variance: the inverse of the prior's
    precision plus the records' Fisher information, estimated by minibatch gradients. In a direction
    of curvature ``c``, steps of size ``s`` with friction ``f`` (1 without momentum) inflate the
    variance by ``1 / (1 - f s c / (4 (2 - f)))``. If ``friction`` is None, step size and friction
    are tuned to be equal, so that positions at the scale relax as fast as the momentum, unless the
    noise of minibatches requires smaller steps.
    """
    first, second, third = jax.random.split(key, 3)
    scale = np.ones_like(_flat(positions)[:1])
    if scaled:
        # The spread between batches measures information only if a batch has not all records.
        few = max(min(target.batch_size, target.count // 4), 1)
        spread = _spread(dataclasses.replace(target, batch_size=few), positions, first)
        precision = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(target.prior[1])])
        scale[:] = 1 / (precision + spread * np.float32(few / target.count))
        scale = np.minimum(scale, widest * np.median(scale))
    # Curvatures vary between minibatches: take the mean plus two standard errors, worst chain.
    mean, error = _curvature(target, positions, np.sqrt(scale), second)
    curvature = max(float((mean + 2 * error).max()), 1e-30)
    heat = 0.0
    if target.batch_size < target.count:
        heat = float(np.quantile(_spread(target, positions, third) * scale, 0.99))
    excess = most[friction != 1]
    if friction is None:
        alike = (8 * excess / curvature) ** 0.5
        enough = 2 * heat / (curvature + heat)
        friction = np.clip(max(alike, enough), little, 1)
    worst = max(curvature * friction / (2 - friction), heat)
    return _like(positions, scale), float(4 * excess / worst), float(friction)


def warmth(
    target: Target,
    positions: PyTree,
    scale: PyTree,
    friction: float,
    *,
    key: jax.Array,
    few: int = 4,  # Chains whose direction of largest noise is estimated
    numbers: int = 1 << 26,  # Approximate bound on the entries of all minibatch gradients in memory
) -> tuple[float, float]:
    """Return the excess temperatures in the worst direction, averaged over chains.

    The first, relative, is due to the curvature, see :func:`tuned`; it is infinite for unstable
    steps. The second, in units of temperature, is due to the noise of minibatch gradients: ``s n /
    4`` for a variance ``n``. The direction of largest noise is estimated from one half of the
    minibatches and measured with the other. ``scale`` is the step size of each coordinate.
    """
    first, second = jax.random.split(key)
    root = _root(positions, scale)
    long = excess(target, positions, scale, friction, key=first)
    if target.batch_size == target.count:
        return long, 0.0
    chains, size = root.shape
    several = max(min(few, chains, numbers // (GRADIENTS * size)), 1)
    count = max(min(GRADIENTS, numbers // size // 2 * 2), 8)
    drawn = np.empty((several, count, size), np.float32)
    for place, own in enumerate(jax.random.split(second, count)):
        drawn[:, place] = (root * _gradients(target, positions, own))[:several]
    parts = drawn.reshape(several, 2, count // 2, size)
    parts -= parts.mean(2, keepdims=True)
    noise = []
    for one, other in parts:
        direction = np.linalg.eigh(one @ one.T)[1][:, -1] @ one
        along = other @ (direction / max(np.linalg.norm(direction), 1e-30))
        noise.append(along.var(ddof=1))
    return long, float(np.mean(noise)) / 4


def excess(
    target: Target, positions: PyTree, scale: PyTree, friction: float, *, key: jax.Array
) -> float:
    """Return the relative excess temperature of :func:`warmth` due to curvature; it is also
    infinite if the steps of one chain alone are unstable.
    """
    # Each chain's step in its worst direction, relative to the largest that is stable.
    curvature = _curvature(target, positions, _root(positions, scale), key)[0]
    shares = curvature * friction / (8 - 4 * friction)
    share = shares.mean()
    return float(share / (1 - share)) if shares.max() < 1 else np.inf


def _root(positions: PyTree, scale: PyTree) -> np.ndarray:
    """Return the square root of the step sizes ``scale``, (chains, p)."""
    shaped = jax.tree.map(lambda at, s: np.broadcast_to(s, at.shape), positions, scale)
    return np.sqrt(_flat(shaped))


def heat(target: Target, positions: PyTree, scale: PyTree, *, key: jax.Array) -> float:
    """Return the excess temperature due to minibatch noise, averaged over an array of weights, for
    the warmest array. ``scale`` is the step size of each coordinate; a size ``s`` and a variance
    ``n`` of the minibatch gradient add ``s n / 4``.
    """
    if target.batch_size == target.count:
        return 0.0
    noise = _like(positions, _spread(target, positions, key)[None])
    warm = jax.tree.map(lambda own, s: float(np.mean(own * np.asarray(s))) / 4, noise, scale)
    return max(jax.tree.leaves(warm))


def _flat(tree: PyTree) -> np.ndarray:
    """Return all coordinates (chains, p) of each chain."""
    leaves = map(np.asarray, jax.tree.leaves(tree))
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], 1)


def _like(tree: PyTree, flat: np.ndarray) -> Any:
    """Return flat coordinates (chains, p) as a tree like ``tree``."""
    leaves, kind = jax.tree.flatten(tree)
    parts = np.split(flat, np.cumsum([leaf.size // len(leaf) for leaf in leaves])[:-1], axis=1)
    shaped = [own.reshape(-1, *leaf.shape[1:]) for own, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(kind, shaped)


def _gradients(target: Target, positions: PyTree, key: jax.Array) -> np.ndarray:
    return _flat(gradient(target, positions, key))


def _spread(target: Target, positions: PyTree, key: jax.Array) -> np.ndarray:
    """Return the variance (p,) of minibatch gradients, averaged over chains."""
    total = square = np.zeros_like(_flat(positions))
    for own in jax.random.split(key, GRADIENTS):
        gradient = _gradients(target, positions, own)
        total = total + gradient
        square = square + gradient**2
    return (np.maximum(square - total**2 / GRADIENTS, 0) / (GRADIENTS - 1)).mean(0)


def _curvature(
    target: Target,
    positions: PyTree,
    root: np.ndarray,
    key: jax.Array,
    *,
    powers: int = 24,  # Power iterations for the largest curvature
) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest curvature of each chain in units of the scale, by power iteration, and its
    error. Products are differences of gradients of one batch at the distance of a chain's moves, so
    that kinks of a network's activations count with their effect on the chain.
    """
    at = _flat(positions)
    values = []
    reach = 1e-2
    direction = np.random.default_rng(0).standard_normal(at.shape)
    for own in jax.random.split(key, powers):
        direction = direction / np.maximum(np.linalg.norm(direction, axis=1), 1e-15)[:, None]
        moved = reach * root * direction
        up, down = (
            _gradients(target, _like(positions, np.asarray(at + way * moved, np.float32)), own)
            for way in (1, -1)
        )
        product = root * (down - up) / (2 * reach)
        values.append(np.abs((direction * product).sum(1)))
        reach = 0.3 / max(float(values[-1].max()), 1.0) ** 0.5
        direction = product
    last = np.array(values[powers // 2 :])
    return last.mean(0), last.std(0) / len(last) ** 0.5
