"""Records of a site, as its own software loads them."""

import numpy as np


def coins(heads: int, tails: int) -> np.ndarray:
    return np.repeat([1, 0], [heads, tails])
