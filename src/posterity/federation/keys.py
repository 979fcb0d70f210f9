"""Keys of steps and of sites, made by compiled code: JAX's own call takes ten times as long."""

import hashlib

import jax
import numpy as np

_fold_in = jax.jit(jax.random.fold_in)
first_key = jax.jit(lambda: jax.random.key(0))
"""``jax.random.key(0)``, as one program."""


def fold_in(key: jax.Array, number: int) -> jax.Array:
    """``jax.random.fold_in``, bit for bit."""
    return _fold_in(key, np.uint32(number))


def step_key(key: jax.Array, step: int) -> jax.Array:
    """The key of a step, or of the answer to the token with this sequence number; from 0 on."""
    return fold_in(key, step + 1)


def site_key(key: jax.Array, site: str) -> jax.Array:
    """The site's own key: independent of which other sites there are."""
    return fold_in(key, int.from_bytes(hashlib.sha256(site.encode()).digest()[:4], "little"))
