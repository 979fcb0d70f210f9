"""Where chains of a network begin, and steps that suit the posterior there.

Chains start from different random weights and climb by Adam to where the posterior has its mass.
The size of a step is bounded twice: by the largest curvature of the log density, beyond which the
discretised chain is too warm and then diverges, and by the noise of minibatch gradients, which
heats a chain as well.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posterity.distillation.sampling.target import Target

RATE = 1e-2
WARMTH = 0.05
"""How much warmer than it should be a chain may be in its worst direction, for either reason."""
POWERS = 30
"""Products with the curvature from which its largest value is found."""
GRADIENTS = 64
"""Minibatches from which the noise of gradients is found."""
WIDEST = 30.0
"""How much larger than the median a coordinate's scale may be."""


class Tuned(NamedTuple):
    """What a chain is to be run with."""

    positions: Any
    scale: Any
    """Of each coordinate, about its posterior variance; None: the same for all."""
    size: float
    """A step in units of the scale."""


def climb(target: Target, positions: Any, steps: int, *, key: jax.Array) -> Any:
    """Positions after some steps of Adam on the log density, the rate falling to zero."""
    return _climb(target, positions, steps, key) if steps else positions


@functools.partial(jax.jit, static_argnums=2)
def _climb(target: Target, positions: Any, steps: int, key: jax.Array) -> Any:
    import optax

    adam = optax.adam(optax.cosine_decay_schedule(RATE, steps))
    count = chains_of(target, positions)

    def step(carry: Any, number: Any) -> tuple[Any, None]:
        at, moments = carry
        batch = target.minibatch(count, key=jax.random.fold_in(key, number))
        _, gradient = target.value_and_gradient(at, batch)
        moves, moments = adam.update(jax.tree.map(jnp.negative, gradient), moments)
        return (optax.apply_updates(at, moves), moments), None

    (found, _), _ = jax.lax.scan(step, (positions, adam.init(positions)), jnp.arange(steps))
    return found


def tuned(target: Target, positions: Any, *, scaled: bool, key: jax.Array) -> Tuned:
    """A scale for each coordinate where one is wanted, and the largest step that is safe."""
    first, second = jax.random.split(key)
    scale = None
    if scaled:
        # Records tell how much they say of a coordinate only where a batch has not all of them.
        part = dataclasses.replace(target, batch=max(min(target.batch, target.count // 4), 1))
        scale = _scale(part, _spread(part, positions, first))
    curvature, heat = _bounds(target, positions, scale, second)
    largest = min(4 * WARMTH / max(float(curvature), 1e-30), 4 * WARMTH / max(float(heat), 1e-30))
    return Tuned(positions, scale, float(largest))


def chains_of(target: Target, positions: Any) -> int:
    """How many chains there are."""
    return jax.tree.leaves(positions)[0].shape[target.axis]


@jax.jit
def _spread(target: Target, positions: Any, key: jax.Array) -> Any:
    """The variance of minibatch gradients of each coordinate, over chains and batches."""
    count = chains_of(target, positions)

    def one(number: Any) -> Any:
        batch = target.minibatch(count, key=jax.random.fold_in(key, number))
        return target.value_and_gradient(positions, batch)[1]

    def add(carry: Any, number: Any) -> tuple[Any, None]:
        found = one(number)
        total, square = carry
        return (
            jax.tree.map(jnp.add, total, found),
            jax.tree.map(lambda s, g: s + g * g, square, found),
        ), None

    zeros = jax.tree.map(jnp.zeros_like, positions)
    (total, square), _ = jax.lax.scan(add, (zeros, zeros), jnp.arange(GRADIENTS))
    each = jax.tree.map(
        lambda t, s: jnp.maximum(s - t * t / GRADIENTS, 0.0) / (GRADIENTS - 1), total, square
    )
    return jax.tree.map(lambda leaf: leaf.mean(target.axis, keepdims=True), each)


def _scale(target: Target, spread: Any) -> Any:
    """About the posterior variance of each coordinate: one over the prior's precision and the
    information of the records, which minibatch gradients show (the Fisher information).
    """
    share = target.batch / target.count
    information = jax.tree.map(lambda leaf: leaf * share, spread)
    precisions = jax.tree.map(
        lambda leaf, own: jnp.expand_dims(jnp.asarray(own), target.axis) + leaf,
        information, target.prior[1],
    )  # fmt: skip
    variances = jax.tree.map(lambda leaf: 1 / leaf, precisions)
    middle = np.median(np.concatenate([np.asarray(v).ravel() for v in jax.tree.leaves(variances)]))
    return jax.tree.map(lambda v: jnp.minimum(v, WIDEST * middle), variances)


@jax.jit
def _bounds(target: Target, positions: Any, scale: Any, key: jax.Array) -> tuple[Any, Any]:
    """The largest curvature, and the largest variance of minibatch gradients, in units of the
    scale; of the worst chain.
    """
    count = chains_of(target, positions)
    root = jax.tree.map(jnp.ones_like, positions) if scale is None else jax.tree.map(
        lambda s, at: jnp.broadcast_to(jnp.sqrt(s), at.shape), scale, positions
    )  # fmt: skip
    scaled = lambda tree: jax.tree.map(jnp.multiply, root, tree)

    def product(batch: Any, direction: Any) -> Any:
        along = scaled(direction)
        slope = lambda at: target.sums(target.value_and_gradient(at, batch)[1], along).sum()
        return scaled(jax.grad(slope)(positions))

    def sized(tree: Any) -> Any:
        norm = jnp.sqrt(jnp.maximum(target.sums(tree, tree), 1e-30))
        along = lambda leaf: leaf / _spread_out(norm, leaf, target.axis)
        return jax.tree.map(along, tree), norm

    def power(carry: Any, number: Any) -> tuple[Any, Any]:
        direction, _ = sized(carry)
        batch = target.minibatch(count, key=jax.random.fold_in(key, number))
        found = product(batch, direction)
        return found, jnp.abs(target.sums(direction, found))

    leaves, structure = jax.tree.flatten(positions)
    keys = jax.random.split(jax.random.fold_in(key, 1 << 20), len(leaves))
    begin = [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    _, values = jax.lax.scan(power, jax.tree.unflatten(structure, begin), jnp.arange(POWERS))
    # Minibatches differ: the mean over the last of them, and two standard errors.
    last = values[POWERS // 2 :]
    curvature = (last.mean(0) + 2 * last.std(0) / len(last) ** 0.5).max()
    if target.batch == target.count:
        return curvature, jnp.float32(0)
    wide = lambda v, r: v * jnp.max(r, axis=target.axis, keepdims=True) ** 2
    noise = jax.tree.map(wide, _spread(target, positions, key), root)
    flat = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(noise)])
    return curvature, jnp.quantile(flat, 0.99)


def _spread_out(per_chain: Any, leaf: Any, axis: int) -> Any:
    shape = [1] * leaf.ndim
    shape[axis] = -1
    return per_chain.reshape(shape)
