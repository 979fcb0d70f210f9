"""A small campaign of bad input, what larger ones have found, and defects that it catches; the
large one is ``python -m benchmarks.fuzz``.
"""

import dataclasses
import json

import pytest

from benchmarks.faults import KEYS
from benchmarks.fuzz import Fuzz, World, campaign
from posterity.engine import machine, member, notices, signing
from posterity.engine.machine import Machine
from posterity.engine.messages import Notice
from posterity.engine.notices import read
from posterity.engine.refusal import Refusal
from posterity.engine.signing import Envelope
from posterity.engine.store import Store
from posterity.errors import ArtifactError

COINS = ("coins", "star")


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory):
    made = Fuzz(tmp_path_factory.mktemp("fuzz"), COINS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def coins(fuzz) -> World:
    return fuzz.worlds[0]


@pytest.mark.slow
def test_bad_input_is_refused_by_a_typed_error_and_changes_nothing():
    count, violations = campaign(0, 600, COINS)
    assert violations == {}
    handed = {"letter", "notice", "envelope", "note", "message", "token", "store", "frame"}
    assert {f"{name} refused" for name in handed} <= count.keys()
    assert count["letter taken"] and count["store taken"]


def caught(fuzz, target, numbers=range(400)) -> str | None:
    fuzz.targets = [target]
    for number in numbers:
        if (violation := fuzz.tried(number)[1]) is not None:
            return violation
    return None


def test_a_reader_that_raises_what_python_does_is_caught(fuzz, monkeypatch):
    monkeypatch.setattr(signing, "read_json", lambda content, what: json.loads(content))
    assert "DecodeError" in str(caught(fuzz, fuzz.envelope))


def test_a_refusal_that_changes_a_memory_is_caught(fuzz, monkeypatch):
    def refused(memory, refusal, digest):
        step = real(memory, refusal, digest)
        return dataclasses.replace(step, memory=dataclasses.replace(step.memory, highest=9))

    real = member.refused
    for module in (machine, member):
        monkeypatch.setattr(module, "refused", refused)
    assert "a refused letter changed" in str(caught(fuzz, fuzz.letter))


def test_notices_whose_values_nobody_looks_at_are_caught(fuzz, monkeypatch):
    anything = {c: dict.fromkeys(kinds, lambda v: True) for c, kinds in notices.FIELDS.items()}
    monkeypatch.setattr(notices, "FIELDS", anything)
    assert caught(fuzz, fuzz.notice, range(3000)) is not None


# --- what campaigns found ------------------------------------------------------------------------


def signed_again(world: World, claim: str, **changes) -> tuple[Machine, object, bytes]:
    """A notice as its author would have signed it with other values."""
    case = next(c for c in world.found[claim] if isinstance(c.letter.body, Notice))
    envelope = Envelope.from_bytes(case.letter.body.content)
    statement = signing.Statement.from_bytes(envelope.payload)
    site = read(world.terms, case.letter.body.content).signer
    other = dataclasses.replace(statement, predicate={**statement.predicate, **changes})
    return case.machine, case.memory, other.signed(KEYS[site]).to_bytes()


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        ("agreement", {"site": []}),
        ("agreement", {"site": {"a": 1}}),
        ("cosignature", {"by": ["b"]}),
        ("residual", {"to": ["a"]}),
        ("residual", {"counted": 1}),
        ("residual", {"report": "AAAA"}),
        ("survey", {"posterior": "AAAA"}),
        ("certificate", {"state": "fine"}),
        ("certificate", {"left": "none"}),
        ("certificate", {"left": -1.0}),
        ("certificate", {"reasons": 3}),
        ("certificate", {"reasons": [3]}),
        ("certificate", {"residuals": ["a"]}),
        ("certificate", {"time": 0.5}),
        ("checkpoint", {"paths": []}),
        ("checkpoint", {"paths": {"1": ["zz"]}}),
        ("checkpoint", {"paths": {"1": 3}}),
    ],
)
def test_a_member_whose_notice_has_other_values_is_refused(coins, claim, changes):
    """Before it is kept: else it would fail later, in the middle of something else."""
    machine, memory, envelope = signed_again(coins, claim, **changes)
    with pytest.raises(Refusal):
        machine.post(memory, envelope)


def test_a_store_whose_tables_have_other_names_is_refused(fuzz):
    content = fuzz.database.replace(b"CREATE TABLE site", b"CREATE TABLE s\xa7te")
    content = content.replace(b"create table site", b"create table s\xa7te")
    assert content != fuzz.database
    fuzz.path.write_bytes(content)
    with pytest.raises(ArtifactError):
        Store(fuzz.path)
