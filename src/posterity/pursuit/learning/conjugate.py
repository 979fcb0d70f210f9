"""The conjugate learner of tasks: fixed features, and a ledger with one entry per task."""

import dataclasses
import functools
from typing import Any, Self

import numpy as np

from posterity.arguments import Constraint, at_least
from posterity.artifact.architecture import Architecture
from posterity.artifact.registry import enrol_data
from posterity.errors import ArtifactError, LedgerError, StructureError, UsageError
from posterity.ledger import Ledger
from posterity.models.data import check_column, labels, real_numbers
from posterity.models.tables import Names, array, check_labels, columns_in, distinct
from posterity.networks.predictive import Prediction
from posterity.pursuit.learning import readout as sums
from posterity.pursuit.learning.features import (
    NAME,
    Features,
    OwnFeatures,
    VectorFeatures,
    default_features,
)
from posterity.pursuit.learning.readout import DEGREES, ROWS, Readout

CLASSES = at_least(2)
ORIGINALS = Constraint(
    "a whole number for each record",
    lambda own: own is not None and own.dtype.kind in "iu",
    StructureError,
    "Number the classes of all sites in one list.",
)
FEATURES = Constraint(
    "VectorFeatures, or OwnFeatures(function, size, name)",
    lambda own: own is None or isinstance(own, Features),
    fix="Wrap a function: OwnFeatures(function, size, name).",
)
DRAWS = 8  # Draws of the scores' errors per prediction, in mirrored pairs


@dataclasses.dataclass(frozen=True, eq=False)
class ConjugateLearner:
    """A classifier of successive tasks that stores only sums of features.

    No record is stored, the order of tasks does not matter, and any task can be forgotten. A
    learner is immutable: :meth:`observe` and :meth:`forget` return another one. It can be saved
    with :func:`posterity.save`. Classes are numbered from 0, with one head for all, so that a
    prediction does not need the task of an input. A class that no task contained has probability
    zero, ``log_chances`` of minus infinity.

    A task adds a factor of a conjugate posterior, stored in a :class:`~posterity.Ledger` with one
    entry per task. Its sums are exact and rounded once, so a learner that forgot a task predicts,
    bit for bit, as one that never observed it. Learners of several sites can be merged.

    Scores are linear in the features, with a ridge chosen from the sums alone. Probabilities are
    averaged over a law of the scores' sharpness, which tasks learn by cross-validation.

    If the first task is a data frame, the learner remembers the names of its columns. Later frames
    are put in that order, and a frame with other columns is a StructureError.

    Args:
        classes: total number of classes over all tasks, at least two.
        features: features of inputs; by default :func:`default_features` of the first task, which
            depend on its shape only.
        ledger: ledger of an earlier learner with the same classes and features.
        columns: names of the columns of inputs, if they are known.

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
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        CLASSES.check(classes=self.classes)
        FEATURES.check(features=self.features)
        object.__setattr__(self, "columns", distinct(self.columns))
        if self.features is None and self.ledger is not None:
            raise UsageError(found="a ledger without features", expected="its features beside it")
        if self.features is not None:
            prior = sums.prior(self.classes, self.features.size)
            if self.ledger is None:
                object.__setattr__(self, "ledger", Ledger(prior))
            elif self.ledger.prior != prior:
                raise StructureError(
                    found=f"a ledger over {self.ledger.prior!r}",
                    expected=f"one over {prior!r}, of these classes and features",
                )

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the observed tasks, sorted."""
        return () if self.ledger is None else self.ledger.sites

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Number of records of each class (classes,)."""
        if self.ledger is None:
            return np.zeros(self.classes)
        return sums.counted(self.ledger.total, self.ledger.prior)

    def observe(self, task: str, x: Any, y: Any, originals: Any = None) -> Self:
        """Return a learner that has also learned this task; its records are not needed again.

        Args:
            task: name of the task, by which it can be forgotten; a LedgerError if it is in use.
            x: inputs (n, ...), of the shape that all tasks share.
            y: classes (n,), whole numbers from 0 to ``classes - 1``.
            originals: for augmented data, the number (n,) of the original of each record;
                cross-validation keeps copies of one original together.

        Inputs whose units do not suit the features are a ScaleWarning.
        """
        columns = self.columns or (() if self.tasks else columns_in(x))
        check_labels(x, y, originals)
        x = array(x, self._names, "the inputs")
        x, y = new_records(task, x, y, self.tasks, self.classes)
        start = dataclasses.replace(self, columns=columns)
        if self.features is None:
            start = dataclasses.replace(start, features=default_features(x))
        features = start.features
        ledger = start.ledger
        assert features is not None and ledger is not None, "a learner with features has both"
        features.warn_of_scale(features.checked(x))
        own = features(x)
        if originals is not None:
            originals = array(originals, what="the originals")
            ORIGINALS.check(originals=originals if originals.shape == (len(y),) else None)
        known = sums.evidence(own, y, self.classes, features.own_units, originals)
        factor = sums.factor(own, y, self.classes, known)
        past = ledger.entries.get(task)  # a forgotten task returns in a new epoch
        epoch = None if past is None else past.epoch + 1
        ledger = ledger.update(task, factor, epoch=epoch, independent=True)
        return dataclasses.replace(start, ledger=ledger)

    def forget(self, *tasks: str) -> Self:
        """Return a learner that predicts, bit for bit, as if it never observed these tasks; its
        ledger keeps their tombstones. An unknown task is a LedgerError.
        """
        if tasks and self.ledger is None:
            raise LedgerError(found=f"no task {tasks[0]!r}", expected="tasks that were observed")
        return dataclasses.replace(self, ledger=self.ledger and self.ledger.forget(*tasks))

    def merge(self, other: Self) -> Self:
        """Return the learner of the tasks of both, also as ``a | b``. A task of equal name and
        epoch counts once; a LedgerError if its contents differ. Different classes or features are
        a StructureError. If sites use equal names, prefix the site (``"north/flu"``).
        """
        for name in ("classes", "columns", "features"):
            mine = getattr(self, name)
            theirs = getattr(other, name, "none")
            if mine and theirs and mine != theirs:
                raise StructureError(
                    found=f"{other!r} of {name} {theirs!r} to be merged with {mine!r}",
                    expected="a learner of as many classes, numbered alike, of the same columns in "
                    "the same order, and of one kind of features, seeds too",
                )
        columns = self.columns or other.columns
        if self.ledger is None or other.ledger is None:
            one = other if self.ledger is None else self
            return dataclasses.replace(one, columns=columns)
        return dataclasses.replace(self, ledger=self.ledger.merge(other.ledger), columns=columns)

    __or__ = merge

    @property
    def seen(self) -> np.ndarray:
        """The classes with at least one record, sorted."""
        return np.flatnonzero(self.counts > 0)

    def predict(self, x: Any) -> Prediction:
        """Return class probabilities at inputs (n, ...); a UsageError if no task was observed.

        ``extrapolates`` is True for inputs whose features are so far from those of all records that
        the scores' variance is more than 50 times its mean at these; probabilities are often sure
        and wrong there.
        """
        if not self.tasks:
            raise UsageError(
                found="a prediction asked of a learner that knows no task",
                expected="learner = learner.observe(name, x, y) before",
            )
        assert self.features is not None, "who knows a task has features"
        x = self.features.checked(array(x, self._names, "the inputs"))
        rows = np.split(x, range(ROWS, len(x), ROWS))
        parts = [self._some(self.features(own)) for own in rows]
        logs, entropies, far = (np.concatenate(part) for part in zip(*parts, strict=True))
        return dataclasses.replace(Prediction.of_classes(logs, entropies), extrapolates=far)

    @property
    def _names(self) -> Names:
        """Names by which data frames are read: any before the first task."""
        return self.columns or (None if self.tasks else ())

    @functools.cached_property
    def readout(self) -> Readout:
        """The scores of the classes in :attr:`seen`, from the sums of all tasks."""
        assert self.ledger is not None, "who knows a task has a ledger"
        assert self.features is not None, "who has a ledger has features"
        squares = sums.summed(self.ledger.total, self.ledger.prior)
        seen = self.seen
        k = self.classes
        own = self.features.own_units
        return Readout.of_sums(self.counts[seen], squares[seen, k:], squares[k:, k:], own)

    @functools.cached_property
    def sharpness(self) -> np.ndarray:
        """The posterior probability of each of the ``DEGREES`` of sharpness."""
        assert self.ledger is not None, "who knows a task has a ledger"
        return np.asarray(self.ledger.total.sharpness.probabilities)  # type: ignore[attr-defined]

    def _some(
        self,
        features: np.ndarray,
        *,
        negligible: float = 1e-2,  # Degrees of sharpness of lower probability are left out
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return log probabilities (n, classes), the draws' mean entropy (n,), and where scores are
        extrapolated (n,).
        """
        read = self.readout
        seen = self.seen
        at = read.coordinates(features)
        scores = at @ read.slopes + read.level
        leverage = read.leverage(at)
        errors = np.sqrt(leverage[:, None] * read.noise)
        chances = np.zeros_like(scores)
        entropy = np.zeros(len(scores))
        likely = np.where(self.sharpness >= negligible, self.sharpness, 0)
        for degree, weight in zip(DEGREES, likely / likely.sum(), strict=True):
            for noise in _noise(len(seen)) if weight else ():
                logits = degree * (scores + errors * noise)
                logits -= logits.max(1, keepdims=True)
                own = np.exp(logits)
                norm = own.sum(1, keepdims=True)
                own /= norm
                entropy += weight / DRAWS * (np.log(norm[:, 0]) - (own * logits).sum(1))
                chances += weight / DRAWS * own
        logs = np.full((len(scores), self.classes), -np.inf)
        logs[:, seen] = np.log(np.maximum(chances, np.finfo(float).tiny))
        return logs, entropy, read.is_far(leverage)

    def __repr__(self) -> str:
        tasks = f"{len(self.tasks)} task{'' if len(self.tasks) == 1 else 's'}"
        return f"ConjugateLearner({self.classes} classes, {tasks})"


def new_records(
    task: str, x: Any, y: Any, known: tuple[str, ...], classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the checked records of a new task, for a learner of the ``known`` tasks."""
    NAME.check(task=task)
    if task in known:
        raise LedgerError(
            found=f"a second task {task!r}",
            expected="a name that is not known, or was forgotten: records would count twice",
        )
    x = real_numbers(x, "the inputs", records=False)
    y = array(y, what="the classes")
    if x.ndim < 2 or not len(x) or x.shape[:1] != y.shape or y.ndim != 1:
        raise StructureError(
            found=f"inputs of shape {x.shape} with labels of shape {y.shape} in task {task!r}",
            expected="(n, ...) and a label of each, one record at least",
        )
    check_column(y, labels(classes))
    return x, y.astype(np.int64)


@functools.cache
def _noise(classes: int) -> np.ndarray:
    """Return standard normal errors of the scores in mirrored pairs (draws, classes)."""
    half = np.random.RandomState(classes).standard_normal((DRAWS // 2, classes))
    return np.concatenate([half, -half])


def _written(features: Any) -> dict[str, Any]:
    """Return the fields of features and their digest, which is checked when a file is read."""
    if isinstance(features, OwnFeatures) and not isinstance(features.function, Architecture):
        raise ArtifactError(
            found=f"features that are a function of one's own, {features.name!r}",
            expected="OwnFeatures(Architecture(...), ...) of a name given to register_architecture",
        )
    fields = {field.name: getattr(features, field.name) for field in dataclasses.fields(features)}
    return fields | {"digest": features.digest}


def _read(kind: type[Features], fields: dict[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in fields.items() if name != "digest"}
    if kind(**own).digest != fields.get("digest"):
        raise ArtifactError(
            found=f"a {kind.__name__} with the digest of another",
            expected="the features whose sums the learner holds, of the release that wrote it",
        )
    return own


for _features in (VectorFeatures, OwnFeatures):
    enrol_data(_features, write=_written, read=functools.partial(_read, _features))
enrol_data(
    ConjugateLearner,
    types={"features": Features | None, "ledger": Ledger | None, "columns": list},
    whole=True,
)
