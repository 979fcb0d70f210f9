"""Synthetic sequences of hidden Markov models, whose states are known."""

from collections.abc import Sequence

import numpy as np

MEANS = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [6.0, 6.0], [-6.0, 3.0]])


def draw(
    means: np.ndarray, lengths: Sequence[int], *, seed: int, stay: float = 0.9
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Sequences about means that are stayed at and left at random, and their states."""
    rng = np.random.default_rng(seed)
    xs, zs = [], []
    for length in lengths:
        z = np.zeros(length, int)
        z[0] = rng.integers(len(means))
        for t in range(1, length):
            z[t] = z[t - 1] if rng.random() < stay else rng.integers(len(means))
        zs.append(z)
        xs.append(means[z] + rng.normal(size=(length, means.shape[1])))
    return xs, zs
