"""Maps and histories that share: each is a value of its own, whatever is made of it."""

import copy
import pickle
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.runtime.sharing import History, SharedMap

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
    own, past = SharedMap.of({"b": [1], "a": [2]}), History.of([1, 2])
    assert clone(own) == own and clone(own) | {"c": [3]} == {"a": [2], "b": [1], "c": [3]}
    assert clone(past) == past and clone(past).then([3]) == (1, 2, 3)
    assert repr(own) == "{'a': [2], 'b': [1]}" and repr(past) == "(1, 2)"


@given(st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(), max_size=4)), max_size=30))
def test_a_longer_history_is_a_longer_tuple_and_the_old_one_stays(steps):
    plain, shared = [()], [History.of(())]
    for at, more in steps:
        plain.append(plain[at % len(plain)] + tuple(more))
        shared.append(shared[at % len(shared)].then(more))
    for mine, theirs in zip(shared, plain, strict=True):
        assert mine == theirs and tuple(mine) == theirs and len(mine) == len(theirs)
        assert tuple(reversed(mine)) == theirs[::-1]
        assert mine[1:-1] == theirs[1:-1] and mine[:] == theirs
        assert not theirs or mine[-1] == theirs[-1]
        with pytest.raises(IndexError):
            mine[len(theirs)]


def test_what_is_made_of_one_history_in_two_threads_is_two_histories():
    start, ends = History.of(range(3)), {}

    def go_on(name):
        end = start
        for number in range(500):
            end = end.then([(name, number)])
        ends[name] = end

    threads = [threading.Thread(target=go_on, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, end in ends.items():
        assert end == (0, 1, 2, *((name, number) for number in range(500)))
