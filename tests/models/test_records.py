import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from posterity.models.records import FEW, GROUPS, group_sizes

SIZES = st.lists(st.integers(1, 100_000), min_size=1, max_size=60)


@given(SIZES, st.integers(1, 30))
def test_few_sizes_add_few_records(sizes, times):
    sizes = np.repeat(sizes, times)
    tops = group_sizes(sizes)
    padded = tops[np.searchsorted(tops, sizes)]
    assert set(tops) <= set(sizes)
    assert (padded >= sizes).all()
    assert padded.sum() <= max(2 * sizes.sum(), FEW) or len(tops) == GROUPS
    alone = max(sizes) * len(sizes)
    assert len(tops) == 1 or alone > max(2 * sizes.sum(), FEW)


def test_the_best_of_all_ways_to_make_two_groups():
    sizes = np.random.default_rng(0).integers(1, 3000, 40)
    sizes[0] = 60_000
    (low, high) = group_sizes(sizes)
    cost = lambda low: np.where(sizes <= low, low, high).sum()
    assert cost(low) == min(map(cost, sizes))


def test_of_very_many_sizes_the_largest_is_among_those_found():
    sizes = np.arange(1, 100_000)
    tops = group_sizes(sizes)
    assert tops[-1] == sizes[-1]
    assert tops[np.searchsorted(tops, sizes)].sum() <= 2 * sizes.sum()
