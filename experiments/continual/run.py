"""Classes in pairs, on data sets unlike MNIST: `python -m experiments.continual.run`.

Constants of `experiments/pursuit/image_features.py` were chosen on MNIST and Fashion-MNIST, none on
the digits here. Beside the conjugate learner are two rules whose sums do not depend on the order of
tasks either: linear discriminants of one shared covariance, and ridge regression on the classes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import RidgeClassifier

from experiments import harness, provenance
from experiments.data import font_digits
from experiments.pursuit.image_features import ImageFeatures
from posterity.pursuit.learning import ConjugateLearner

PLACE = harness.Place.of(__file__)
CLASSES, WIDTH = 10, 1500
SHRINKAGE, PENALTY = 1e-4, 1.0
"""Streaming LDA's usual share of the identity, and the ridge in units of a record."""
Part = tuple[np.ndarray, np.ndarray, np.ndarray]


def fonts(seed: int) -> Part:
    """Images, classes, and which are for the test: those of a fifth of the fonts."""
    found = font_digits()
    names = np.unique(found.font)
    held = np.random.default_rng(seed).permutation(names)[: len(names) // 5]
    return found.x, found.y, np.isin(found.font, held)


def optical(seed: int) -> Part:
    """Images, classes, and which are for the test: a random fifth."""
    x, y = load_digits(return_X_y=True)
    test = np.random.default_rng(seed).permutation(len(y)) < len(y) // 5
    return x.reshape(-1, 8, 8) / 16, y.astype(np.int64), test


SETS: dict[str, Callable[[int], Part]] = {"fonts": fonts, "optical digits": optical}


def conjugate(features: ImageFeatures, x: np.ndarray, y: np.ndarray, new: np.ndarray) -> Any:
    """Logarithms of the learner's class probabilities, after five tasks of two classes."""
    learner = ConjugateLearner(CLASSES, features)
    for pair in range(CLASSES // 2):
        own = y // 2 == pair
        learner = learner.observe(f"pair {pair}", x[own], y[own])
    return learner.predict(new).log_chances


def measured(data: str, seed: int) -> dict[str, dict[str, float]]:
    """Accuracy in per cent, log loss in nats and CPU seconds of each rule, after all tasks."""
    x, y, test = SETS[data](seed)
    features = ImageFeatures(x.shape[1:], width=WIDTH, seed=seed)
    flat = lambda x: x.reshape(len(x), -1)
    peers = {
        "streaming LDA": LinearDiscriminantAnalysis(solver="lsqr", shrinkage=SHRINKAGE),
        "ridge": RidgeClassifier(alpha=PENALTY),
    }
    rows: dict[str, dict[str, float]] = {}
    clock = harness.Clock()
    logs = conjugate(features, x[~test], y[~test], x[test])
    rows["conjugate learner"] = {
        "accuracy": 100 * float((logs.argmax(1) == y[test]).mean()),
        "log loss": -float(logs[np.arange(test.sum()), y[test]].mean()),
        **clock.seconds,
    }
    for place, maps in (("pixels", flat), ("the same features", features)):
        for name, peer in peers.items():
            clock = harness.Clock()
            peer.fit(maps(x[~test]), y[~test])
            row = {"accuracy": 100 * float(peer.score(maps(x[test]), y[test]))}
            if hasattr(peer, "predict_proba"):
                chances = peer.predict_proba(maps(x[test]))[np.arange(test.sum()), y[test]]
                row["log loss"] = -float(np.log(np.maximum(chances, 1e-300)).mean())
            rows[f"{name}, {place}"] = row | clock.seconds
    return rows


def run(
    place: harness.Place = PLACE,
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    data: tuple[str, ...] = tuple(SETS),
) -> dict[str, Any]:
    found = {name: harness.over_seeds([measured(name, seed) for seed in seeds]) for name in data}
    document = {
        "setting": "ten classes in five pairs, one head; accuracy in %, log loss in nats, test "
        f"records of classes of all tasks; {WIDTH} random units of oriented gradients",
        "seeds": list(seeds),
        "after five tasks": found,
        provenance.KEY: {"versions": provenance.versions("scikit-learn")},
    }
    place.write("unseen", document)
    for name, rows in found.items():
        for rule, row in rows.items():
            print(name, rule, {kind: own["mean"] for kind, own in row.items()})
    return document


if __name__ == "__main__":
    harness.command(run, data=SETS)
