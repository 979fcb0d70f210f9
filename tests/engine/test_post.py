"""Letters that are due: at once, again after a while, and to whom they are for."""

import itertools
import threading
import time

import pytest

from posterity.engine import agent as module
from posterity.engine.agent import Post
from posterity.engine.store import Outgoing


class Clock:
    now = 1e6

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def collect(post: Post, most: int = 100, size: int = 10**6, to=None) -> list[Outgoing]:
    return post.collect(0.0, most=most, size=size, to=to)


A, B = Outgoing("a", b"1"), Outgoing("b", b"22")


def test_letters_that_are_kept_are_due_again_after_rests_that_double(clock):
    post, times = Post(), []
    post.update([A])
    for _ in range(6000):
        if collect(post):
            times.append(clock.now)
        clock.now += 0.1
    rests = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert len(rests) > 8
    for number, rest in enumerate(rests):
        least = min(1.0 * 2**number, 60.0)
        assert least - 0.01 <= rest <= 1.5 * least + 0.2


def test_letters_that_are_due_once_come_once_and_acknowledged_ones_no_more(clock):
    post = Post()
    post.update([A], [B])
    assert collect(post) == [B, A]
    clock.now += 100
    assert collect(post) == [A]
    post.update([])
    clock.now += 100
    assert collect(post) == [] and post.waiting() == {}


def test_letters_are_taken_by_receiver_number_and_size(clock):
    letters = [Outgoing("a", bytes([n]) * 10) for n in range(5)]
    post = Post()
    post.update([B, *letters])
    assert post.waiting() == {"a": 5, "b": 1}
    assert collect(post, to=["b"]) == [B]
    assert collect(post, to=[]) == []
    assert collect(post, most=2) == letters[:2]
    assert collect(post, size=25) == letters[2:4]
    assert collect(post, size=1) == letters[4:]


def test_who_was_not_reached_or_is_heard_again_does_not_wait_for_long(clock):
    post = Post()
    post.update([A])
    for _ in range(8):
        collect(post)
        clock.now += 100
    collect(post)
    clock.now += 1
    post.heard(["b"])
    assert collect(post) == []
    post.heard(["a"])
    assert collect(post) == [A]
    post.heard(None)  # it was handed over just now
    assert collect(post) == []
    post.unreached([A, B])
    assert collect(post) == []
    clock.now += 1.0
    assert collect(post) == [A]


def test_who_waits_gets_what_comes_and_is_let_go_at_the_end():
    post, got = Post(), []
    threads = [
        threading.Thread(target=lambda: got.append(post.collect(60.0, most=9, size=9)))
        for _ in range(2)
    ]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    post.update([A])
    while not got:
        time.sleep(0.01)
    post.close()
    for thread in threads:
        thread.join()
    assert sorted(got) == [[], [A]] and time.monotonic() - start < 30.0


def test_receipts_that_nobody_fetches_are_bounded():
    post = Post()
    post.update([], [Outgoing("a", str(n).encode()) for n in range(4096 + 5)])
    assert len(collect(post, most=10**6)) == 4096
