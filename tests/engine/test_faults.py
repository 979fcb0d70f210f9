"""A small campaign of faults, and mutants of the machine that it catches; the large one is
``python -m benchmarks.faults``.
"""

import pytest

from benchmarks.faults import HANDS_ON, MUTANTS, Silent, campaign, caught

SEEDS = {
    "no fence": 7,
    "no answered test": 3,
    "commit after send": 5,
    "floor 0": 55,
    "log without fsync": 29,
    "no receiver check": 21,
    "no seal test": 14,
    "no floor": 33,
    "not sent again": 3,
    "no signature check": 1,
    "no fence at a tombstone": 3,
    "forgotten, not erased": 3,
}
"""Where the search for a mutant begins, if not at zero: at a run in which the fault happens."""


@pytest.mark.slow
def test_no_promise_is_broken():
    count, broken = campaign(6)
    assert broken == {}
    happened = {
        "drop",
        "duplicate",
        "flip",
        "straggle",
        "parted",
        "forget",
        "lost power",
        "restored",
    }
    assert all(count[what] for what in happened), count


@pytest.mark.slow
def test_no_promise_is_broken_while_members_are_silent():
    count, broken = campaign(8, 0, Silent)
    assert broken == {}
    happened = {"silent", "back", "silent for good", "passed over", "typed"}
    happened |= {"certified without one", "certified by all"}
    assert all(count[what] for what in happened), count


def test_a_machine_that_hands_on_a_token_that_may_have_been_answered_is_caught():
    assert caught(HANDS_ON, 1, 10, Silent) is not None


@pytest.mark.slow
def test_no_promise_is_broken_in_many_runs_with_silent_members():
    assert campaign(20, 100, Silent)[1] == {}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_machine_with_a_defect_is_caught(mutant):
    assert caught(MUTANTS[mutant], 1, SEEDS.get(mutant, 0)) is not None
