"""Keys of steps and of sites."""

import hashlib

from posterity.arrays.keys import Words, fold_in, seeded
from posterity.arrays.typing import KeyArray


def first_key() -> Words:
    """The data of ``jax.random.key(0)``."""
    return seeded(0)


def step_key(key: KeyArray, step: int) -> KeyArray:
    """The key of a step, or of the answer to the token with this sequence number; from 0 on."""
    return fold_in(key, step + 1)


def site_key(key: KeyArray, site: str) -> KeyArray:
    """The site's own key: independent of which other sites there are."""
    return fold_in(key, int.from_bytes(hashlib.sha256(site.encode()).digest()[:4], "little"))
