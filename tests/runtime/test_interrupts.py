"""Ctrl-C and SIGTERM wait until it is safe; the second one does not."""

import os
import signal
import threading
import time

import pytest

from posterity.runtime.interrupts import Terminated, deferred

ENDS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


@pytest.fixture(autouse=True)
def handlers():
    """Those that there were are there again."""
    before = [signal.getsignal(number) for number in ENDS]
    yield
    assert [signal.getsignal(number) for number in ENDS] == before


@pytest.mark.parametrize("number", ENDS)
def test_a_first_signal_waits_until_it_is_asked_for(number):
    done = []
    with pytest.raises(ENDS[number]), deferred() as interrupts:
        interrupts.check()
        signal.raise_signal(number)
        done.append("the step")
        interrupts.check()
    assert done == ["the step"]


@pytest.mark.parametrize("number", ENDS)
def test_a_second_one_does_not_wait(number):
    with pytest.raises(ENDS[number]), deferred():
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("not reached")


def test_it_is_not_lost_in_a_finaliser():
    class Finalised:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), deferred() as interrupts:
        Finalised()
        interrupts.check()


def test_exit_codes():
    assert Terminated().code == 143


def test_blocks_within_share_the_interrupts():
    with pytest.raises(KeyboardInterrupt), deferred() as outer:
        with deferred() as inner:
            signal.raise_signal(signal.SIGINT)
        assert inner is outer
        outer.check()


def test_what_there_is_is_saved_however_it_ends():
    saved = []
    save = lambda: saved.append(1)
    with pytest.raises(ZeroDivisionError), deferred() as one, one.rescued_by(save):
        raise ZeroDivisionError
    assert saved == [1]


def test_handlers_of_others_stay():
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        with deferred() as interrupts:
            signal.raise_signal(signal.SIGINT)
            interrupts.check()
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [1]


def test_other_threads_have_no_signals_to_wait_for():
    asked = []

    def elsewhere():
        with deferred() as interrupts:
            asked.append(interrupts.check())

    with deferred() as outer:
        signal.raise_signal(signal.SIGINT)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert (asked, outer.came) == ([None], [signal.SIGINT])


def test_who_watches_hears_of_each_signal_at_once():
    heard = []
    with deferred(lambda interrupts, number, count: heard.append((number, count))) as interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        deadline = time.monotonic() + 10
        while len(heard) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert heard == [(signal.SIGINT, 1), (signal.SIGTERM, 2)]
        assert interrupts.came == [signal.SIGINT, signal.SIGTERM]
