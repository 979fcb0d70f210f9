"""The replay rule: a bounded number of records a task is kept, and learned from again."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from posterity.arguments import COUNT, NATURAL
from posterity.networks.predictive import Prediction
from posterity.pursuit.learning import coresets
from posterity.pursuit.learning.base import Learner
from posterity.pursuit.learning.conjugate import CLASSES, ConjugateLearner
from posterity.pursuit.learning.deformations import deformed
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

    def __post_init__(self) -> None:
        CLASSES.check(classes=self.classes)
        COUNT.check(coreset=self.coreset)
        NATURAL.check(copies=self.copies, seed=self.seed)
        object.__setattr__(self, "kept", dict(sorted(self.kept.items())))

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
        x, y = self._new(task, x, y)
        features = default_features(x) if self.features is None else self.features
        features.warn_of_scale(features.checked(x))
        few, labels = coresets.kept(x, y, self.coreset)
        return dataclasses.replace(
            self,
            features=features,
            kept={**self.kept, task: (np.array(few, np.float64), labels)},
        )

    def forget(self, *tasks: str) -> Self:
        """As :meth:`Learner.forget`, to the last bit, kept records too."""
        self._unknown(tasks)
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
            found = found.observe_copies(task, images, labels, originals)
        return found

    def describe(self, x: Any) -> Prediction:
        """As :meth:`Learner.predict`."""
        return self.learned.describe(x)
