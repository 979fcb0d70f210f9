"""What the peers of the conjugate learner have in common with it."""

import abc
from typing import Any, Self

import numpy as np

from posterity.networks.predictive import Prediction


class Learner(abc.ABC):
    """A learner of tasks, as :class:`~posterity.pursuit.learning.ConjugateLearner` is one."""

    classes: int

    @property
    @abc.abstractmethod
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks that it knows, sorted."""

    @property
    @abc.abstractmethod
    def counts(self) -> np.ndarray:
        """Records of each class that it knows of, (classes,)."""

    @abc.abstractmethod
    def observe(self, task: str, x: Any, y: Any) -> Self:
        """A learner that knows this task too."""

    @abc.abstractmethod
    def forget(self, *tasks: str) -> Self:
        """A learner that does not know these tasks."""

    @abc.abstractmethod
    def predict(self, x: Any) -> Prediction:
        """Chances of each class at inputs (n, ...)."""

    @property
    def seen(self) -> np.ndarray:
        """The classes of which it knows records, sorted."""
        return np.flatnonzero(self.counts > 0)
