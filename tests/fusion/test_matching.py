"""The canonical order: of contents alone."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from posterity import DiagonalGaussian
from posterity.families import ExponentialFamily
from posterity.fusion.matching import canonical_order


def members(rows: list[list[tuple[int, int]]]) -> ExponentialFamily:
    mean = np.array([row for site in rows for row in site], float)
    return DiagonalGaussian.from_standard(mean, np.ones(mean.shape))


def in_order(rows: list[list[tuple[int, int]]]) -> tuple[np.ndarray, np.ndarray]:
    """What stands where, once in order, and where sites begin and end."""
    found = members(rows)
    order, starts = canonical_order(found, np.cumsum([0, *map(len, rows)]), None)
    assert sorted(order.tolist()) == list(range(len(order)))
    return found.natural_parameters[order], starts


# Few different numbers, so that components and whole sites are often equal.
pairs = st.tuples(st.integers(0, 1), st.integers(-1, 1))


@settings(max_examples=200)
@given(
    rows=st.lists(st.lists(pairs, min_size=1, max_size=4), min_size=1, max_size=8),
    seed=st.integers(0, 2**32 - 1),
)
def test_order_and_starts_depend_on_contents_alone(
    rows: list[list[tuple[int, int]]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shuffled = [[site[k] for k in rng.permutation(len(site))] for site in rows]
    shuffled = [shuffled[j] for j in rng.permutation(len(rows))]
    one, other = in_order(rows), in_order(shuffled)
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])
    sizes = sorted(map(len, rows), reverse=True)
    np.testing.assert_array_equal(np.diff(one[1]), sizes)


def test_sites_that_only_changed_components_keep_an_order() -> None:
    """Sums of hashes must tell apart sites whose components share out the same numbers."""
    one = [[(0, 0), (1, 1)], [(0, 1), (1, 0)], [(2, 2), (3, 3)], [(2, 3), (3, 2)]]
    np.testing.assert_array_equal(in_order(one)[0], in_order(one[::-1])[0])


def test_rounding_changes_no_order() -> None:
    """Sites that another processor computed differ in the last bits."""
    rng = np.random.default_rng(0)
    mean, variance, counts = rng.normal(size=(3, 600, 2))
    starts = np.arange(0, 601, 3)
    whole = DiagonalGaussian.from_standard(mean, np.exp(variance))
    order, _ = canonical_order(whole, starts, np.exp(counts[:, 0]))
    for _ in range(3):
        noise = 1 + rng.integers(-4, 5, size=(600, 4)) * 2.0**-52
        other = whole.with_natural_parameters(whole.natural_parameters * noise)
        there, _ = canonical_order(other, starts, np.exp(counts[:, 0]) * noise[:, 0])
        np.testing.assert_array_equal(there, order)
