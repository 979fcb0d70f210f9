"""Maps that share: each is a value of its own, whatever is made of it."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.runtime.sharing import SharedMap

NAMES = st.integers(0, 400).map("site {}".format)
CHANGES = st.lists(st.dictionaries(NAMES, st.integers(), max_size=40), max_size=12)


@given(CHANGES, st.data())
def test_a_changed_map_is_a_dictionary_that_was_changed_and_the_old_one_stays(changes, data):
    plain, shared = [{}], [SharedMap.of({})]
    for change in changes:
        at = data.draw(st.integers(0, len(plain) - 1))  # any earlier one may go on
        plain.append(plain[at] | change)
        shared.append(shared[at] | change)
    for mine, theirs in zip(shared, plain, strict=True):
        assert mine == theirs and len(mine) == len(theirs)
        assert list(mine) == sorted(theirs)
        assert list(mine.items()) == sorted(theirs.items())
        assert list(mine.values()) == [theirs[name] for name in sorted(theirs)]
        assert all(mine[name] == mine.get(name) == theirs[name] for name in theirs)
        assert "nobody" not in mine and mine.get("nobody") is None
    assert SharedMap.of(shared[-1]) is shared[-1]


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_are_equal_and_go_on_by_themselves(clone):
    own = SharedMap.of({"b": [1], "a": [2]})
    assert clone(own) == own and clone(own) | {"c": [3]} == {"a": [2], "b": [1], "c": [3]}
    assert repr(own) == "{'a': [2], 'b': [1]}"
