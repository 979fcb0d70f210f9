"""Scikit-learn's digits, split between two sites; one network for all tests, compiled once."""

from typing import Any

import jax
import numpy as np
from sklearn.datasets import load_digits

from posterity.networks import Layers, train
from posterity.networks.training import Trained

X, Y = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))
X, Y = X[ORDER] / 16, Y[ORDER]
TRAINING, TEST = (X[:1400], Y[:1400]), (X[1400:], Y[1400:])
LOW = TRAINING[1] < 7
SITES = {
    "high": (TRAINING[0][~LOW], TRAINING[1][~LOW]),
    "low": (TRAINING[0][LOW], TRAINING[1][LOW]),
}
LAYERS = Layers.dense(64, 30, 10)


def trained(data: Any = TRAINING, *, seed: int = 0, **options: Any) -> Trained:
    return train(LAYERS, data, key=jax.random.key(seed), **options)
