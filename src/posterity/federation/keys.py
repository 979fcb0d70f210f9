"""Random keys of steps and of sites."""

import hashlib

from posterity.arrays.keys import Words, fold_in, seeded
from posterity.arrays.typing import KeyArray


def first_key() -> Words:
    """Return the data of ``jax.random.key(0)``."""
    return seeded(0)


def step_key(key: KeyArray, step: int) -> KeyArray:
    """Return the key of a step, or of the answer to the token of this number, from 0 on."""
    return fold_in(key, step + 1)


def site_key(key: KeyArray, site: str) -> KeyArray:
    """Return the site's own key, which does not depend on the other sites."""
    return fold_in(key, int.from_bytes(hashlib.sha256(site.encode()).digest()[:4], "little"))
