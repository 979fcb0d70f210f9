"""Members of several releases: letters and stores of the schema before, and of one to come.

The files in ``first`` were written by the release whose letters had the first schema: the store of
a site after an epoch, with a token that waits, a certificate of that epoch, and a letter.
"""

import dataclasses
import gzip
import io
import json
import sqlite3
from pathlib import Path

import pytest
from engine.coins import DATA, opened, terms
from engine.keys import KEYS
from rich.console import Console

from posterity.artifact.manifest import as_text
from posterity.cli.site import status_table
from posterity.engine.agent import Agent
from posterity.engine.machine import Machine
from posterity.engine.memory import TOKEN
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

FIRST = Path(__file__).parent / "first"
TERMS = terms(steps=None)


def first(name: str) -> bytes:
    return gzip.decompress((FIRST / f"{name}.gz").read_bytes())


def version_of(store: Store) -> int:
    return store._one("pragma user_version")[0]


@pytest.fixture
def agent(tmp_path):
    path = tmp_path / "a.db"
    path.write_bytes(first("a.db"))
    machine = Machine(TERMS, Site.of(TERMS.agreement, "a", DATA["a"]), KEYS["a"])
    with Store(path) as store:
        yield Agent(machine, store)


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


def test_a_store_of_the_release_before_goes_on_in_the_present_form(agent):
    path = agent.store.path
    before = agent.memory
    assert version_of(agent.store) == 1, "opening it writes nothing"
    old = opened(before.outbox[TOKEN].content)
    assert (old.schema, type(old.body)) == (1, Token)
    agent.command(agent.machine.start)
    assert version_of(agent.store) == 2
    new = opened(agent.memory.outbox[TOKEN].content)
    assert (new.schema, new.release, new.body) == (SCHEMA, __version__, old.body)
    assert agent.memory.own == before.own and agent.memory.notices.keys() == before.notices.keys()
    agent.store.close()
    again = Agent(agent.machine, Store(path))
    assert again.memory == agent.memory
    again.store.close()


def test_the_first_token_after_an_upgrade_goes_on_in_its_epoch(agent):
    waiting = agent.memory.outbox[TOKEN]
    token = opened(waiting.content).body
    agent.command(agent.machine.start)
    assert not agent.memory.seal and token.seals[0][:2] == ("a", agent.memory.own.answered)
    place = {"sequence": token.sequence + 1, "previous": token.digest}
    answer = dataclasses.replace(token, **place, sender="b")
    start = len(agent.store.log)
    agent.receive(Letter(TERMS.digest, "b", "a", 2, (), answer).sealed(KEYS["b"]))
    assert [line["event"] for line in lines(agent, start)] == ["updated"]
    assert agent.memory.own.answered == answer.sequence and agent.memory.seal
    older = dataclasses.replace(answer, sequence=answer.sequence + 2)
    start = len(agent.store.log)
    agent.receive(Letter(TERMS.digest, "b", "a", 2, (), older).sealed(KEYS["b"]))
    assert "rollback" in [line.get("reason") for line in lines(agent, start)]


def test_a_store_is_in_the_form_before_or_the_present_one(agent, monkeypatch):
    path, content, run = agent.store.path, agent.store.path.read_bytes(), Store._run

    def fail(self, statement, *values):
        if statement.startswith("insert or replace into site"):
            raise sqlite3.OperationalError("killed")
        return run(self, statement, *values)

    monkeypatch.setattr(Store, "_run", fail)
    with pytest.raises(ArtifactError, match="killed"):
        agent.command(agent.machine.start)
    monkeypatch.undo()
    with Store(path) as store:
        assert version_of(store) == 1
        other = path.with_name("other.db")
        other.write_bytes(content)
        with Store(other) as untouched:
            assert (store.state, store.outbox) == (untouched.state, untouched.outbox)


def test_a_store_of_a_release_to_come_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "a.db"
    path.write_bytes(first("a.db"))
    other = sqlite3.connect(path)
    other.execute("pragma user_version = 3")
    other.close()
    with pytest.raises(ArtifactError, match="version 3, and release") as refused:
        Store(path)
    assert "pip install --upgrade" in refused.value.fix


def test_a_letter_of_a_schema_to_come_is_refused_by_an_answer_and_logged_once(agent):
    letter, start = newer("Hologram"), len(agent.store.log)
    state = agent.memory.own, agent.memory.notices, agent.memory.highest
    for _ in range(3):
        (answer,) = agent.receive(letter)
        told = opened(answer.content)
        assert (answer.receiver, told.body) == ("b", Unread(digest_of(letter)))
        assert (told.schema, told.release) == (SCHEMA, __version__)
    (line,) = lines(agent, start)
    assert (line["event"], line["reason"]) == ("refused", "release")
    assert "9.0" in line["found"] and __version__ in line["expected"]
    assert (agent.memory.own, agent.memory.notices, agent.memory.highest) == state
    # What waits for that member stays until one of both has another release.
    assert not agent.resend() and TOKEN in agent.memory.outbox
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


def test_letters_to_who_does_not_read_them_wait_until_it_has_another_release(agent):
    agent.command(agent.machine.start)
    (token,) = [m for m in agent.resend() if m.receiver == "b" and _is_token(m.content)]
    unread = Letter(TERMS.digest, "b", "a", 1, (), Unread(digest_of(token.content)), schema=1)
    start = len(agent.store.log)
    for _ in range(3):
        assert agent.receive(unread.sealed(KEYS["b"])) == ()
    assert [line["reason"] for line in lines(agent, start)] == ["release"]
    assert not [m for m in agent.resend() if m.receiver == "b"]
    assert [m for m in agent.resend() if m.receiver == "c"]
    running = Running(agent)
    assert running.status()["apart"] == {"b": ["0.1.0", 1]}
    words = f"upgrade b: pip install 'posterity[engine]=={__version__}'"
    assert words in shown(running)
    # It still writes by its old release: what it says is taken, what waits for it stays.
    token = next(m for m in agent.memory.outbox.values() if m == token)
    known = agent.memory.notices["agreement of b"]
    old = Letter(TERMS.digest, "b", "a", 1, (), Notice(known.envelope), schema=1, release="0.1.0")
    assert agent.receive(old.sealed(KEYS["b"]))
    assert agent.memory.apart
    assert not [m for m in agent.resend() if m.receiver == "b"]
    new = Letter(TERMS.digest, "b", "a", 1, (), Notice(known.envelope))
    agent.receive(new.sealed(KEYS["b"]))
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
