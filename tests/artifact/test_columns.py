"""Putting named coefficients in one order: exact, and its own inverse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.arrays.tree import identical
from posterity.artifact import columns
from posterity.errors import ArtifactError, StructureError
from posterity.families import DiagonalGaussian, Gamma, Gaussian, Product
from posterity.ledger import Ledger

NAMES = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=6, unique=True)


@st.composite
def permuted(draw):
    """Names, the same ones in another order, and a seed."""
    names = draw(NAMES)
    return names, draw(st.permutations(names)), draw(st.integers(0, 2**32 - 1))


def posteriors(size, seed):
    """One of each kind that has coefficients, and one that has others too."""
    rng = np.random.default_rng(seed)
    mean, root = rng.normal(size=size), rng.normal(size=(size, size))
    full = Gaussian.from_standard(mean, root @ root.T + np.eye(size))
    diagonal = DiagonalGaussian.from_standard(mean, rng.uniform(1, 2, size))
    noise = Gamma.from_standard(2.0, 1.0)
    several = Product(weights=full, noise=noise, deep=Product(q=diagonal, noise=noise))
    ledger = Ledger(full).update("a", 0.5 * full).update("b", full, independent=True).forget("a")
    return full, diagonal, several, ledger


@given(permuted())
def test_coefficients_move_with_their_names_and_back(case):
    names, wanted, seed = case
    full, diagonal, several, ledger = posteriors(len(names), seed)
    places = [names.index(name) for name in wanted]
    for q in (full, diagonal, several, ledger):
        moved = columns.in_order(q, names, wanted, "here", "there")
        back = columns.in_order(moved, wanted, names, "here", "there")
        assert back == q if isinstance(q, Ledger) else identical(back, q)
    moved = columns.in_order(full, names, wanted, "here", "there")
    assert np.array_equal(moved.precision, full.precision[np.ix_(places, places)])
    assert np.array_equal(moved.precision_mean, full.precision_mean[places])
    blocks = columns.in_order(several, names, wanted, "here", "there")
    assert identical(blocks.weights, moved) and identical(blocks.noise, several.noise)
    assert np.array_equal(blocks.deep.q.precision, diagonal.precision[places])
    turned = columns.in_order(ledger, names, wanted, "here", "there")
    assert turned.forgotten == ("a",) and turned.independent
    assert identical(turned.prior, moved)


def hierarchy(names, personal):
    """Means that go by the names."""
    value = lambda name: float(sum(map(ord, name)))
    normal = lambda these: DiagonalGaussian.from_standard(
        list(map(value, these)), np.ones(len(these))
    )
    return Product(coefficients=normal(names), log_spread=normal(personal))


@given(permuted(), st.data())
def test_spreads_move_with_the_names_of_their_own(case, data):
    names, wanted, _ = case
    personal = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    turned = data.draw(st.permutations(personal))
    here, there = columns.Names.of(names, personal), columns.Names.of(wanted, turned)
    q, expected = hierarchy(names, personal), hierarchy(wanted, turned)
    assert columns.columns_of(q, columns.as_provenance(here)).personal == tuple(personal)
    assert columns.in_order(q, here, there, "here", "there") == expected
    first = {"a": q, "b": expected}
    assert columns.aligned(first, {"a": here, "b": there})[0]["b"] == q
    if len(personal) < len(names):
        others = [name for name in names if name not in personal][: len(personal)]
        with pytest.raises(StructureError, match="differ between sites"):
            columns.in_order(q, here, columns.Names.of(wanted, others), "here", "there")
    with pytest.raises(ArtifactError, match="personal"):
        told = columns.as_provenance(columns.Names.of(names, [*personal, "another"]))
        columns.columns_of(q, told)


@given(permuted(), st.text(min_size=6, max_size=8))
def test_other_names_are_told_apart(case, other):
    names, wanted, seed = case
    full = posteriors(len(names), seed)[0]
    with pytest.raises(StructureError) as raised:
        columns.in_order(full, names, [*wanted[1:], other], "here", "there")
    assert f"{[wanted[0]]} unknown" in raised.value.found
    assert f"{[other]} missing" in raised.value.found


@given(NAMES, st.integers(1, 6))
def test_names_survive_a_file_s_provenance(names, size):
    provenance = columns.as_provenance(names)
    q = DiagonalGaussian.from_standard(np.zeros(size), np.ones(size))
    if size == len(names):
        assert columns.columns_of(q, provenance) == tuple(names)
        assert columns.columns_of(Ledger(q), provenance) == tuple(names)
    else:
        with pytest.raises(ArtifactError):
            columns.columns_of(q, provenance)


def test_who_names_nothing_is_left_as_it_is():
    q = DiagonalGaussian.from_standard([1.0, 2.0], [1.0, 1.0])
    found, names = columns.aligned(
        {"a": q, "b": q, "c": q}, {"a": (), "b": ("u", "v"), "c": ("v", "u")}
    )
    assert names == ("u", "v")
    assert [p.mean.tolist() for p in found.values()] == [[1, 2], [1, 2], [2, 1]]
    assert columns.as_provenance(()) == {}
