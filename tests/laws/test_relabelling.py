"""New labels move everything that hangs on them, and no number changes."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.errors import StructureError
from posterity.families import Beta, Dirichlet, Gaussian, Plate
from tests.laws.table import NAMES, identical, laws, some, to_jax

SIZE = 4
permutations = st.permutations(range(SIZE)).map(np.array)
WITHIN = ("Plate", "Network")
families = pytest.mark.parametrize(
    "name", [name for name in NAMES if not any(kind in name for kind in WITHIN)]
)
"""Rows whose batch is what is labelled; of a plate the members are, of a network hidden units."""


@families
@laws
@given(labels=permutations)
def test_batches_are_permuted_as_an_index_would(name: str, labels: np.ndarray) -> None:
    (p,) = some(name, batch=(SIZE,))
    moved = p.relabel(labels, SIZE)
    assert identical(moved[labels], p)
    assert identical(moved.relabel(np.argsort(labels), SIZE), p)


@families
def test_places_that_nobody_goes_to_are_zero(name: str) -> None:
    (p,) = some(name, batch=(3,))
    moved = p.relabel(np.array([4, -1, 0]), 5)
    assert moved.batch_shape == (5,)
    assert identical(moved[np.array([4, 0])], p[np.array([0, 2])])
    assert identical(moved[np.array([1, 2, 3])], (p - p))
    if name == "NormalWishart":  # of numbers, vectors and matrices
        traced = jax.jit(lambda p: p.relabel(np.array([4, -1, 0]), 5))
        assert identical(traced(p), to_jax(moved))


@families
def test_entries_of_one_label_add_up(name: str) -> None:
    (p,) = some(name, batch=(3,))
    moved = p.relabel(np.array([1, 0, 1]), 2)
    assert identical(moved[0], p[1]) and identical(moved[1], p[0] + p[2])


@laws
@given(labels=permutations)
def test_weights_of_components_go_with_them(labels: np.ndarray) -> None:
    members, counts = some("Gaussian", batch=(SIZE,))[0], np.array([5.0, 3.0, 2.0, 1.0])
    for kind in (Dirichlet, Beta):
        moved = Plate(members, kind.of_counts(counts)).relabel(labels, SIZE)
        assert moved.weights is not None
        added = moved.weights.counts() - (1.0 if kind is Dirichlet else 0.0)
        assert np.array_equal(added[labels], counts)
        assert identical(moved.members[labels], members)


def test_both_axes_of_a_matrix_are_one() -> None:
    precision = np.array([[4.0, 1.0], [1.0, 3.0]])
    q = Gaussian(np.array([1.0, 2.0]), precision).relabel(np.array([2, 0]), 3)
    assert np.array_equal(q.precision, [[3.0, 0, 1], [0, 0, 0], [1, 0, 4]])
    assert np.array_equal(q.precision_mean, [2.0, 0.0, 1.0])


@pytest.mark.parametrize(
    "relabel",
    [
        lambda: some("Gamma")[0].relabel(np.array([0]), 1),
        lambda: some("Gaussian", batch=(2,))[0].relabel(np.array([0, 1, 2]), 3),
        lambda: some("Gaussian", batch=(2,))[0].relabel(np.array([0, 1]), 2, (2,)),
        lambda: some("Gamma", batch=(2,))[0].relabel(np.array([0, 2]), 2),
        lambda: some("Gamma", batch=(2,))[0].relabel(np.array([-2, 1]), 2),
        lambda: some("Categorical", size=2)[0].relabel(np.array([1, 0]), 2),
    ],
)
def test_labels_for_what_has_none_are_refused(relabel: object) -> None:
    with pytest.raises(StructureError):
        relabel()  # type: ignore[operator]


def test_plates_within_plates_are_moved_whole() -> None:
    inner = some("Plate-Dirichlet", batch=(3,))[0]
    moved = Plate(inner).relabel(np.array([2, 0, 1]), 3)
    assert identical(moved.members[np.array([2, 0, 1])], inner)
