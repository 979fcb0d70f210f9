"""The conjugate rule: fixed features, one conjugate posterior, a ledger with an entry a task."""

import dataclasses
import functools
from typing import Any, Self

import numpy as np

from posterity.arguments import at_least
from posterity.errors import StructureError, UsageError
from posterity.ledger import Ledger
from posterity.networks.predictive import Prediction
from posterity.pursuit.learning import statistics
from posterity.pursuit.learning.base import Learner
from posterity.pursuit.learning.features import Features, default_features
from posterity.pursuit.learning.readout import Readout
from posterity.pursuit.learning.sharpness import DEGREES, evidence

CLASSES = at_least(2)
DRAWS = 8
"""Draws of a score's error, half of them mirrored, that a prediction averages over."""
NEGLIGIBLE = 1e-2
"""Degrees of sharpness that are less likely are left out."""
ROWS = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class ConjugateLearner(Learner):
    """Learns sums: no record is kept, the order of tasks does not matter, any can be forgotten.

    What a task adds is a factor of a conjugate posterior (:mod:`.statistics`), kept in a
    :class:`~posterity.Ledger` with one entry a task. Sums of a ledger are exact and rounded once;
    so the order of tasks changes no bit, and a learner that forgot a task predicts, to the last
    bit, as one that never saw it. A task and a hospital are the same to a ledger: learners of
    several sites :meth:`merge`, and one task of one of them can be forgotten afterwards.

    What is learned are scores linear in fixed features; the ridge is chosen from the sums alone,
    and chances come from a law over the scores' sharpness, which tasks learn on records that were
    held out (:mod:`.sharpness`). Predictions average over what sums leave open.

    Args:
        classes: how many there will ever be; tasks hold any of them.
        features: of inputs; by default those of the first task's shape (:func:`default_features`),
            never of its values.
        ledger: of a learner that has begun.

    Raises:
        UsageError: for fewer than two classes, or what are no features.
        StructureError: if the ledger is one of other classes or features.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(4, size=400)
    >>> x = np.stack([np.cos(y * 1.57), np.sin(y * 1.57)], 1) + 0.2 * rng.normal(size=(400, 2))
    >>> learner = ConjugateLearner(classes=4)
    >>> for name, own in {"first": y < 2, "second": y >= 2}.items():
    ...     learner = learner.observe(name, x[own], y[own])
    >>> bool((learner.predict(x).mean.argmax(1) == y).mean() > 0.97)
    True
    >>> learner.forget("second").seen
    array([0, 1])
    """

    classes: int
    features: Features | None = None
    ledger: Ledger | None = None

    def __post_init__(self) -> None:
        CLASSES.check(classes=self.classes)
        if self.features is not None and not isinstance(self.features, Features):
            raise UsageError(
                found=f"features={self.features!r}",
                expected="VectorFeatures or OwnFeatures",
                fix="Wrap a function: OwnFeatures(function, size, name).",
            )
        if self.features is None and self.ledger is not None:
            raise UsageError(
                found="a ledger without features",
                expected="the features whose sums it holds",
                fix="Pass them too.",
            )
        if self.features is not None:
            begun = statistics.prior(self.classes, self.features.size)
            if self.ledger is None:
                object.__setattr__(self, "ledger", Ledger(begun))
            elif self.ledger.prior != begun:
                raise StructureError(
                    found=f"a ledger over {self.ledger.prior!r}",
                    expected=f"one over {begun!r}",
                    fix="Pass the classes and the features of the learner that it is of.",
                )

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks that it knows, sorted."""
        return () if self.ledger is None else self.ledger.sites

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Records of each class, (classes,)."""
        if self.ledger is None:
            return np.zeros(self.classes)
        return statistics.counted(self.ledger.total, self.ledger.prior)

    def observe(self, task: str, x: Any, y: Any) -> Self:
        """As :meth:`Learner.observe`.

        Warns:
            ScaleWarning: for inputs in units that the features are not meant for.
        """
        return self.observe_copies(task, x, y, None)

    def observe_copies(self, task: str, x: Any, y: Any, originals: Any) -> Self:
        """As :meth:`observe`, of records some of which are copies: ``originals`` (n,) says of what.

        Copies of one record are never held out from one another.
        """
        x, y = self._new(task, x, y)
        start = self
        if self.features is None:
            start = dataclasses.replace(self, features=default_features(x))
        features, ledger = start.features, start.ledger
        assert features is not None and ledger is not None, "a learner with features has both"
        features.warn_of_scale(features.checked(x))
        own = features(x)
        known = evidence(own, y, self.classes, features.own_units, originals)
        factor = statistics.factor(own, y, self.classes, known)
        past = ledger.entries.get(task)  # one that was forgotten comes back in a new epoch
        epoch = None if past is None else past.epoch + 1
        return dataclasses.replace(
            start, ledger=ledger.update(task, factor, epoch=epoch, independent=True)
        )

    def forget(self, *tasks: str) -> Self:
        """As :meth:`Learner.forget`, to the last bit; the ledger remembers that they left."""
        self._unknown(tasks)
        if not tasks or self.ledger is None:
            return self
        return dataclasses.replace(self, ledger=self.ledger.forget(*tasks))

    def merge(self, other: Self) -> Self:
        """What both know, tasks of the same name and version once; also written ``a | b``.

        Name a task by its site where sites have tasks of the same name (``"north/flu"``).

        Raises:
            StructureError: if classes or features differ.
            LedgerError: if one version of a task has two contents.
        """
        if not isinstance(other, ConjugateLearner) or (
            (self.classes, self.features) != (other.classes, other.features)
            and None not in (self.features, getattr(other, "features", None))
        ):
            raise StructureError(
                found=f"{other!r} to be merged with {self!r}",
                expected="a conjugate learner of the same classes and features",
                fix="Agree on `classes` and `features`, seeds too, before tasks are observed.",
            )
        if self.classes != other.classes:
            raise StructureError(
                found=f"learners of {self.classes} and of {other.classes} classes",
                expected="the same number",
                fix="Number the classes of all sites in one list.",
            )
        if self.ledger is None or other.ledger is None:
            return other if self.ledger is None else self
        return dataclasses.replace(self, ledger=self.ledger.merge(other.ledger))

    __or__ = merge

    def compact(self) -> Self:
        """Without the memory of who was forgotten: equal to a learner that never saw them."""
        if self.ledger is None:
            return self
        return dataclasses.replace(self, ledger=self.ledger.compact())

    def describe(self, x: Any) -> Prediction:
        """As :meth:`Learner.predict`."""
        assert self.features is not None, "who knows a task has features"
        x = self.features.checked(x)
        parts = [
            self._some(self.features(x[at : at + ROWS])) for at in range(0, max(len(x), 1), ROWS)
        ]
        logs, entropies = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Prediction.of_classes(logs, entropies)

    @functools.cached_property
    def readout(self) -> Readout:
        """Scores of the classes that were seen, from the sums of all tasks."""
        assert self.ledger is not None, "who knows a task has a ledger"
        sums, seen = statistics.summed(self.ledger.total, self.ledger.prior), self.seen
        features = slice(self.classes, None)
        assert self.features is not None, "who has a ledger has features"
        return Readout.of_sums(
            self.counts[seen], sums[seen, features], sums[features, features],
            self.features.own_units,
        )  # fmt: skip

    @functools.cached_property
    def sharpness(self) -> np.ndarray:
        """The probability of each of the ``DEGREES`` of sharpness, given all tasks."""
        assert self.ledger is not None, "who knows a task has a ledger"
        return np.asarray(self.ledger.total.sharpness.probabilities)  # type: ignore[attr-defined]

    def _some(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log chances (n, classes), and the mean entropy of the answers they are averaged from."""
        read, seen = self.readout, self.seen
        at = read.coordinates(features)
        scores = at @ read.slopes + read.level
        errors = np.sqrt(read.leverage(at)[:, None] * read.noise)
        chances, entropy = np.zeros_like(scores), np.zeros(len(scores))
        likely = np.where(self.sharpness >= NEGLIGIBLE, self.sharpness, 0)
        for degree, weight in zip(DEGREES, likely / likely.sum(), strict=True):
            for noise in _noise(len(seen)) if weight else ():
                logits = degree * (scores + errors * noise)
                logits -= logits.max(1, keepdims=True)
                own = np.exp(logits)
                norm = own.sum(1, keepdims=True)
                own /= norm
                entropy += weight / DRAWS * (np.log(norm[:, 0]) - (own * logits).sum(1))
                chances += weight / DRAWS * own
        left = np.log(np.maximum(chances, np.finfo(float).tiny))
        found = np.full((len(scores), self.classes), -np.inf)
        found[:, seen] = left
        return found, entropy

    def __repr__(self) -> str:
        tasks = f"{len(self.tasks)} task{'' if len(self.tasks) == 1 else 's'}"
        return f"ConjugateLearner({self.classes} classes, {tasks})"


@functools.cache
def _noise(classes: int) -> np.ndarray:
    """Standard normal errors of the scores, each with its mirror image: (draws, classes)."""
    half = np.random.RandomState(classes).standard_normal((DRAWS // 2, classes))
    return np.concatenate([half, -half])


def learner(rule: str = "conjugate", **options: Any) -> ConjugateLearner:
    """A learner of tasks that come one after another, before its first task.

    Args:
        rule: ``"conjugate"``. Rules that mix networks of tasks or replay kept records were no more
            accurate, calibrated or quick when they were measured: they are the peers of
            ``experiments/pursuit``.
        options: arguments of :class:`ConjugateLearner`.

    Raises:
        UsageError: for another rule, and options that it does not have.

    >>> x = np.array([[0.0], [0.1], [1.0], [1.1]])
    >>> first = learner(classes=3).observe("first", x, np.array([0, 0, 1, 1]))
    >>> first.tasks, first.seen
    (('first',), array([0, 1]))
    """
    if rule != "conjugate":
        raise UsageError(
            found=f"rule={rule!r}",
            expected="'conjugate'",
            fix="Leave it out; the rules 'gated', 'mixture' and 'replay' are peers in "
            "experiments/pursuit of the repository now.",
        )
    try:
        return ConjugateLearner(**options)
    except TypeError as error:
        raise UsageError(
            found=f"options {sorted(options)} ({error})",
            expected="arguments of ConjugateLearner",
            fix="See help(posterity.pursuit.learning.ConjugateLearner).",
        ) from error
