"""The agent of a site: what one write holds, and failures of the machine."""

import dataclasses
import json
from pathlib import Path

import jax
from engine.coins import DATA, Coins, opened, terms
from engine.keys import KEYS

from posterity.engine.agent import Agent
from posterity.engine.author import Author
from posterity.engine.machine import Machine
from posterity.engine.memory import MOST_REFUSALS, Memory, Step
from posterity.engine.messages import Acknowledgement, Letter, Notice
from posterity.engine.questions import answer_of
from posterity.engine.running import Running
from posterity.engine.signing import PrivateKey
from posterity.engine.store import Store
from posterity.federation import Token
from posterity.federation.messages import Improve
from posterity.federation.site import Site

OFFICER = PrivateKey(b"o" * 32)


def made(folder: Path, machine: Machine) -> Agent:
    return Agent(machine, Store.create(folder / "site.db", Step(Memory.empty(machine.name)).change))


def letter(coins: Coins, sender: str, receiver: str, body) -> bytes:
    return Letter(coins.terms.digest, sender, receiver, 1, (), body).sealed(KEYS[sender])


def events(agent: Agent) -> list[dict]:
    return [json.loads(entry) for entry in agent.store.entries()]


def test_what_a_later_letter_erases_is_not_sent_any_more(tmp_path):
    coins = Coins(terms(authorities={"officer": str(OFFICER.public)}))
    (token,) = [m for m in coins.begin("a").sent if isinstance(opened(m.content).body, Token)]
    here = token.receiver
    agent = made(tmp_path, coins.machines[here])
    tombstone = Author(coins.terms, "officer", OFFICER).tombstone(here, 1)
    sender = next(site for site in DATA if site not in ("a", here))
    notice = letter(coins, sender, here, Notice(tombstone.envelope))
    sent = agent.receive(token.content, notice)
    assert agent.memory.own.entry.factor is None
    bodies = [opened(message.content).body for message in sent]
    assert not any(isinstance(body, Token) for body in bodies)
    assert sum(isinstance(body, Acknowledgement) for body in bodies) == 2
    kept = {*agent.memory.outbox.values()}
    assert all(m in kept for m, b in zip(sent, bodies, strict=True) if isinstance(b, Notice))
    agent.store.close()


SECRET = "the record of a patient"


class Broken(Machine):
    """A machine whose every act ends in an error that nobody foresaw."""

    def _fail(self, *arguments):
        raise ZeroDivisionError(SECRET)

    start = checkpoint = pass_over = awaited = receive = _fail


def test_an_error_that_nobody_foresaw_does_not_end_an_agent_nor_tell_what_it_says(tmp_path):
    machine = Coins().machines["a"]
    agent = made(tmp_path, Broken(machine.terms, machine.site, machine.key))
    agent.command(lambda memory: Step(dataclasses.replace(memory, highest=1)))
    running, calls = Running(agent), []

    def look_around() -> None:
        calls.append(1)
        if len(calls) > 3 * MOST_REFUSALS:
            running.stop()
        Running._look_around(running)

    running._look_around, running._take_in = look_around, lambda: None
    running.run(tmp_path / "site.sock")
    assert agent.receive(b"any") == ()
    told = events(agent)
    assert MOST_REFUSALS <= len(told) < MOST_REFUSALS + 10
    assert {(each["event"], each["error"]) for each in told} == {("failed", "ZeroDivisionError")}
    assert agent.memory.refusals["defect"] > 3 * MOST_REFUSALS
    assert not any(SECRET.encode() in entry for entry in agent.store.entries())
    agent.store.close()


def test_what_others_code_says_is_not_told_to_a_server(monkeypatch):
    coins = Coins()
    site = coins.machines["a"].site

    def fail(*arguments):
        raise ValueError(SECRET)

    monkeypatch.setattr(Site, "answer", fail)
    view = coins.terms.agreement.prior
    answer, content = answer_of(site, Improve("a", view, view.zero(), 0, jax.random.key(0)))
    assert "ValueError" in answer.error and SECRET not in answer.error
    assert SECRET.encode() not in content


def test_what_others_code_says_is_in_no_log(monkeypatch):
    coins = Coins()

    def fail(*arguments, **options):
        raise ValueError(SECRET)

    monkeypatch.setattr(Site, "answer", fail)
    coins.walk(coins.begin("a"), 5)
    outcomes = [json.loads(entry)["event"] for _, entry in coins.log]
    assert "failed" in outcomes
    assert not any(SECRET.encode() in entry for _, entry in coins.log)
