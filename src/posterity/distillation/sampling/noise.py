"""Cheap random numbers for chains of many steps: noise with the right moments, record indices.

Drawing normals takes most of the time of a network's Langevin step on a CPU. Increments of mean
zero, variance one and third moment zero give a chain's long-run averages to the same order in the
step size (talay1990). The standardised number of ones among 32 fair bits has these moments, and a
fourth moment of 2.94. The bits are a hash of the entry's position, the leaf and the key, which the
compiler fuses with the update. Fewer rounds of the hash left visible autocorrelations.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import PyTree

from posterity.arguments import Constraint, one_of

KINDS = one_of("binomial", "normal")
"""Kinds of noise: counted bits of a hash, or the normals of :mod:`jax.random`."""

KEY = Constraint(
    "a typed key, as jax.random.key(0)",
    lambda key: isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key),
    fix="Pass jax.random.key(0), or jax.random.wrap_key_data(key) for a key without a type.",
)
BITS = 32
# Streams of one key: one for the noise of each leaf, and PLACES for indices of records.
PLACES = np.uint32(0x51ED270B)
GOLDEN = np.uint32(0x9E3779B9)


def normal(key: jax.Array, like: PyTree, kind: str = "binomial") -> Any:
    """Draw noise of mean 0, variance 1 and third moment 0, shaped and typed as leaves of ``like``.
    Numbers are the same on every device. ``kind`` is ``"binomial"``, the standardised number of
    ones among 32 bits, at most 5.7 in absolute value; or ``"normal"``, which is exact and takes
    forty times as long on a CPU. Leaves are floating-point. A UsageError for an untyped key.

    Source: talay1990; kloeden1992, section 14.1.

    >>> noise = normal(jax.random.key(0), {"bias": jnp.zeros(3), "kernel": jnp.zeros((200, 500))})
    >>> noise["bias"].shape, round(float(noise["kernel"].std()), 2)
    ((3,), 1.0)
    """
    KEY.check(key=key)
    leaves, tree = jax.tree.flatten(like)

    def draw(index: int, leaf: np.ndarray | jax.Array) -> jax.Array:
        if kind == "normal":
            return jax.random.normal(jax.random.fold_in(key, index), leaf.shape, leaf.dtype)
        ones = lax.population_count(bits(key, leaf.shape, stream=index))
        away = ones.astype(jnp.int32).astype(leaf.dtype) - np.asarray(BITS / 2, leaf.dtype)
        return away * np.asarray((BITS / 4) ** -0.5, leaf.dtype)

    return jax.tree.unflatten(tree, [draw(*pair) for pair in enumerate(leaves)])


def indices(key: jax.Array, shape: tuple[int, ...], below: int) -> jax.Array:
    """Draw independent uniform integers from 0 to ``below - 1``, as int32. They are the remainders
    of 32 random bits divided by ``below``, from 1 to 2³¹ - 1, so that probabilities differ by at
    most 2⁻³². Under the same key they are independent of :func:`normal`.
    """
    words = bits(key, shape, stream=PLACES)
    return lax.rem(words, np.uint32(below)).astype(jnp.int32)


def bits(key: jax.Array, shape: tuple[int, ...], stream: Any = 0) -> jax.Array:
    """Draw 32 random bits per entry, as uint32; they differ between streams of a key."""
    # Two words that depend on every bit of the stream and the key, as neighbouring keys are used.
    first = np.uint32(stream)
    second = GOLDEN
    for word in jnp.moveaxis(jax.random.key_data(key), -1, 0):
        first = _mixed(first ^ word)
        second = _mixed(second + first)
    places = lax.iota(jnp.uint32, int(np.prod(shape))).reshape(shape)
    x = _folded(places * GOLDEN + first, 16) * np.uint32(0x7FEB352D) + second
    return _folded(_folded(x, 15) * np.uint32(0x846CA68B), 16)


def _mixed(x: Any) -> Any:
    """Mix a word so that every output bit depends on every input bit."""
    x = _folded(x, 16) * np.uint32(0x85EBCA6B)
    return _folded(_folded(x, 13) * np.uint32(0xC2B2AE35), 16)


def _folded(x: Any, by: int) -> Any:
    return x ^ (x >> np.uint32(by))
