"""What every learner of tasks can do, whatever its rule."""

import abc
from typing import Any, Self

import numpy as np

from posterity.errors import LedgerError, StructureError, UsageError
from posterity.models.data import check_column, labels
from posterity.networks.predictive import Prediction


class Learner(abc.ABC):
    """What was learned of tasks that came one after another, each of them seen once.

    A learner is a value, as a ledger and a posterior are: :meth:`observe` and :meth:`forget` give
    another one and leave this one as it is. So what was saved, sent or branched off stays what it
    was, a task that fails in the middle changes nothing, and "the learner that never saw the
    task" is something that one can have and compare with. :func:`posterity.save` writes it,
    :func:`posterity.load` reads it.

    Classes are numbered from 0 on, with one head for all: at prediction nobody says which task an
    input is of. A class that no task held so far has no chance, ``log_chances`` of minus infinity.
    """

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
        """A learner that knows this task too; the records are not needed again.

        Args:
            task: its name, which forgets it again.
            x: inputs (n, ...), of the shape that all tasks share.
            y: the class of each, whole numbers from 0 to ``classes - 1``.

        Raises:
            LedgerError: for a task of a name that it knows.
            StructureError: for inputs of another shape, or no records.
            ParameterError: for values that are not finite, and labels that are no class.
        """

    @abc.abstractmethod
    def forget(self, *tasks: str) -> Self:
        """A learner that does not know these tasks.

        Raises:
            LedgerError: for a task that it does not know; nothing is forgotten then.
        """

    @abc.abstractmethod
    def describe(self, x: Any) -> Prediction:
        """As :meth:`predict`, where something is known."""

    def predict(self, x: Any) -> Prediction:
        """Chances of each class at inputs (n, ...), how unsure they are and why.

        Raises:
            UsageError: before any task.
            StructureError: for inputs of another shape than tasks had.
            ParameterError: for inputs that are not finite.
        """
        if not self.tasks:
            raise UsageError(
                found="a prediction asked of a learner that knows no task",
                expected="one task at least",
                fix="Call learner = learner.observe(name, x, y) first, and keep what it returns.",
            )
        return self.describe(x)

    @property
    def seen(self) -> np.ndarray:
        """The classes of which it knows records, sorted."""
        return np.flatnonzero(self.counts > 0)

    def _new(self, task: str, x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """The records of a task that may be observed."""
        if not isinstance(task, str) or not task:
            raise UsageError(
                found=f"task={task!r}",
                expected="its name, a text",
                fix="Pass observe(name, x, y).",
            )
        if task in self.tasks:
            raise LedgerError(
                found=f"a second task {task!r}",
                expected="a name that the learner does not know: records seen twice would count "
                "twice",
                fix="Name it otherwise, or forget the first one before.",
            )
        x, y = np.asarray(x), np.asarray(y)
        if x.ndim < 2 or not len(x) or x.shape[:1] != y.shape or y.ndim != 1:
            raise StructureError(
                found=f"inputs of shape {x.shape} with labels of shape {y.shape} in task {task!r}",
                expected="(n, ...) and (n,), one record at least",
                fix="Give one label an input.",
            )
        check_column(y, labels(self.classes))
        return x, y.astype(np.int64)

    def _unknown(self, tasks: tuple[str, ...]) -> None:
        """Refuse tasks that cannot be forgotten."""
        for task in tasks:
            if task not in self.tasks:
                raise LedgerError(
                    found=f"a task {task!r} to forget, which the learner does not know",
                    expected=f"one of {list(self.tasks[:10])}"
                    + " and others" * (len(self.tasks) > 10),
                    fix="Check the name of the task.",
                )
