"""The conjugate rule: order-free, forgettable to the last bit, calibrated, hard to upset."""

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import posterity
from posterity.errors import (
    LedgerError,
    ParameterError,
    PosterityError,
    ScaleWarning,
    StructureError,
    UsageError,
)
from posterity.ledger import Ledger
from posterity.pursuit.learning import (
    ConjugateLearner,
    OwnFeatures,
    VectorFeatures,
    readout,
)
from tests.pursuit.learning.tasks import CLASSES, FEATURES, conjugate, records, tasks

X = records(50, seed=9)[0]


def learned(given: dict[str, Any], order: Any = None) -> ConjugateLearner:
    """After these tasks, one by one."""
    learner = conjugate()
    for name in given if order is None else order:
        learner = learner.observe(name, *given[name])
    return learner


@functools.cache
def all_three() -> ConjugateLearner:
    """After all tasks, in the order they are written in."""
    return learned(tasks())


def same(one: ConjugateLearner, other: ConjugateLearner) -> bool:
    """Whether two predict the same, bit for bit."""
    mine, theirs = one.predict(X), other.predict(X)
    return np.array_equal(mine.log_chances, theirs.log_chances) and np.array_equal(
        mine.mutual_information, theirs.mutual_information
    )


@settings(max_examples=8)
@given(st.permutations(["low", "high", "mixed"]), st.integers(0, 5), st.floats(1e-3, 1e3))
def test_the_order_of_tasks_changes_no_bit(order: list[str], seed: int, unit: float) -> None:
    given = {name: (x * unit, y) for name, (x, y) in tasks(60, seed).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScaleWarning)  # of units, which are drawn on purpose
        one, other = learned(given), learned(given, order)
    assert one.ledger == other.ledger
    assert same(one, other)


@settings(max_examples=8)
@given(
    st.sets(st.sampled_from(["low", "high", "mixed"]), min_size=1, max_size=2), st.integers(0, 5)
)
def test_forgetting_leaves_no_trace(gone: set[str], seed: int) -> None:
    given = tasks(60, seed)
    kept = {name: given[name] for name in given if name not in gone}
    left, never = learned(given).forget(*gone), learned(kept)
    assert same(left, never)
    assert left.tasks == never.tasks
    assert np.array_equal(left.counts, never.counts)
    assert left.ledger.compact() == never.ledger
    assert left.ledger is not None and left.ledger.forgotten == tuple(sorted(gone))


def test_one_head_tells_all_classes_apart() -> None:
    x, y = records(400, seed=5)
    found = all_three().predict(x)
    # Clusters are 1.41 apart with a deviation of .25: the nearest centre errs in 0.5 %.
    assert (found.mean.argmax(1) == y).mean() > 0.97
    assert -found.log_predictive(y).mean() < 0.1
    np.testing.assert_allclose(found.mean.sum(1), 1)
    assert found.entropy is not None and found.mutual_information is not None
    assert (found.mutual_information <= found.entropy).all()


def stated_and_right(given: dict[str, Any]) -> tuple[float, float, float]:
    """Mean stated confidence, share that is right, and the standard error of their difference."""
    x, y = records(4000, seed=3, noise=0.7)
    chances = learned(given).predict(x).mean
    top, right = chances.max(1), chances.argmax(1) == y
    return top.mean(), right.mean(), (right - top).std() / len(y) ** 0.5


def test_chances_are_calibrated_where_classes_overlap() -> None:
    x, y = records(1200, seed=2, noise=0.7)
    halves = {"first": (x[::2], y[::2]), "second": (x[1::2], y[1::2])}
    stated, right, error = stated_and_right(halves)
    # The degrees of sharpness are a fifth apart; a fifth moves a confidence of .7 by .04.
    assert abs(stated - right) < 3 * error + 0.04


def test_tasks_of_few_classes_leave_it_cautious() -> None:
    x, y = records(1200, seed=2, noise=0.7)
    pairs = {str(k): (x[y // 2 == k], y[y // 2 == k]) for k in (0, 1)}
    stated, right, error = stated_and_right(pairs)
    assert right - 0.1 < stated < right + 3 * error


def test_it_is_less_sure_far_from_all_records() -> None:
    near, far = all_three().predict(X), all_three().predict(X * 40)
    assert near.mutual_information is not None and far.mutual_information is not None
    assert far.mutual_information.mean() > 5 * near.mutual_information.mean()


def test_it_says_where_it_extrapolates() -> None:
    """About four classes in a plane, where it is often sure and wrong far out."""
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 2.0], [2.0, 0.0], [-2.0, 0.0], [0.0, -2.0]])
    y = np.repeat(np.arange(4), 600)
    x = centres[y] + 0.5 * rng.normal(size=(len(y), 2))
    learner = ConjugateLearner(classes=4)
    for k in range(4):
        learner = learner.observe(str(k), x[y == k][:100], y[y == k][:100])
    angles = np.linspace(0, 2 * np.pi, 100)
    circle = np.stack([np.cos(angles), np.sin(angles)], 1)
    assert learner.predict(x).extrapolates.mean() < 0.02
    for radius in (6, 12, 1e4):
        far = learner.predict(radius * circle)
        assert far.extrapolates.all()
        assert far.mean.max() > 0.9


def test_hospitals_fuse_and_one_task_of_one_is_forgotten() -> None:
    given = tasks()
    north = conjugate().observe("north/low", *given["low"]).observe("north/high", *given["high"])
    south = conjugate().observe("south/mixed", *given["mixed"])
    both = north | south
    assert both.tasks == ("north/high", "north/low", "south/mixed")
    assert same(both, south | north)
    assert same(both | south, both)
    left = both.forget("north/low")
    assert same(left, conjugate().observe("north/high", *given["high"]) | south)
    # The site's own copy still has the task; merging it does not bring it back.
    assert same(left | north, left)
    assert same(conjugate() | north, north)
    assert same(left.observe("north/low", *given["low"]), both)  # it can come back
    found = north.forget("north/high").predict(X)  # classes that no task held have no chance
    assert (found.mean[:, 2:] == 0).all() and np.isneginf(found.log_chances[:, 2:]).all()
    assert found.entropy is not None and np.isfinite(found.entropy).all()


def test_files_hold_learners(tmp_path: Path) -> None:
    path = tmp_path / "learner.safetensors"
    for kept in (all_three(), all_three().forget("high"), ConjugateLearner(CLASSES)):
        posterity.save(kept, path)
        back = posterity.load(path)
        assert back.tasks == kept.tasks
        assert back.features == kept.features
        if kept.tasks:
            assert same(back, kept)
            assert same(back.forget(back.tasks[0]), kept.forget(kept.tasks[0]))
    own = ConjugateLearner(2, OwnFeatures(lambda x: x, 2, "columns"))
    with pytest.raises(PosterityError, match="register_architecture"):
        posterity.save(own, path)


@pytest.mark.parametrize(
    ("task", "x", "y", "error"),
    [
        ("low", X, np.zeros(50, int), LedgerError),
        ("", X, np.zeros(50, int), UsageError),
        ("new", X[:, :1], np.zeros(50, int), StructureError),
        ("new", X[:, :, None], np.zeros(50, int), StructureError),
        ("new", X, np.zeros(49, int), StructureError),
        ("new", X[:0], np.zeros(0, int), StructureError),
        ("new", X, np.full(50, CLASSES), ParameterError),
        ("new", X, np.full(50, -1), ParameterError),
        ("new", X, np.full(50, 0.5), ParameterError),
        ("new", np.where(X > 0, X, np.nan), np.zeros(50, int), ParameterError),
        ("new", X.astype(str), np.zeros(50, int), StructureError),
        ("new", [[0.0, 1.0], [2.0]], np.zeros(2, int), StructureError),
    ],
)
def test_bad_records_are_refused(task: str, x: Any, y: Any, error: type[PosterityError]) -> None:
    with pytest.raises(error):
        all_three().observe(task, x, y)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="knows no task"):
        conjugate().predict(X)
    with pytest.raises(UsageError, match="knows no task"):
        all_three().forget("low", "high", "mixed").predict(X)
    with pytest.raises(LedgerError, match="no factor of site"):
        all_three().forget("low", "lower")
    with pytest.raises(LedgerError, match="no factor of site"):
        all_three().forget("low").forget("low")
    with pytest.raises(UsageError):
        ConjugateLearner(1)
    with pytest.raises(UsageError):
        ConjugateLearner(-3)
    with pytest.raises(StructureError):
        all_three().predict(X[:, :1])
    with pytest.raises(ParameterError):
        all_three().predict(X * np.inf)
    for wrong, says in (
        (ConjugateLearner(5, FEATURES), "classes 5 to be merged with 4"),
        (
            ConjugateLearner(CLASSES, VectorFeatures(2, width=30, seed=1)),
            "features .* to be merged",
        ),
        (all_three().ledger, "Ledger.* to be merged"),
    ):
        with pytest.raises(StructureError, match=says):
            all_three().merge(wrong)
    for scale in ("a", [[1.0], [1.0, 2.0]], None, 0.0):
        with pytest.raises(UsageError, match="scale="):
            VectorFeatures(3, scale=scale)
    with pytest.raises(UsageError, match="seed="):
        VectorFeatures(3, seed=2**33)
    with pytest.raises(StructureError):
        ConjugateLearner(5, FEATURES, Ledger(all_three().ledger.prior))  # type: ignore[union-attr]


def test_tiny_tasks_and_single_classes_are_learned() -> None:
    x, y = records(400, seed=5)
    learner = conjugate()
    for label in range(CLASSES):
        own = np.flatnonzero(y == label)
        learner = learner.observe(f"three of {label}", x[own[:3]], y[own[:3]])
        found = learner.predict(x)
        assert np.isfinite(found.mean).all()
    assert (found.mean.argmax(1) == y).mean() > 0.9


def test_columns_of_any_units_are_learned_by_the_linear_rule() -> None:
    given, units, shift = tasks(400), np.array([1e-7, 1e6]), np.array([3.0, -5e6])
    linear = VectorFeatures(2, width=0)
    plain, moved = ConjugateLearner(CLASSES, linear), ConjugateLearner(CLASSES, linear)
    for name, (x, y) in given.items():
        plain = plain.observe(name, x, y)
        moved = moved.observe(name, np.c_[x * units], y)
    one, other = plain.predict(X).mean, moved.predict(X * units).mean
    assert np.abs(one - other).max() < 0.02
    # With columns nobody scaled, random units are told not to fit; linear ones still serve.
    with pytest.warns(ScaleWarning, match="column 1"):
        ConjugateLearner(CLASSES).observe("low", given["low"][0] * units + shift, given["low"][1])


def test_constant_columns_change_nothing() -> None:
    x, y = records(400, seed=5)
    wide = ConjugateLearner(CLASSES, VectorFeatures(4, width=0))
    thin = ConjugateLearner(CLASSES, VectorFeatures(2, width=0))
    more = np.c_[x, np.zeros(len(x)), np.full(len(x), 7.0)]
    one, other = thin.observe("all", x, y).predict(X), wide.observe("all", more, y)
    found = other.predict(np.c_[X, np.zeros(len(X)), np.full(len(X), 7.0)])
    assert np.abs(found.mean - one.mean).max() < 1e-3
    alike = ConjugateLearner(2).observe("no column varies", np.ones((10, 2)), np.arange(10) % 2)
    np.testing.assert_allclose(alike.predict(np.ones((3, 2))).mean, 0.5, atol=0.02)


def test_a_class_in_two_tasks_is_as_in_one() -> None:
    x, y = records(300, seed=4)
    halves = conjugate().observe("first", x[::2], y[::2]).observe("second", x[1::2], y[1::2])
    whole = conjugate().observe("whole", x, y)
    assert np.array_equal(halves.counts, whole.counts)
    # Sums agree to rounding; sharpness is learned on other halves.
    mine, theirs = (learner.readout.scores(FEATURES(x)) for learner in (halves, whole))
    np.testing.assert_allclose(mine, theirs, atol=1e-6)
    assert (halves.predict(x).mean.argmax(1) == whole.predict(x).mean.argmax(1)).all()


def test_a_function_of_ones_own_gives_the_features() -> None:
    x, y = records(300, seed=4)
    own = OwnFeatures(lambda x: np.c_[x, x**2], 4, "squares")
    learner = ConjugateLearner(CLASSES, own).observe("all", x, y)
    assert (learner.predict(x).mean.argmax(1) == y).mean() > 0.9
    wrong = ConjugateLearner(CLASSES, OwnFeatures(lambda x: x, 4, "two"))
    with pytest.raises(StructureError, match="features of shape"):
        wrong.observe("all", x, y)


def test_copies_of_a_record_are_held_out_together() -> None:
    """Each record many times over says of sharpness what each says once, but for its weight."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 10)
    x = rng.normal(size=(20, 3)) + y[:, None]
    once = readout.evidence(x, y, 2)
    many, labels = np.tile(x, (8, 1)), np.tile(y, 8)
    known = readout.evidence(many, labels, 2, 0, np.tile(np.arange(20), 8))
    unknown = readout.evidence(many, labels, 2)
    assert np.argmax(known) <= np.argmax(once) + 1
    assert np.argmax(unknown) > np.argmax(known)


def test_originals_are_whole_numbers_one_a_record():
    x, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2
    empty = ConjugateLearner(classes=2)
    copies = list(range(40))
    assert empty.observe("a", x, y, originals=copies).tasks == ("a",)
    for wrong in (np.arange(39), np.full(40, np.nan), 3):
        with pytest.raises(StructureError, match="originals"):
            empty.observe("a", x, y, originals=wrong)
