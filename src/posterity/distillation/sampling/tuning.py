"""Starting points of a network's chains, and step sizes that suit the posterior there.

Chains climb by Adam to where the posterior has its mass. The size of a step is bounded by the
largest curvature of the log density, beyond which a chain is too warm and then diverges, and by the
noise of minibatch gradients, which heats a chain as well: one compiled gradient serves both.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from posterity.arrays import keys
from posterity.distillation.sampling.schedules import adam
from posterity.distillation.sampling.target import Target

RATE = 1e-2
CHUNK = 250  # Steps of a climb in one compiled call, after which it can be interrupted
EXCESS = 0.05, 0.03
"""By how much a chain's temperature may exceed what it should be in its worst direction, for
either reason; without momentum, and with it."""
POWERS = 24  # Products with the curvature from which its largest value is found
GRADIENTS = 64  # Minibatches from which the noise of gradients is found
LITTLE = 0.01  # The least friction that is found: momentum lasts for a hundred steps
FEW = 4  # Chains of which the direction of the largest noise is sought
NUMBERS = 1 << 26  # Entries, about, of all minibatch gradients that are held at a time
WIDEST = 30.0  # How much larger than the median a coordinate's scale may be


@jax.jit
def _gradient(target: Target, positions: PyTree, key: jax.Array) -> Any:
    chains = len(jax.tree.leaves(positions)[0])
    return target.value_and_gradient(positions, target.minibatch(chains, key=key))[1]


def climb(target: Target, positions: PyTree, steps: int, *, key: jax.Array) -> Any:
    """Positions after some steps of Adam on the log density, the rate falling to zero."""
    state = positions, adam(-RATE, 0, steps).init(positions)
    for begin in range(0, steps, CHUNK):
        ends = np.array([begin, min(begin + CHUNK, steps), steps], np.int32)
        state = _climbed(target, state, ends, key)
    return state[0]


@jax.jit
def _climbed(target: Target, state: PyTree, ends: Any, key: jax.Array) -> Any:
    """Positions and Adam's moments, from one step to another of so many."""

    def one(number: Any, state: PyTree) -> Any:
        positions, moments = state
        gradient = _gradient(target, positions, jax.random.fold_in(key, number))
        moves, moments = adam(-RATE, 0, ends[2]).update(gradient, moments)
        return jax.tree.map(jnp.add, positions, moves), moments

    return jax.lax.fori_loop(ends[0], ends[1], one, state)


def tuned(
    target: Target, positions: PyTree, friction: Any, *, scaled: bool, key: jax.Array
) -> tuple[PyTree, float, float]:
    """A scale for each coordinate, the largest safe step in its units, and the friction.

    The scale is about the posterior variance where it is ``scaled``, else one for each array. Of a
    direction of curvature ``c`` steps of size ``s`` with friction ``f``, 1 without momentum, leave
    the variance ``1 / (1 - f s c / (4 (2 - f)))`` times what it should be. Where the friction is
    None the step is as large as the friction, so that a direction as wide as the scale is forgotten
    as fast as momentum; unless the noise of minibatches asks for less.
    """
    first, second, third = jax.random.split(key, 3)
    scale = jax.tree.map(lambda leaf: np.ones((1,) * leaf.ndim, leaf.dtype), positions)
    if scaled:
        # Records tell how much they say of a coordinate only where a batch has not all of them.
        few = max(min(target.batch_size, target.count // 4), 1)
        part = dataclasses.replace(target, batch_size=few)
        scale = _scale(part, _spread(part, positions, first))
    root = _root(positions, scale)
    # Minibatches differ: the mean, and two standard errors, of the worst chain.
    mean, error = _curvature(target, positions, root, second)
    curvature, heat = float((mean + 2 * error).max()), 0.0
    if target.batch_size < target.count:
        widest = lambda v, r: v * r.max(0, keepdims=True) ** 2
        noise = jax.tree.map(widest, _spread(target, positions, third), root)
        heat = np.quantile(np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(noise)]), 0.99)
    curvature, excess = max(curvature, 1e-30), EXCESS[friction != 1]
    if friction is None:
        alike, enough = (8 * excess / curvature) ** 0.5, 2 * heat / (curvature + heat)
        friction = float(np.clip(max(alike, enough), LITTLE, 1))
    worst = max(curvature * friction / (2 - friction), heat)
    return scale, float(4 * excess / worst), float(friction)


def warmth(
    target: Target, positions: PyTree, scale: PyTree, friction: float, *, key: jax.Array
) -> tuple[float, float]:
    """The mean over chains of how far each exceeds its temperature in its worst direction.

    The first number, relative, is because steps are long beside the curvature, as of :func:`tuned`;
    infinite where they are unstable. The second, in units of temperature, is because of the noise
    of minibatch gradients, of variance ``n``: ``s n / 4``. The direction of the largest noise is
    found with one half of the minibatches, and measured with the other. ``scale`` is the step size
    of each coordinate.
    """
    first, second = jax.random.split(key)
    root = _root(positions, scale)
    curvature = _curvature(target, positions, root, first)[0].mean()
    share = float(curvature) * friction / (8 - 4 * friction)
    long = share / (1 - share) if share < 1 else np.inf
    if target.batch_size == target.count:
        return long, 0.0
    size = sum(leaf[0].size for leaf in jax.tree.leaves(root))
    chains = len(jax.tree.leaves(root)[0])
    several = max(min(FEW, chains, NUMBERS // (GRADIENTS * size)), 1)
    count = max(min(GRADIENTS, NUMBERS // size // 2 * 2), 8)
    drawn = np.empty((several, count, size), np.float32)
    for place, own in enumerate(_keys(second, count)):
        gradient = jax.tree.map(np.multiply, root, _gradients(target, positions, own))
        leaves = [leaf[:several].reshape(several, -1) for leaf in jax.tree.leaves(gradient)]
        np.concatenate(leaves, 1, out=drawn[:, place])
    parts = drawn.reshape(several, 2, count // 2, size)
    parts -= parts.mean(2, keepdims=True)
    noise = []
    for one, other in parts:
        direction = np.linalg.eigh(one @ one.T)[1][:, -1] @ one
        along = other @ (direction / max(np.linalg.norm(direction), 1e-30))
        noise.append(along.var(ddof=1))
    return long, float(np.mean(noise)) / 4


def heat(target: Target, positions: PyTree, scale: PyTree, *, key: jax.Array) -> float:
    """Return by how much the noise of minibatches raises the temperature of the warmest array's
    mean. ``scale`` is the step size of each coordinate; a size ``s`` and a variance ``n`` of the
    minibatch gradient add ``s n / 4``.
    """
    if target.batch_size == target.count:
        return 0.0
    noise = jax.tree.map(np.multiply, _spread(target, positions, key), scale)
    return max(float(leaf.mean()) for leaf in jax.tree.leaves(noise)) / 4


def _root(positions: PyTree, scale: PyTree) -> Any:
    """The root of the scale of each coordinate, of each chain."""
    return jax.tree.map(lambda at, s: np.ones_like(at) * np.sqrt(s), positions, scale)


def _keys(key: jax.Array, count: int) -> list[jax.Array]:
    """Several keys, drawn by NumPy: nothing needs to be compiled for them."""
    words = keys.of_numpy(key).integers(2**32, size=(count, 2), dtype=np.uint32)
    return [jax.random.wrap_key_data(own) for own in words]


def _gradients(target: Target, positions: PyTree, key: jax.Array) -> Any:
    return jax.tree.map(np.asarray, _gradient(target, positions, key))


def _spread(target: Target, positions: PyTree, key: jax.Array) -> Any:
    """The variance of minibatch gradients of each coordinate, over batches, a mean over chains."""
    total = square = jax.tree.map(np.zeros_like, jax.tree.map(np.asarray, positions))
    for own in _keys(key, GRADIENTS):
        gradient = _gradients(target, positions, own)
        total = jax.tree.map(np.add, total, gradient)
        square = jax.tree.map(lambda old, new: old + np.square(new), square, gradient)

    def variance(total: np.ndarray, square: np.ndarray) -> np.ndarray:
        each = np.maximum(square - total**2 / GRADIENTS, 0) / (GRADIENTS - 1)
        return each.mean(0, keepdims=True)

    return jax.tree.map(variance, total, square)


def _scale(target: Target, spread: PyTree) -> Any:
    """About the posterior variance of each coordinate: one over the prior's precision and the
    information of the records, which minibatch gradients show (the Fisher information).
    """
    share = target.batch_size / target.count
    variance = lambda leaf, own: 1 / (np.asarray(own) + leaf * share)
    variances = jax.tree.map(variance, spread, target.prior[1])
    middle = np.median(np.concatenate([v.ravel() for v in jax.tree.leaves(variances)]))
    return jax.tree.map(lambda v: np.minimum(v, WIDEST * middle), variances)


def _curvature(
    target: Target, positions: PyTree, root: PyTree, key: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """The largest curvature of each chain in units of the scale, and its error: power iteration.
    Products are differences of gradients of one batch, as far apart as a chain moves, so that kinks
    of a network's units count as what they do to it.
    """
    rng = np.random.default_rng(0)
    direction = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), root)
    at, values = jax.tree.map(np.asarray, positions), []
    reach = 1e-2
    for own in _keys(key, POWERS):
        direction = _unit(direction)
        moved = jax.tree.map(lambda r, v, reach=reach: reach * r * v, root, direction)
        up, down = (
            _gradients(target, jax.tree.map(shift, at, moved), own)
            for shift in (lambda a, b: np.float32(a + b), lambda a, b: np.float32(a - b))
        )
        scaled = lambda one, other, r, reach=reach: r * (other - one) / (2 * reach)
        product = jax.tree.map(scaled, up, down, root)
        values.append(np.abs(_sums(direction, product)))
        reach = 0.3 / max(float(values[-1].max()), 1.0) ** 0.5
        direction = product
    last = np.array(values[POWERS // 2 :])
    return last.mean(0), last.std(0) / len(last) ** 0.5


def _sums(one: PyTree, other: PyTree) -> np.ndarray:
    """The inner product of two trees, chain by chain."""
    products = jax.tree.map(lambda a, b: (a * b).reshape(len(a), -1).sum(1), one, other)
    return sum(jax.tree.leaves(products))  # pyright: ignore[reportReturnType]


def _unit(tree: PyTree) -> Any:
    """Each chain's direction, of length one."""
    norm = np.maximum(_sums(tree, tree), 1e-30) ** 0.5
    return jax.tree.map(lambda leaf: leaf / norm.reshape(-1, *[1] * (leaf.ndim - 1)), tree)
