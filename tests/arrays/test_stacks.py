"""Stacking many trees and taking them apart again changes nothing."""

import numpy as np
import pytest

from posterity.arrays.stacks import blocks, columns, rows, stacked, unstacked
from posterity.arrays.tree import leaves
from posterity.families import Gamma, Product
from tests.laws.table import TABLE, identical, some


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_what_was_stacked_comes_back(name: str, batch: tuple[int, ...]) -> None:
    members = some(name, count=3, batch=() if name == "Mixture" else batch)
    stack = stacked(members[0], members)
    assert all(leaf.shape[0] == 3 and not leaf.flags.writeable for leaf in leaves(stack))
    back = unstacked(stack)
    assert len(back) == 3
    for member, again in zip(members, back, strict=True):
        assert type(again) is type(member) and identical(again, member)
        assert all(isinstance(leaf, np.ndarray) for leaf in leaves(again))
    assert all(map(identical, rows(members[0], columns(members[0], members)), members))


def test_containers_are_trees_too() -> None:
    trees = [{"b": [np.full(2, n), None], "a": (Gamma(n, n + 1.0),)} for n in (1.0, 2.0)]
    stack = stacked(trees[0], trees)
    assert list(stack) == ["b", "a"] and stack["b"][1] is None
    assert stack["a"][0].rate.tolist() == [2.0, 3.0]
    assert all(map(identical, unstacked(stack), trees))


G = Gamma(1.0, 2.0)


def test_trees_that_differ_are_told() -> None:
    plain, weighted = (some(name)[0] for name in ("Plate", "Plate-Dirichlet"))
    for like, other in [
        (G, Product(a=G)),
        (Product(a=G), Product(b=G)),
        (Product(a=G), Product(a=G, b=G)),
        (Product(a=G, b=G), Product(a=G)),
        (plain, weighted),
        (weighted, plain),
        ((G, G), (G,)),
        (None, G),
        (G, 3.0),
    ]:
        with pytest.raises(ValueError, match="not like"):
            columns(like, [like, other])


def test_many_arrays_are_taken_in_blocks_of_two_megabytes() -> None:
    arrays = [np.full(1000, float(number)) for number in range(1000)]
    made = list(blocks(arrays))
    assert [len(part) for part, _ in made] == [262, 262, 262, 214]
    assert np.array_equal(np.concatenate([block for _, block in made]), np.array(arrays))
