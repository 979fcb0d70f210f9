"""Where a student was asked, and where it was not."""

import numpy as np

import posterity
from posterity.distillation import Head, Student
from posterity.distillation.domain import LEVEL, Domain
from posterity.networks import Layers

RNG = np.random.default_rng(0)


def test_new_inputs_of_the_same_law_are_within() -> None:
    mixing = RNG.normal(size=(40, 40)) * 0.5 ** np.arange(40)[:, None]
    domain = Domain.of_inputs(RNG.normal(size=(4000, 40)) @ mixing)
    outside = domain.outside(RNG.normal(size=(4000, 40)) @ mixing).mean()
    assert abs(outside - (1 - LEVEL)) < 0.01
    # As long, but along a direction that hardly varied.
    assert domain.outside(3 * mixing[:1] / np.linalg.norm(mixing[0])).sum() == 0
    thin = np.linalg.svd(mixing)[2][-1:]
    assert domain.outside(3 * thin).all()


def test_boxes_constants_and_rare_columns() -> None:
    box = Domain.of_inputs(RNG.uniform(-6, 6, (2000, 2)))
    np.testing.assert_array_equal(
        box.outside(np.array([[0, 7.5], [-6.5, 0], [0, 1e9]])), [True, False, True]
    )
    assert not box.outside(RNG.uniform(-6, 6, (100, 2))).all()
    still = Domain.of_inputs(np.c_[np.ones(50), RNG.normal(size=50)])
    np.testing.assert_array_equal(still.outside(np.array([[1.0, 0], [2.0, 0]])), [False, True])
    alike = Domain.of_inputs(np.ones((50, 30)))
    np.testing.assert_array_equal(
        alike.outside(np.ones((2, 1)) * [[1.0], [2.0]] * np.ones(30)), [False, True]
    )
    rare = Domain.of_inputs((RNG.uniform(size=(2000, 30)) < 0.002) * 1.0)
    assert rare.outside(np.ones((1, 30))).all() and not rare.outside(np.zeros((1, 30))).any()


def test_a_student_says_where_it_was_never_asked(tmp_path) -> None:
    layers, path = Layers.dense(2, 3), tmp_path / "student.safetensors"
    domain = Domain.of_inputs(RNG.normal(size=(500, 2)))
    student = Student(layers, np.zeros(layers.size), Head("categorical", 3), domain=domain)
    posterity.save(student, path)
    x = np.array([[0.0, 0.0], [9.0, 9.0]])
    for own in (student, posterity.load(path)):
        np.testing.assert_array_equal(own.predict(x).extrapolates, [False, True])
    assert (
        Student(layers, np.zeros(layers.size), Head("categorical", 3)).predict(x).extrapolates
        is None
    )
