"""Sites that run in one process, over their sockets: what is taken in, sent, and refused."""

import contextlib
import json
import resource
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from engine.coins import DATA, PRIOR, Coins, terms

from posterity.engine.agent import Agent
from posterity.engine.log import TreeHead
from posterity.engine.machine import Machine
from posterity.engine.memory import Memory, Step
from posterity.engine.running import Running
from posterity.engine.store import Store
from posterity.engine.transports.unix import Client
from posterity.errors import ArtifactError, PosterityError, SiteError, UsageError
from posterity.federation import federate
from posterity.models import BetaBernoulli

COINS = Coins(terms(limits={"bytes": 20_000}))
SITES = tuple(COINS.machines)


class Sites:
    """Sites of four coins, each with a folder of its own; they run in threads."""

    def __init__(self, folder: Path):
        self.folder, self.running, self.threads = folder, {}, {}
        self.events = {site: [] for site in SITES}
        for site in SITES:
            (folder / site).mkdir()
            Store.create(folder / site / "site.db", Step(Memory.empty(site)).change).close()

    def socket(self, site: str) -> Path:
        return self.folder / site / "site.sock"

    def made(self, site: str, machine: Machine | None = None, **options) -> Running:
        store = Store(self.folder / site / "site.db")
        sockets = {other: self.socket(other) for other in SITES if other != site}
        options = {"sockets": sockets, "tell": self.events[site].append} | options
        return Running(Agent(machine or COINS.machines[site], store), **options)

    def start(self, site: str, **options) -> Running:
        running = self.running[site] = self.made(site, **options)

        def run() -> None:
            with contextlib.suppress(ArtifactError):
                running.run(self.socket(site))

        self.threads[site] = threading.Thread(target=run)
        self.threads[site].start()
        until(lambda: self.socket(site).exists())
        return running

    def end(self, site: str) -> None:
        running = self.running.pop(site)
        running.stop()
        self.threads.pop(site).join()
        running.agent.store.close()

    def ask(self, site: str, do: str, body: bytes = b"", **arguments):
        with Client(self.socket(site)) as client:
            return client.ask(do, body, **arguments)


def until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.01)


@pytest.fixture
def sites(tmp_path):
    sites = Sites(tmp_path)
    yield sites
    for site in list(sites.running):
        sites.end(site)


def test_a_token_walks_over_sockets_until_all_have_added_their_factors(sites):
    for site in SITES:
        sites.start(site)
    head, _ = sites.ask("a", "begin")
    assert head["epoch"] == [1, "a"] and head["sequence"] == 0
    until(lambda: all(sites.ask(site, "status")[0]["counted"] for site in SITES))
    for site in SITES:
        sites.end(site)
    agents = {site: sites.made(site).agent for site in SITES}
    total = PRIOR
    for site in SITES:
        total = total + agents[site].memory.own.entry.factor
        agents[site].store.close()
    there = federate(DATA, BetaBernoulli(), PRIOR, steps=1).posterior
    assert np.allclose(total.natural_parameters, there.natural_parameters)


def test_a_site_that_comes_late_gets_what_waits_for_it(sites):
    sites.start("a")
    sites.ask("a", "begin")
    waiting = sites.ask("a", "status")[0]
    (receiver,) = waiting["awaited"]
    assert waiting["holder"] == "a"
    until(lambda: any(event["event"] == "unreachable" for event in sites.events["a"]))
    sites.start(receiver)
    until(lambda: sites.ask(receiver, "status")[0]["counted"])
    until(lambda: any(event["event"] == "reached" for event in sites.events["a"]))
    until(lambda: sites.ask("a", "status")[0]["heard"][receiver] is not None)
    # The token counts at the receiver before its sender hears that it came.
    until(lambda: sites.ask("a", "status")[0]["holder"] == receiver)


def test_couriers_collect_what_is_due_and_bring_it(sites):
    for site in SITES:
        sites.start(site, sockets={})
    sites.ask("a", "begin")

    def carry() -> None:
        for site in SITES:
            with Client(sites.socket(site)) as courier:
                for receiver, letter in courier.collect(wait=0.05, most=4, encrypted=True):
                    with Client(sites.socket(receiver)) as there:
                        there.deliver(letter)

    for _ in range(100):
        carry()
        if all(sites.ask(site, "status")[0]["counted"] for site in SITES):
            break
    else:
        pytest.fail("it does not reach everybody")
    with Client(sites.socket("a")) as courier:
        with pytest.raises(UsageError, match="end to end"):
            courier.collect(wait=0.0, most=1, encrypted=False)
        for wrong in ({"wait": -1.0}, {"wait": 1e9}, {"most": 0}):
            with pytest.raises(UsageError):
                courier.collect(**{"wait": 0.0, "most": 1, "encrypted": True} | wrong)


def test_an_inbox_is_bounded_in_number_and_size(sites):
    for size, count in ((10, 256), (20_000, 4)):
        running = sites.made("b")
        running.patience = 0.01
        for number in range(count):
            running.answer({"do": "deliver"}, number.to_bytes(4, "big").ljust(size))
        running.answer({"do": "deliver"}, (0).to_bytes(4, "big").ljust(size))
        with pytest.raises(SiteError):
            running.answer({"do": "deliver"}, b"x" * size)
        running.agent.store.close()


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"do": None},
        {"do": ["begin"]},
        {"do": "run"},
        {"do": "begin", "number": 0},
        {"do": "begin", "number": "1"},
        {"do": "begin", "number": 1.5},
        {"do": "begin", "memory": 1},
        {"do": "pass_over"},
        {"do": "pass_over", "sites": None},
        {"do": "forget", "site": "b"},
        {"do": "status", "of": "b"},
        {"do": "collect", "from": "b"},
        {"do": "collect", "wait": "long"},
        {"do": "collect", "to": [1]},
        {"do": "collect", "to": "a"},
        {"do": "collect", "encrypted": 1},
        {"do": "deliver", "letter": ""},
        {"do": "audit", "start": "0"},
        {"do": "post", "to": "a"},
        {"do": "post", "envelope": "{}"},
        {"do": "send", "to": "a", "name": 5},
        {"do": "send", "to": ["a"], "name": "file"},
    ],
)
def test_requests_that_make_no_sense_are_refused(sites, head):
    running = sites.made("b")
    state = running.agent.store.state
    with pytest.raises(PosterityError):
        running.answer(head, b"")
    assert running.agent.store.state == state
    running.agent.store.close()


@pytest.mark.parametrize("defect", [KeyError("posterior"), TypeError("a law")])
def test_a_defect_is_no_request_that_makes_no_sense(sites, monkeypatch, defect):
    running = sites.made("b")

    def leave(machine, memory):
        raise defect

    monkeypatch.setattr(type(running.agent.machine), "leave", leave)
    with pytest.raises(type(defect)):
        running.answer({"do": "leave"}, b"")
    running.agent.store.close()


def test_junk_and_letters_of_others_do_not_end_a_site(sites):
    sites.start("b")
    for letter in (b"", b"junk", bytes(19_000), COINS.begin("a").sent[0].content):
        sites.ask("b", "deliver", letter)
    until(lambda: sum(sites.ask("b", "status")[0]["refused"].values()) >= 3)
    sites.ask("b", "begin")
    assert sites.ask("b", "status")[0]["counted"]


class Broken(Machine):
    """A machine with a defect."""

    def receive(self, memory: Memory, content: bytes) -> Step:
        raise ZeroDivisionError("a defect")


def test_a_letter_at_which_the_machine_fails_is_as_if_lost(sites):
    machine = COINS.machines["b"]
    running = sites.made("b", machine=Broken(machine.terms, machine.site, machine.key))
    for number in range(3):
        running.answer({"do": "deliver"}, b"%d" % number)
    running._take_in()
    assert [event["event"] for event in sites.events["b"]] == ["failed"] * 3
    running.agent.store.close()


def test_a_full_disk_ends_a_site_and_what_was_durable_stays(sites):
    sites.start("b")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(PosterityError):
            sites.ask("b", "begin")
        sites.threads["b"].join(10.0)
        assert not sites.threads["b"].is_alive()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not sites.socket("b").exists()
    sites.running.pop("b")
    sites.start("b")
    assert not sites.ask("b", "status")[0]["counted"]
    sites.ask("b", "begin")
    assert sites.ask("b", "status")[0]["counted"]


def test_an_auditor_gets_the_log_in_parts_and_its_checkpoint(sites, monkeypatch):
    running = sites.made("b")
    for _ in range(5):
        running.answer({"do": "begin"}, b"")
    monkeypatch.setattr(running, "_largest", 500)
    lines, entries = None, []
    while lines != 0:
        head, body = running.answer({"do": "audit", "start": len(entries)}, b"")
        lines = head["lines"]
        entries += body.split(b"\n") if lines else []
    head = TreeHead.from_bytes(head["checkpoint"].encode())
    head.verify(running.agent.machine.key.public)
    assert head.size == len(entries) and entries == running.agent.store.entries()
    assert head.root == running.agent.store.log.root()
    assert all(json.loads(entry)["event"] for entry in entries)
    running.agent.store.close()


def test_a_site_is_stopped_by_its_socket(sites):
    sites.start("b")
    sites.ask("b", "begin")
    assert sites.ask("b", "stop")[0] == {"ok": True}
    sites.threads.pop("b").join(10.0)
    sites.running.pop("b").agent.store.close()
    assert sites.events["b"][-1]["event"] == "stopped"
    assert not sites.socket("b").exists()
