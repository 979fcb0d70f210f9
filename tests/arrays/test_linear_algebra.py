"""Threads of BLAS are held at one for small problems only, and as before afterwards."""

import threading

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from posterity import Gaussian, federate, fuse
from posterity.arrays.linear_algebra import one_thread
from posterity.models import LogisticRegression
from posterity.tabular import fit
from posterity.tabular.recipe import Recipe

POOLS = ThreadpoolController().select(user_api="blas")
THREADS = 3


def threads():
    return {pool["num_threads"] for pool in POOLS.info()}


@pytest.fixture(autouse=True)
def several():
    """More threads than one, also on a machine of one core."""
    with POOLS.limit(limits=THREADS):
        assert threads() == {THREADS}
        yield


def test_a_small_block_has_one_thread_and_a_large_one_all():
    with one_thread(10, 1000):
        assert threads() == {1}
    assert threads() == {THREADS}
    with one_thread(1626):
        assert threads() == {THREADS}
    with one_thread(10, 1000, small=1000):
        assert threads() == {THREADS}


def test_nested_blocks_restore_at_the_end_of_the_outer_one_and_after_errors():
    with pytest.raises(ZeroDivisionError), one_thread(10):
        with pytest.raises(KeyError), one_thread(10):
            raise KeyError
        assert threads() == {1}
        raise ZeroDivisionError
    assert threads() == {THREADS}


def test_a_block_in_another_thread_of_python_restores_nothing_of_its_own():
    inside, leave = threading.Event(), threading.Event()

    def other():
        with one_thread(10):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with one_thread(10):
        thread.start()
        inside.wait()
        assert threads() == {1}
    assert threads() == {THREADS}
    leave.set()
    thread.join()
    assert threads() == {THREADS}


class Stop(Exception):
    """What a callback raises."""


def table(folder):
    rows = ["x,y", *(f"{x},{int(x > 3) ^ (x == 2)}" for x in range(8))]
    (folder / "north.csv").write_text("\n".join(rows))
    return folder / "north.csv"


PRIOR = Gaussian.from_standard(np.zeros(2), 100 * np.eye(2))
X, Y = np.column_stack([np.ones(8), np.arange(8.0)]), np.array([0, 0, 1, 0, 1, 1, 1, 1.0])
VERBS = {
    "fit": lambda folder, seen: fit(table(folder), Recipe("logistic", "y"), progress=seen),
    "federate": lambda _, seen: federate({"a": (X, Y)}, LogisticRegression(), PRIOR, progress=seen),
    "fuse": lambda _, seen: fuse({"a": PRIOR * 2, "b": PRIOR * 3}, prior=PRIOR),
}


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_leave_numbers_of_threads_as_they_were(verb, tmp_path):
    during = []
    VERBS[verb](tmp_path, lambda progress: during.append(threads()))
    assert all(seen == {1} for seen in during)
    assert bool(during) == (verb != "fuse")
    assert threads() == {THREADS}


@pytest.mark.parametrize("verb", ["fit", "federate"])
def test_verbs_that_fail_leave_numbers_of_threads_as_they_were(verb, tmp_path):
    def stop(progress):
        raise Stop

    with pytest.raises(Stop):
        VERBS[verb](tmp_path, stop)
    assert threads() == {THREADS}
