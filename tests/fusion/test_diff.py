import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posterity.errors import StructureError
from posterity.families import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    Mixture,
    NormalWishart,
    Plate,
    Product,
)
from posterity.fusion.diff import diff
from posterity.ledger import Ledger

SEEDS = st.integers(0, 2**32 - 1)


def members(rng, size, dimension=2):
    root = rng.normal(size=(size, dimension, dimension))
    scale = root @ root.swapaxes(-1, -2) + np.eye(dimension)
    mean = 3 * rng.normal(size=(size, dimension))
    return NormalWishart.from_standard(mean, 1 + rng.random(size), scale, 4 + rng.random(size))


def posterior(rng, size):
    weights = Dirichlet.from_standard(0.5 + 5 * rng.random(size))
    noise = Gamma.from_standard(1 + rng.random(), 1 + rng.random())
    return Product(states=Plate(members(rng, size), weights), noise=noise)


def relabel(plate, order):
    weights = plate.weights
    if isinstance(weights, Dirichlet):
        weights = Dirichlet(weights.concentration_minus_one[order])
    return Plate(plate.members[order], weights)


def block(found, path=""):
    return {block.path: block for block in found.blocks}[path]


@settings(max_examples=10)
@given(SEEDS, st.integers(1, 6))
def test_zero_at_itself_and_under_permutation(seed, size):
    rng = np.random.default_rng(seed)
    q = posterior(rng, size)
    order = rng.permutation(size)
    permuted = Product(q.blocks, states=relabel(q.states, order))
    assert diff(q, q).kl == (0.0, 0.0)
    found = diff(q, permuted)
    assert found.kl == (0.0, 0.0)
    assert [order[pair.b] for pair in block(found, "states").plate.pairs] == list(range(size))


@settings(max_examples=10)
@given(SEEDS, st.integers(1, 4), st.integers(1, 4))
def test_never_negative_and_swapping_swaps(seed, m, n):
    rng = np.random.default_rng(seed)
    a, b = posterior(rng, m), posterior(rng, n)
    there, back = diff(a, b), diff(b, a)
    for one, other in zip(there.blocks, back.blocks, strict=True):
        assert one.kl.ab >= 0 <= one.kl.ba
        assert one.kl == pytest.approx((other.kl.ba, other.kl.ab), rel=1e-12)
    one, other = (block(found, "states").plate for found in (there, back))
    assert {(p.a, p.b) for p in one.pairs} == {(p.b, p.a) for p in other.pairs}
    assert (one.only_in_a, one.only_in_b) == (other.only_in_b, other.only_in_a)
    assert len(one.pairs) == min(m, n)
    assert len(one.only_in_a) == max(0, m - n)


@settings(max_examples=10)
@given(SEEDS)
def test_matching_is_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    a, b = members(rng, 3), members(rng, 3)

    cost = np.array([[a[i].kl(b[j]) + b[j].kl(a[i]) for j in range(3)] for i in range(3)])
    best = min(cost[range(3), order].sum() for order in itertools.permutations(range(3)))
    assert sum(diff(Plate(a), Plate(b)).kl) == pytest.approx(best, rel=1e-9)


def test_twins_are_told_apart_by_their_weights():
    q = Plate(
        DiagonalGaussian.from_standard(np.zeros((3, 1)), np.ones((3, 1))),
        Dirichlet.from_standard([1.0, 2.0, 3.0]),
    )
    assert diff(q, relabel(q, np.array([2, 0, 1]))).kl == (0.0, 0.0)


def test_leaf_is_the_family_s_own_divergence():
    a = Gaussian.from_standard([0.0, 1.0], np.eye(2))
    b = Gaussian.from_standard([2.0, 1.0], 2 * np.eye(2))
    assert diff(a, b).kl == (pytest.approx(a.kl(b)), pytest.approx(b.kl(a)))


def test_batch_is_summed():
    a, b = Gamma.from_standard([1.0, 2.0], [1.0, 1.0]), Gamma.from_standard([2.0, 2.0], [1.0, 3.0])
    assert diff(a, b).kl.ab == pytest.approx(a.kl(b).sum())


def test_weights_count_among_the_matched():
    q = members(np.random.default_rng(0), 3)
    a = Plate(q, Dirichlet.from_standard([2.0, 3.0, 7.0]))
    b = Plate(q[:2], Dirichlet.from_standard([4.0, 1.0]))
    found = diff(a, b).blocks[0]
    shares = Dirichlet.from_standard([2.0, 3.0])
    assert found.plate.weights.ab == pytest.approx(shares.kl(b.weights))
    assert found.plate.only_in_a == {2: pytest.approx(7 / 12)}
    assert found.kl == found.plate.weights  # members are equal


def test_sticks_count_as_they_are_where_the_order_is_the_same():
    q = members(np.random.default_rng(0), 3)
    a = Plate(q, Beta.from_standard([2.0, 3.0, 1.0], [5.0, 2.0, 1.0]))
    b = Plate(q, Beta.from_standard([3.0, 3.0, 2.0], [5.0, 1.0, 1.0]))
    assert diff(a, b).kl.ab == pytest.approx(a.weights.kl(b.weights).sum())


def test_sticks_in_another_order_count_by_expected_weights():
    q = members(np.random.default_rng(0), 2)
    a = Plate(q, Beta.from_standard([2.0, 1.0], [2.0, 1e-9]))  # 1/2 and 1/2
    b = Plate(q[::-1], Beta.from_standard([3.0, 1.0], [1.0, 1e-9]))  # 3/4 for a's second
    expected = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert diff(a, b).kl.ab == pytest.approx(expected)


def test_far_from_the_origin():
    a = Plate(Gaussian.from_standard([[1e6], [1e6 + 3]], np.ones((2, 1, 1))))
    b = Plate(Gaussian.from_standard([[1e6 + 3], [1e6 + 1]], np.ones((2, 1, 1))))
    assert diff(a, b).kl == (pytest.approx(0.5, rel=1e-6), pytest.approx(0.5, rel=1e-6))


def test_ledgers_compare_posteriors_and_say_who_contributes():
    ledger = Ledger(Gamma.from_standard(1.0, 1.0)).update("north", Gamma(2.0, 1.0))
    more = ledger.update("south", Gamma(0.0, 1.0))
    found = diff(ledger, more.forget("north"))
    assert (found.sites_a, found.sites_b) == (("north",), ("south",))
    assert found.kl.ab == pytest.approx(ledger.posterior.kl(Gamma.from_standard(1.0, 2.0)))
    assert diff(ledger, ledger.posterior).kl == (0.0, 0.0)
    assert diff(ledger, ledger.posterior).sites_b is None


def test_plates_without_a_common_member_are_not_compared():
    members = Gamma.from_standard(np.ones(2), np.ones(2))
    with pytest.raises(StructureError, match="a member that both have"):
        diff(Plate(members).named(["a", "b"]), Plate(members).named(["c", "d"]))


def test_blocks_of_any_name_stay_apart():
    one, two = Gamma.from_standard(1.0, 1.0), Gamma.from_standard(2.0, 1.0)
    a = Product({"x/y": one, "x": Product(y=one), "": one})
    b = Product({"x/y": two, "x": Product(y=one), "": one})
    found = diff(a, b)
    assert [block.path for block in found.blocks] == ["%", "x/y", "x%2Fy"]
    assert found.kl == (pytest.approx(one.kl(two)), pytest.approx(two.kl(one)))


def on_a_line(weights, means, variances):
    components = DiagonalGaussian.from_standard(np.c_[means], np.c_[variances])
    return Mixture.from_standard(weights, components)


@pytest.mark.parametrize("offset", [pytest.param(0.0, marks=pytest.mark.slow), 1e6])
def test_estimates_are_right_to_their_standard_errors(offset):
    step = 1e-3
    z = offset + step * np.arange(-30_000, 30_000)[:, None]
    a = on_a_line([1.0, 3.0], [offset, offset + 4.0], [1.0, 0.5])
    b = on_a_line([2.0, 1.0, 1.0], [offset + 4.5, offset, offset - 3.0], [1.0, 2.0, 4.0])
    q = DiagonalGaussian.from_standard([offset + 3.0], [6.0])
    for left, right in [(a, b), (a, q), (q, b)]:
        found = diff(left, right, samples=20_000)
        p, other = left.log_prob(z), right.log_prob(z)
        exact = [step * (np.exp(x) * (x - y)).sum() for x, y in ((p, other), (other, p))]
        for kl, truth, error in zip(found.kl, exact, found.standard_errors, strict=True):
            assert abs(kl - truth) < 4 * error < 0.2


def test_mixtures_match_like_plates_and_their_order_does_not_matter():
    a = on_a_line([1.0, 3.0, 4.0], [0.0, 4.0, 50.0], [1.0, 1.0, 1.0])
    b = on_a_line([3.0, 1.0], [4.5, 0.0], [1.0, 1.0])
    found, back = diff(a, b), diff(b, a)
    plate = found.blocks[0].plate
    assert [(pair.a, pair.b) for pair in plate.pairs] == [(0, 1), (1, 0)]
    assert [pair.kl.ab for pair in plate.pairs] == [0.0, pytest.approx(0.125)]
    assert plate.weights == pytest.approx((0.0, 0.0), abs=1e-12)
    assert plate.only_in_a == {2: pytest.approx(0.5)}
    assert back.kl == found.kl[::-1] and back.standard_errors == found.standard_errors[::-1]
    order = np.array([2, 0, 1])
    shuffled = Mixture(a.log_weights[order], a.components[order])
    assert diff(a, shuffled).kl == (0.0, 0.0) and diff(shuffled, b).kl == found.kl


def test_only_estimates_have_standard_errors_and_a_key():
    q = Gamma.from_standard([2.0, 3.0], [1.0, 1.0])
    mixture = Mixture.from_standard([1.0, 1.0], q)
    exact, estimated = diff(q[0], q[1]), diff(q[0], mixture)
    assert exact.standard_errors is None and exact.blocks[0].standard_errors is None
    assert estimated.blocks[0].plate is None and min(estimated.standard_errors) > 0
    assert diff(q[0], mixture).kl == estimated.kl
    assert diff(q[0], mixture, key=jax.random.key(1)).kl != estimated.kl
