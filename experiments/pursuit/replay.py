"""The replay rule: a bounded number of records a task is kept, and learned from again."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates

from experiments.pursuit.learners import Learner
from posterity.networks.predictive import Prediction
from posterity.pursuit.learning.conjugate import ConjugateLearner, check_known, new_records
from posterity.pursuit.learning.features import Features, default_features

Array = np.ndarray

COPIES = 30
"""Of each kept image, deformed: 0 leave 7 % of errors on MNIST with 20 a class, 30 leave 3.5 %."""


@dataclasses.dataclass(frozen=True, eq=False)
class ReplayLearner(Learner):
    """Keeps a few records of each class of a task, and learns from them and deformed copies.

    How many are kept of a task does not depend on other tasks, so that forgetting one leaves what
    would be there without it, to the last bit, and the order of tasks does not matter. It is for
    those who may keep records and want to look at what was learned from; sums of all records
    (:class:`ConjugateLearner`) reach more and keep none.

    Args:
        classes: how many there will ever be.
        coreset: records of each class of a task that are kept.
        copies: of each kept image, deformed; vectors are not.
        features: as of :class:`ConjugateLearner`.
        seed: of the deformations.
    """

    classes: int
    coreset: int = 20
    copies: int = COPIES
    features: Features | None = None
    seed: int = 0
    kept: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks that it knows, sorted."""
        return tuple(self.kept)

    @property
    def counts(self) -> Array:
        """Records of each class that it keeps, (classes,)."""
        found = np.zeros(self.classes)
        for _, y in self.kept.values():
            found += np.bincount(y.astype(np.int64), minlength=self.classes)
        return found

    def observe(self, task: str, x: Any, y: Any) -> Self:
        """As :meth:`Learner.observe`; all but a few records are let go at once."""
        x, y = new_records(task, x, y, self.tasks, self.classes)
        features = default_features(x) if self.features is None else self.features
        features.warn_of_scale(features.checked(x))
        few, labels = kept_records(x, y, self.coreset)
        return dataclasses.replace(
            self,
            features=features,
            kept={**self.kept, task: (np.array(few, np.float64), labels)},
        )

    def forget(self, *tasks: str) -> Self:
        """As :meth:`Learner.forget`, to the last bit, kept records too."""
        check_known(tasks, self.tasks)
        kept = {task: few for task, few in self.kept.items() if task not in tasks}
        return dataclasses.replace(self, kept=kept)

    @functools.cached_property
    def learned(self) -> ConjugateLearner:
        """What the kept records and their copies teach."""
        found = ConjugateLearner(self.classes, self.features)
        for task, (x, y) in self.kept.items():
            copies = self.copies if x.ndim > 2 else 0
            labels, originals = (np.tile(row, copies + 1) for row in (y, np.arange(len(y))))
            images = deformed(x, copies, self.seed)
            found = found.observe(task, images, labels, originals)
        return found

    def predict(self, x: Any) -> Prediction:
        """As :meth:`Learner.predict`."""
        return self.learned.predict(x)


# --- a few records, and deformed copies of images -------------------------------------------


def kept_records(x: Array, y: Array, each: int) -> tuple[Array, Array]:
    """At most ``each`` records of each class; of a task alone, so that no order matters."""
    places = [_spread(np.flatnonzero(y == label), each) for label in np.unique(y)]
    chosen = np.sort(np.concatenate(places))
    return x[chosen], y[chosen]


def _spread(places: Array, each: int) -> Array:
    if len(places) <= each:
        return places
    return places[np.linspace(0, len(places) - 1, each).astype(int)]


TURN = 12.0
"""Degrees, at most."""
STRETCH, SHEAR, SHIFT = 0.12, 0.15, 1.5
"""Logarithm of a stretch, shear, and pixels, at most."""
BEND, SMOOTH = 20.0, 4.0
"""Pixels times the root of smoothing, and pixels over which a bend is smoothed."""


def deformed(images: Array, copies: int, seed: int) -> Array:
    """The images (n, h, w) or (n, h, w, c), and after them ``copies`` of each, in float32.

    Source: simard2003.

    >>> deformed(np.eye(28)[None], copies=3, seed=0).shape
    (4, 28, 28)
    """
    rng = np.random.RandomState(seed)
    images = np.asarray(images, np.float32)
    found = [images]
    for _ in range(copies):
        found.append(np.stack([_one(image, rng) for image in images]))
    return np.concatenate(found)


def _one(image: Array, rng: Any) -> Array:
    height, width = image.shape[:2]
    middle = np.array([[(height - 1) / 2], [(width - 1) / 2]])
    angle = np.deg2rad(rng.uniform(-TURN, TURN))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    slant = np.array([[1.0, rng.uniform(-SHEAR, SHEAR)], [0.0, 1.0]])
    stretch = np.diag(np.exp(rng.uniform(-STRETCH, STRETCH, 2)))
    bend = gaussian_filter(rng.uniform(-1, 1, (2, height, width)), (0, SMOOTH, SMOOTH)) * BEND
    places = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"))
    at = turn @ slant @ stretch @ (places.reshape(2, -1) - middle) + middle
    at = at + bend.reshape(2, -1) + rng.uniform(-SHIFT, SHIFT, (2, 1))
    planes = image.reshape(height, width, -1)
    moved = [map_coordinates(planes[..., c], at, order=1) for c in range(planes.shape[-1])]
    return np.stack(moved, -1).reshape(image.shape)
