"""Small tasks: rings of clusters in the plane, in pairs of classes."""

import numpy as np

from posterity.pursuit.learning import ConjugateLearner, VectorFeatures

CLASSES = 4
FEATURES = VectorFeatures(2, width=30)
Array = np.ndarray


def records(count: int = 160, seed: int = 0, noise: float = 0.25) -> tuple[Array, Array]:
    """Clusters on a circle, one a class."""
    rng = np.random.default_rng(seed)
    y = rng.integers(CLASSES, size=count)
    angle = y * 2 * np.pi / CLASSES
    x = np.stack([np.cos(angle), np.sin(angle)], 1) + noise * rng.normal(size=(count, 2))
    return x, y


def tasks(count: int = 160, seed: int = 0) -> dict[str, tuple[Array, Array]]:
    """Two tasks of two classes each, and one that holds classes of both."""
    x, y = records(count, seed)
    mixed = records(count // 4, seed + 1)
    return {
        "low": (x[y < 2], y[y < 2]),
        "high": (x[y >= 2], y[y >= 2]),
        "mixed": mixed,
    }


def conjugate() -> ConjugateLearner:
    """One that is quick."""
    return ConjugateLearner(CLASSES, FEATURES)
