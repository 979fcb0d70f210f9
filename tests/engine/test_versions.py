"""Members of several releases: letters and stores of a schema to come."""

import io
import json
import sqlite3

import pytest
from engine.coins import DATA, opened, terms
from engine.keys import KEYS
from rich.console import Console

from posterity.artifact.manifest import as_text
from posterity.cli.site import status_table
from posterity.engine.agent import Agent
from posterity.engine.author import Author
from posterity.engine.machine import Machine
from posterity.engine.memory import TOKEN, Memory, Step
from posterity.engine.messages import (
    SCHEMA,
    Acknowledgement,
    Letter,
    Notice,
    Unread,
    digest_of,
)
from posterity.engine.running import Running
from posterity.engine.signing import MESSAGE, Envelope
from posterity.engine.store import Store
from posterity.errors import ArtifactError
from posterity.federation import Token
from posterity.federation.site import Site
from posterity.version import __version__

TERMS = terms(steps=None)


@pytest.fixture
def agent(tmp_path):
    """Site a, whose token waits for b."""
    machine = Machine(TERMS, Site.of(TERMS.agreement, "a", DATA["a"]), KEYS["a"])
    with Store.create(tmp_path / "a.db", Step(Memory.empty("a")).change) as store:
        agent = Agent(machine, store)
        agent.command(agent.machine.start)
        agent.command(agent.machine.begin)
        yield agent


def newer(kind: str, sender: str = "b", schema: int = SCHEMA + 1, release: str = "9.0") -> bytes:
    """A letter of a schema to come: what stays in all is there, and fields of which none knows."""
    head = {"schema": schema, "release": release, "terms": TERMS.digest, "kind": kind}
    head |= {"sender": sender, "receiver": "a", "body": {}, "warp": [3]}
    envelope = Envelope(as_text(head).encode() + b"\nrest", MESSAGE)
    return envelope.signed(KEYS[sender]).to_bytes()


def lines(agent: Agent, start: int) -> list[dict]:
    return [json.loads(line) for line in agent.store.entries(start)]


def shown(running: Running) -> str:
    console = Console(width=400, markup=False, file=io.StringIO())
    with console.capture() as capture:
        console.print(status_table(running.status()))
    return capture.get()


def test_a_store_of_a_release_to_come_is_refused_with_what_to_do(agent):
    agent.store.close()
    other = sqlite3.connect(agent.store.path)
    other.execute("pragma user_version = 3")
    other.close()
    with pytest.raises(ArtifactError, match="version 3, and release") as refused:
        Store(agent.store.path)
    assert "pip install --upgrade" in refused.value.fix


def test_a_letter_of_a_schema_to_come_is_refused_by_an_answer_and_logged_once(agent):
    letter, start = newer("Hologram"), len(agent.store.log)
    state = agent.memory.own, agent.memory.notices, agent.memory.highest
    for _ in range(3):
        (answer,) = agent.receive(letter)
        told = opened(answer.content)
        assert (answer.receiver, told.body) == ("b", Unread(digest_of(letter)))
        assert (told.schema, told.release) == (2, __version__)
    (line,) = lines(agent, start)
    assert (line["event"], line["reason"]) == ("refused", "release")
    assert "9.0" in line["found"] and __version__ in line["expected"]
    assert (agent.memory.own, agent.memory.notices, agent.memory.highest) == state
    # What waits for that member stays until one of both has another release.
    assert "b" not in [m.receiver for m in agent.resend()] and TOKEN in agent.memory.outbox
    running = Running(agent)
    assert running.status()["apart"] == {"b": ["9.0", SCHEMA + 1]}
    assert "upgrade a: pip install 'posterity[engine]==9.0'" in shown(running)
    agent.receive(newer("Hologram", release="9.1"))
    assert len(lines(agent, start)) == 2, "of each release once"
    back = Letter(TERMS.digest, "b", "a", 1, (), Acknowledgement(""))
    agent.receive(back.sealed(KEYS["b"]))
    assert not agent.memory.apart and agent.resend()


@pytest.mark.parametrize("kind", ["Unread", "Acknowledgement"])
def test_answers_of_another_schema_are_not_answered(agent, kind):
    assert agent.receive(newer(kind)) == ()
    assert agent.memory.apart


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"receiver": "c"}, "membership"),
        ({"terms": "other"}, "membership"),
        ({"sender": "c"}, "signature"),
        ({"schema": "3"}, "schema"),
        ({"schema": -3}, "schema"),
        ({"schema": 2**53}, "schema"),
        ({"schema": 10**4000}, "schema"),
        ({"release": 3}, "schema"),
        ({"release": "9.0; rm -r /"}, "schema"),
    ],
)
def test_only_members_of_these_terms_are_believed_to_have_a_newer_release(agent, change, reason):
    head = json.loads(Envelope.from_bytes(newer("Hologram")).payload.partition(b"\n")[0]) | change
    envelope = Envelope(as_text(head).encode() + b"\n", MESSAGE).signed(KEYS["b"])
    start = len(agent.store.log)
    assert agent.receive(envelope.to_bytes()) == ()
    assert [line["reason"] for line in lines(agent, start)] == [reason]
    assert not agent.memory.apart


def test_a_kind_of_a_schema_to_come_has_any_name(agent):
    start = len(agent.store.log)
    (answer,) = agent.receive(newer("retired"))
    assert isinstance(opened(answer.content).body, Unread)
    assert [line["reason"] for line in lines(agent, start)] == ["release"]


def test_letters_to_who_does_not_read_them_wait_until_it_has_this_schema(agent):
    (token,) = [m for m in agent.resend() if m.receiver == "b" and _is_token(m.content)]
    unread = newer("Unread")
    start = len(agent.store.log)
    for _ in range(3):
        assert agent.receive(unread) == ()
    assert [line["reason"] for line in lines(agent, start)] == ["release"]
    assert not [m for m in agent.resend() if m.receiver == "b"]
    assert [m for m in agent.resend() if m.receiver == "c"]
    started = Author(TERMS, "b", KEYS["b"]).agreement(1, False, (0, ""))
    agent.receive(Letter(TERMS.digest, "b", "a", 1, (), Notice(started.envelope)).sealed(KEYS["b"]))
    assert token in agent.resend() and not agent.memory.apart


def test_who_is_upgraded_sends_again_what_waited(agent):
    agent.receive(newer("Hologram"))
    state, rows = agent.store.state, agent.store.outbox
    assert agent.machine.load(state, rows).apart
    earlier = agent.memory.apart | {"b": ["9.0", SCHEMA]}  # as if this release read it now
    agent.memory = agent.memory.__class__(**{**vars(agent.memory), "apart": earlier})
    change = agent.memory.to_bytes(), agent.memory.rows
    assert not agent.machine.load(*change).apart


def _is_token(content: bytes) -> bool:
    return isinstance(opened(content).body, Token)
