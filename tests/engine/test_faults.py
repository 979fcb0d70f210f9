"""A small campaign of faults, and mutants of the machine that it catches; the large one is
``python -m benchmarks.faults``.
"""

import numpy as np
import pytest

from benchmarks.faults import MUTANTS, campaign, caught
from benchmarks.network import Faults, Network
from posterity.engine.store import Outgoing
from posterity.errors import UsageError

SEEDS = {
    "no fence": 3,
    "commit after send": 5,
    "floor 0": 55,
    "log without fsync": 29,
    "no receiver check": 1,
    "no signature check": 1,
    "no fence at a tombstone": 3,
    "forgotten, not erased": 3,
}
"""Where the search for a mutant begins, if not at zero: at a run in which the fault happens."""


def test_no_promise_is_broken():
    count, broken = campaign(6)
    assert broken == {}
    happened = {"drop", "duplicate", "flip", "straggle", "parted", "forget", "lost power"}
    assert all(count[what] for what in happened), count


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_machine_with_a_defect_is_caught(mutant):
    assert caught(MUTANTS[mutant], 1, SEEDS.get(mutant, 0)) is not None


def test_letters_arrive_as_often_and_as_late_as_was_asked_for():
    network = Network("ab", Faults(drop=0.2, duplicate=0.1, delay=2.0), seed=1)
    network.send("a", [Outgoing("b", b"x")] * 4000)
    assert abs(network.count["drop"] / 4000 - 0.2) < 0.03
    assert network.arrived(0.0) == []
    soon = len(network.arrived(2.0))
    everything = soon + len(network.arrived(1e9))
    assert abs(everything / 4000 - 0.9 * 0.8 - 2 * 0.1 * 0.8) < 0.05
    assert abs(soon / everything - (1 - np.exp(-1))) < 0.05


def test_letters_are_altered_and_go_astray():
    network = Network("abc", Faults(flip=1.0, misdeliver=1.0))
    network.send("a", [Outgoing("b", bytes(10))] * 100)
    arrived = network.arrived(1e9)
    assert {message.receiver for message in arrived} == set("abc")
    assert all(sum(byte.bit_count() for byte in message.content) == 1 for message in arrived)


def test_parted_sites_do_not_hear_of_each_other():
    network = Network("abc")
    network.partition = frozenset("a")
    network.send("a", [Outgoing("b", b"1"), Outgoing("a", b"2")])
    network.send("b", [Outgoing("c", b"3"), Outgoing("a", b"4")])
    assert {message.content for message in network.arrived(1e9)} == {b"2", b"3"}
    assert network.count["parted"] == 2


def test_faults_are_probabilities():
    for bad in ({"drop": 1.5}, {"flip": float("nan")}, {"delay": 0.0}):
        with pytest.raises(UsageError):
            Faults(**bad)
