"""Exact sums of members of every family: order, departures, and what it takes to send one."""

import copy
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.table import NAMES, identical, laws, some

from posterity.arrays import stacks
from posterity.arrays.tree import leaves
from posterity.arrays.tree_sums import TreeSum, total
from posterity.errors import ParameterError
from posterity.families import DiagonalGaussian, Gamma, at_rest

seeds = st.integers(0, 2**32 - 1)


def uneven(member, rng):
    """The same member on scales so different that every order of addition rounds differently."""
    return at_rest(member * float(10.0 ** rng.integers(-12, 12) * rng.choice([-1, 1])))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=3)  # of each family: a sum knows leaves alone
@given(seed=seeds, order=st.permutations(range(12)), stay=st.integers(0, 12))
def test_only_what_is_in_a_sum_counts(name, seed, order, stay):
    rng = np.random.default_rng(seed)
    prior, *factors = (uneven(member, rng) for member in some(name, count=13, seed=seed))
    total, mine = TreeSum.of([prior]), [factors[k] for k in order]
    for factor in mine:
        total = total.changed(add=[factor])
    assert total == TreeSum.of([prior, *factors])
    left = TreeSum.of([prior, *mine[:stay]])
    assert total.changed(take=mine[stay:]) == left
    assert left.changed(take=mine[:stay], add=[prior]) == TreeSum.of([prior, prior])
    assert identical(left.changed(take=mine[:stay]).value, prior)


@laws
@given(seeds, st.sampled_from([1, 2, 7, 64]))
def test_many_trees_are_added_in_pieces(seed, chunk):
    rng = np.random.default_rng(seed)
    trees = [uneven(member, rng) for member in some("Product", count=30, seed=seed)]
    whole = TreeSum.of(trees)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stacks, "CHUNK", chunk)
        assert TreeSum.of(trees) == whole


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=2)
@given(seeds, st.sampled_from([1, 2, 7, 64]), st.integers(1, 5))
def test_a_sum_is_rounded_once_however_many_numbers_go_together(name, seed, together, count):
    rng = np.random.default_rng(seed)
    trees = [uneven(member, rng) for member in some(name, count=count, seed=seed)]
    assert identical(total(trees, together=together), TreeSum.of(trees).value)


def test_a_sum_takes_little_memory_beside_its_own():
    size = 2**20
    rng = np.random.default_rng(0)
    laws = [DiagonalGaussian(rng.normal(size=size), rng.random(size)) for _ in range(4)]
    tracemalloc.start()
    try:
        result = total(laws)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 * size  # 16 bytes are the sum's own
    assert all(leaf.base is None or leaf.base.size == size for leaf in leaves(result))


def test_sums_are_values():
    whole = TreeSum.of(some("Gaussian", count=4))
    for again in (copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))):
        assert again == whole
        assert not any(leaf.flags.writeable for leaf in leaves(again))
    assert whole != TreeSum.of(some("Gaussian", count=3))
    assert all(type(leaf) is np.ndarray for leaf in leaves(TreeSum.of([Gamma(1.0, 2.0)])))


@pytest.mark.parametrize("deviation", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_sum_takes_at_most_four_times_the_size_of_its_parameters(deviation, scale):
    rng, shape = np.random.default_rng(0), (1000,)
    prior = DiagonalGaussian.from_standard(np.zeros(shape), np.full(shape, deviation**2))
    total = TreeSum.of([prior])
    for _ in range(100):
        sizes = scale * np.exp(3 * rng.normal(size=shape))
        total = total.changed(add=[DiagonalGaussian(sizes * rng.normal(size=shape), sizes**2)])
    assert len(total.layers) > 1
    assert total.nbytes <= 4 * sum(leaf.nbytes for leaf in leaves(prior))


def test_trees_of_another_structure_are_refused():
    with pytest.raises(ValueError, match="not like"):
        TreeSum.of([Gamma(1.0, 2.0), DiagonalGaussian([0.0], [1.0])])
    with pytest.raises(ParameterError, match="NaN or infinity"):
        TreeSum.of([Gamma(1.0, 2.0)]).changed(add=[Gamma(np.nan, 1.0)])
    large = Gamma(1e308, 1.0)
    with pytest.raises(ParameterError, match=r"beyond the range of float64"):
        TreeSum.of([large]).changed(add=[large])
    assert identical(TreeSum.of([large]).changed(add=[large], take=[large]).value, large)
