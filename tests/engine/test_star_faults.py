"""A small campaign of faults against a star, and mutants of its server that it catches; the large
one is ``python -m benchmarks.faults_star``.
"""

import pytest

from benchmarks.faults import campaign, caught
from benchmarks.faults_star import MUTANTS, SilentStar, Star

SEEDS = {
    "an answer counts twice": 4,
    "any answer counts": 4,
    "answers are not kept": 2,
    "questions of before a forgetting wait": 6,
    "commit after send": 115,
    "forgotten, not erased": 17,
    "not asked again": 1,
}
"""Where the search for a mutant begins, if not at zero: at a run in which the fault happens."""


@pytest.mark.slow
def test_no_promise_is_broken():
    count, broken = campaign(8, 0, Star)
    assert broken == {}
    happened = {
        "drop",
        "duplicate",
        "flip",
        "straggle",
        "forget",
        "server",
        "lost power",
        "restored",
    }
    assert all(count[what] for what in happened), count


@pytest.mark.slow
def test_no_promise_is_broken_while_sites_are_silent():
    count, broken = campaign(8, 0, SilentStar)
    assert broken == {}
    happened = {"silent", "back", "silent for good", "passed over", "typed"}
    happened |= {"certified without one", "certified by all"}
    assert all(count[what] for what in happened), count


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_server_with_a_defect_is_caught(mutant):
    assert caught(MUTANTS[mutant], 2, SEEDS.get(mutant, 0), Star) is not None
