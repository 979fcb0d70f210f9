"""Random numbers for chains of many cheap steps: noise of the right moments, places of records.

Drawing normals takes most of the time of a Langevin step of a network on a CPU. Increments of mean
zero, variance one and third moment zero give the law of a chain's long-run averages to the same
order in the step size (talay1990); the number of ones among 32 fair bits has these moments, and its
fourth is 2.94. The bits are a hash of where a number lies, of the leaf and of the key; a compiler
fuses it with the sum that the noise goes into. Fewer rounds were seen in the lags' correlations.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import PyTree

from posterity.arguments import COUNT, Constraint, one_of
from posterity.errors import UsageError

KINDS = one_of("binomial", "normal")
"""Where noise comes from: counted bits of a hash, or the normals of :mod:`jax.random`."""

KEY = Constraint(
    "a typed key, as jax.random.key(0)",
    lambda key: isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key),
    fix="Pass jax.random.key(0), or jax.random.wrap_key_data(key) for a key without a type.",
)
BELOW = Constraint("a whole number from 1 to 2³¹ - 1", lambda n: COUNT.allows(n) and n < 2**31)
BITS = 32
# Streams of one key: normals of each leaf have one, places of records another.
PLACES = 0x51ED270B
GOLDEN = 0x9E3779B9


def normal(key: jax.Array, like: PyTree, kind: str = "binomial") -> Any:
    """Noise of mean 0, variance 1 and third moment 0, shaped and typed as the leaves of ``like``.
    Numbers are the same on every device. ``kind`` is ``"binomial"``, the number of ones among 32
    bits, centred and scaled, which is at most 5.7 in size; or ``"normal"``, exact, which takes
    forty times as long on a CPU. Another kind, a key that is not typed and leaves that are not
    floating are a UsageError.

    Source: talay1990; kloeden1992, section 14.1.

    >>> noise = normal(jax.random.key(0), {"bias": jnp.zeros(3), "kernel": jnp.zeros((200, 500))})
    >>> noise["bias"].shape, round(float(noise["kernel"].std()), 2)
    ((3,), 1.0)
    """
    KINDS.check(kind=kind)
    KEY.check(key=key)
    leaves, tree = jax.tree.flatten(like)
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise UsageError(
                found=f"a leaf of type {leaf.dtype}",
                expected="floating point: noise has no whole numbers",
                fix="Leave what is not sampled out of the position.",
            )

    def draw(index: int, leaf: jax.Array) -> jax.Array:
        if kind == "normal":
            return jax.random.normal(jax.random.fold_in(key, index), leaf.shape, leaf.dtype)
        ones = lax.population_count(bits(key, leaf.shape, stream=index))
        away = ones.astype(jnp.int32).astype(leaf.dtype) - np.asarray(BITS / 2, leaf.dtype)
        return away * np.asarray((BITS / 4) ** -0.5, leaf.dtype)

    return jax.tree.unflatten(tree, [draw(*pair) for pair in enumerate(leaves)])


def indices(key: jax.Array, shape: tuple[int, ...], below: int) -> jax.Array:
    """Independent whole numbers from 0 to ``below - 1``, all equally likely, as int32. They are
    what 32 random bits leave when divided by ``below``, from 1 to 2³¹ - 1: chances differ by at
    most one in 2³². Under the same key they are independent of :func:`normal`.
    """
    BELOW.check(below=below)
    KEY.check(key=key)
    words = bits(key, shape, stream=PLACES)
    return lax.rem(words, _word(below)).astype(jnp.int32)


def bits(key: jax.Array, shape: tuple[int, ...], stream: int = 0) -> jax.Array:
    """32 random bits an entry, as uint32; each ``stream`` of a key has others."""
    # Two words that depend on every bit of the stream and the key, whose neighbours are used.
    first, second = _word(stream), _word(GOLDEN)
    for word in jnp.moveaxis(jax.random.key_data(key), -1, 0):
        first = _mixed(first ^ word)
        second = _mixed(second + first)
    places = lax.iota(jnp.uint32, max(int(np.prod(shape)), 1)).reshape(shape)
    x = places * _word(GOLDEN) + first
    x = (x ^ (x >> _word(16))) * _word(0x7FEB352D) + second
    x = (x ^ (x >> _word(15))) * _word(0x846CA68B)
    return x ^ (x >> _word(16))


def _mixed(x: jax.Array) -> jax.Array:
    """Every bit of a word depends on every one that went in."""
    x = (x ^ (x >> _word(16))) * _word(0x85EBCA6B)
    x = (x ^ (x >> _word(13))) * _word(0xC2B2AE35)
    return x ^ (x >> _word(16))


def _word(value: int) -> Any:
    return np.uint32(value & 0xFFFFFFFF)
