"""Random numbers without JAX: those that JAX draws from the same key, bit for bit.

A key is two words, of which Threefry (salmon2011) makes others and numbers. JAX draws on from
where these functions leave off.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from posterity.arguments import Constraint
from posterity.arrays.typing import KeyArray
from posterity.runtime.jax_loaded import is_jax
from posterity.runtime.lazy import jax

THREEFRY = "threefry2x32"
ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
"""Rotations of rounds of the two kinds, in bits."""
PARITY = 0x1BD11BDA
"""The constant of Threefry's key schedule."""
WORD = 0xFFFFFFFF
"""All bits of a word."""
KEY = Constraint(
    "a key of jax.random",
    lambda key: isinstance(key, Words) or is_jax(key),
    fix="Pass `jax.random.key(0)`, with a number of your own, or leave it out.",
)


class Words(NamedTuple):
    """A key of ``jax.random.key`` by its words."""

    high: int
    low: int

    @property
    def array(self) -> np.ndarray:
        """The key's numbers, as ``jax.random.key_data`` has them."""
        return np.array(self, np.uint32)

    def __posterity_content__(self) -> tuple[str, str, np.ndarray]:
        return "key", "key<fry>", self.array  # as JAX's key of the same words


def seeded(seed: int) -> Words:
    """``jax.random.key(seed)``, of which the last 32 bits count."""
    return Words(0, seed & WORD)


def plain(key: KeyArray) -> Words:
    """JAX's key as words: of a generator with more than Threefry's two, the first. A UsageError if
    it is no key.
    """
    KEY.check(key=key)
    if not is_jax(key):
        return key  # pyright: ignore[reportReturnType]
    typed = jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key)
    return Words(*np.ravel(jax.random.key_data(key) if typed else key)[:2].tolist())


def of_jax(key: KeyArray) -> Any:
    """The same as a key of JAX's."""
    words: Any = plain(key).array
    return jax.random.wrap_key_data(words, impl=THREEFRY)


def of_numpy(key: KeyArray) -> np.random.Generator:
    """NumPy's generator of a key: nothing is compiled for numbers that are drawn once."""
    return np.random.default_rng(plain(key).array)


def of_data(words: np.ndarray) -> Words:
    """Return the key with these words; a ValueError if there are no such keys."""
    if words.shape != (2,) or words.dtype != np.uint32:
        raise ValueError(f"words of shape {words.shape} and type {words.dtype} of a key")
    return Words(*words.tolist())


def fold_in(key: KeyArray, number: int) -> Words:
    """``jax.random.fold_in``."""
    return Words(*_threefry(plain(key), 0, number & WORD))


def bits(key: KeyArray, place: int = 0) -> int:
    """32 random bits: an entry of ``jax.random.bits``."""
    one, other = _threefry(plain(key), 0, place)
    return one ^ other


def below(key: KeyArray, size: int, count: int) -> list[int]:
    """Numbers from 0 to ``size - 1``: ``jax.random.randint`` of 32 bits."""
    high, low = fold_in(key, 0), fold_in(key, 1)  # as JAX splits a key
    unit = ((2**16 % size) ** 2 & WORD) % size
    pairs = [(bits(high, place), bits(low, place)) for place in range(count)]
    return [(one % size * unit + other % size & WORD) % size for one, other in pairs]


def exponential(key: KeyArray) -> float:
    """A number of mean one: ``jax.random.exponential`` of 32 bits, but for its last digit."""
    return float(np.float32(-math.log1p(-(bits(key) >> 9) / 2**23)))


def _threefry(key: Words, x: int, y: int) -> tuple[int, int]:
    one, two = key
    schedule = one, two, one ^ two ^ PARITY
    x = x + one & WORD
    y = y + two & WORD
    for four in range(5):
        for turn in ROTATIONS[four % 2]:
            x = x + y & WORD
            y = (y << turn | y >> 32 - turn) & WORD ^ x
        x = x + schedule[(four + 1) % 3] & WORD
        y = y + schedule[(four + 2) % 3] + four + 1 & WORD
    return x, y
