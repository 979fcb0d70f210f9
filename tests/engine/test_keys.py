"""New keys: what the key before signed stays valid, what it signs later is refused."""

import base64
import itertools
import json
import shutil

import pytest
from cli.commands import document, fail
from engine.folders import SITES
from engine.town import NOTHING, OFFICER, Town

from posterity.cli.deployment import opened
from posterity.engine.audit import audit_certificate, audit_log
from posterity.engine.author import Author
from posterity.engine.messages import Notice
from posterity.engine.notices import followed, read
from posterity.engine.refusal import Refusal
from posterity.engine.running import Running
from posterity.engine.signing import Envelope, PrivateKey
from posterity.errors import PosterityError, UsageError

THIEF = PrivateKey(b"t" * 32)


@pytest.fixture
def town(tmp_path):
    """All have converged in the first epoch."""
    town = Town(tmp_path)
    town.run()
    town.command("a", "begin")
    town.run()
    assert town.converged()
    yield town
    for site in [*town.agents]:
        town.stop(site)


def key_of(town: Town, site: str) -> PrivateKey:
    return town.agents[site].machine.key


def rotation(
    town: Town, old: PrivateKey, key: PrivateKey, by: str = "d", signer=None, epoch: int = 99
) -> bytes:
    """A change of the key of d that somebody signs."""
    author = Author(town.terms, by, signer or old)
    about = {"old": str(old.public), "key": str(key.public), "epoch": epoch}
    return author.rotation("d", **about).envelope


def audit(town: Town, site: str) -> dict:
    running = Running(town.agents[site])
    head, body = running.answer({"do": "audit"}, b"")
    return {**head, "entries": body.decode().split("\n")}


def publish(town: Town) -> None:
    """All cosign each other's logs."""
    for site, agent in town.agents.items():
        town.command(site, "checkpoint", tree=agent.store.log)
    town.run()


def present(town: Town, site: str = "d") -> dict:
    return {name: str(a.machine.terms.keys[site]) for name, a in town.agents.items()}


def test_a_new_key_takes_over_and_what_the_old_one_signed_still_holds(town):
    publish(town)
    before = town.agents["a"].memory.certificate.envelope
    old_log, old = audit(town, "d"), key_of(town, "d")
    new = town.rotate("d")
    assert key_of(town, "d") == old and town.agents["d"].machine.is_replaced
    town.restart("d")
    assert key_of(town, "d") == new and not town.files("d").next_key.exists()
    town.run()
    assert set(present(town).values()) == {str(new.public)}
    assert town.converged() and town.agents["a"].memory.epoch == (2, "d")
    after = town.agents["a"].memory.certificate.envelope
    for envelope in (before, after):
        assert audit_certificate(town.terms, envelope).passed
    assert str(new.public) in audit_certificate(town.terms, after).statement
    publish(town)
    for site in SITES:
        log = audit(town, site)
        kept = old_log["checkpoint"].encode() if site == "d" else None
        held = audit_log(town.terms, log, kept)
        assert held.passed and all(f"coins/{s}" in held.statement for s in SITES if s != site)
        assert str(new.public) in held.statement
    assert audit_log(town.terms, old_log).passed
    assert not any(e["event"] == "store lost" for s in SITES for e in town.events(s))


def test_what_the_old_key_signs_later_is_refused(town):
    old = key_of(town, "d")
    town.rotate("d")
    town.restart("d")
    town.run()
    agent = town.agents["a"]
    state = agent.memory.rotations, agent.memory.epoch, agent.memory.gone
    (told,) = town.deliver("a", town.letter("d", "a", NOTHING, old))
    assert (told["event"], told["reason"]) == ("refused", "retired")
    author = Author(town.terms, "d", old)
    forged = [
        author.tombstone("d", 5),
        author.agreement(99, True, (1, "a")),
        author.checkpoint(town.agents["d"].store.checkpoint("coins/d", old), {}),
    ]
    for known in forged:
        letter = town.letter("b", "a", Notice(known.envelope), key_of(town, "b"))
        (told,) = town.deliver("a", letter)
        assert told["reason"] == "retired"
        assert not town.agents["b"].resend(), "it is acknowledged: it may be late at its sender"
    assert (agent.memory.rotations, agent.memory.epoch, agent.memory.gone) == state
    with pytest.raises(Refusal, match="replaced"):
        read(agent.machine.terms, author.survey((2, "a"), 3, town.terms.law).envelope)
    # What is of an epoch before still counts.
    assert read(agent.machine.terms, author.survey((1, "a"), 3, town.terms.law).envelope)


def test_a_second_change_by_the_old_key_loses_and_a_replayed_one_changes_nothing(town):
    old = key_of(town, "d")
    town.rotate("d")
    replayed = town.agents["d"].memory.rotations
    town.restart("d")
    town.run()
    key = present(town)["a"]
    (told,) = town.deliver("a", rotation(town, old, THIEF))
    assert told["reason"] == "retired"
    assert town.deliver("a", replayed[0].encode()) == []
    later = town.rotate("d")
    town.restart("d")
    town.run()
    assert town.deliver("a", replayed[0].encode()) == []
    assert set(present(town).values()) == {str(later.public)} != {key}
    assert town.converged()


def test_a_change_that_the_member_or_an_authority_did_not_sign_is_refused(town):
    old = key_of(town, "d")
    with pytest.raises(Refusal, match="by 'a'"):
        rotation(town, old, THIEF, "a", key_of(town, "a"))
    with pytest.raises(Refusal, match="no valid signature"):
        rotation(town, old, THIEF, "d", THIEF)
    for taken in (key_of(town, "b"), OFFICER, old):
        envelope, agent = rotation(town, old, taken), town.agents["b"]
        assert town.deliver("a", envelope)[0]["reason"] == "retired"
        with pytest.raises(Refusal, match="nobody"):
            agent.machine.post(agent.memory, envelope)
    assert set(present(town).values()) == {str(old.public)}


def test_a_change_that_is_replayed_is_no_sign_of_life(town):
    town.rotate("d")
    town.restart("d")
    town.run()
    agent = town.agents["a"]
    town.stop("d")
    town.command("a", "pass_over", sites=["d"])
    town.run()
    heard = agent.heard["d"]
    assert town.deliver("a", agent.memory.rotations[0].encode()) == []
    assert agent.memory.absent == {"d"} and agent.heard["d"] == heard


def test_a_change_keeps_the_key_before_for_few_epochs(town):
    highest, old = town.agents["a"].memory.highest, key_of(town, "d")
    far = rotation(town, old, THIEF, epoch=highest + 1001)
    (told,) = town.deliver("a", far)
    assert told["reason"] == "epoch" and set(present(town).values()) == {str(old.public)}
    town.deliver("a", rotation(town, old, THIEF, epoch=highest + 1000))
    assert set(present(town).values()) == {str(THIEF.public)}


@pytest.mark.parametrize("content", ["{}", "3", '["../../a"]', '[["x"]]', "thief", "another's"])
def test_a_forged_file_of_changes_is_refused(town, content):
    """Only who has the key before, or an authority, writes one that leads to another key."""
    file, key = town.files("d").changes, town.files("d").key
    if content == "thief":
        change = rotation(town, key_of(town, "d"), THIEF, "officer", OFFICER)
        forged = Envelope(Envelope.from_bytes(change).payload).signed(THIEF).to_bytes()
        content = json.dumps([forged.decode()])
    if content == "another's":
        content = json.dumps([_change_of_a(town)])
    file.write_text(content)
    key.unlink()
    THIEF.save(key)
    town.stop("d")
    with pytest.raises(PosterityError, match=r"changes|public key"):
        town.start("d")


def _change_of_a(town: Town) -> str:
    old = key_of(town, "a")
    about = {"old": str(old.public), "key": str(THIEF.public), "epoch": 1}
    return Author(town.terms, "a", old).rotation("a", **about).text


@pytest.mark.slow
@pytest.mark.parametrize("first", ["thief", "member"])
def test_an_authority_ends_what_a_thief_began(town, first):
    """The thief's changes reach some before the member's, and a revocation settles it."""
    old = key_of(town, "d")
    if first == "member":
        town.rotate("d")
        town.restart("d")
        town.run()
    town.deliver("a", rotation(town, old, THIEF))
    second = PrivateKey(b"u" * 32)
    if first == "thief":
        terms = town.agents["a"].machine.terms
        about = {"old": str(THIEF.public), "key": str(second.public), "epoch": 9}
        town.deliver("a", Author(terms, "d", THIEF).rotation("d", **about).envelope)
        assert set(present(town).values()) == {str(second.public)}
        town.restart("d")  # it says nothing, but takes notices
        assert town.agents["d"].machine.is_replaced
        town.run()
    wanted = PrivateKey.generate()
    town.files("d").next_key.unlink(missing_ok=True)
    wanted.save(town.files("d").next_key)
    town.command("b", "post", envelope=rotation(town, old, wanted, "officer", OFFICER))
    town.run()
    town.restart("d")
    assert key_of(town, "d") == wanted
    town.run()
    town.command("a", "begin")
    town.run()
    assert set(present(town).values()) == {str(wanted.public)}
    assert town.converged()
    certificate = town.agents["a"].memory.certificate.envelope
    assert "by order of 'officer'" in audit_certificate(town.terms, certificate).statement
    for key in (old, THIEF, second):  # none of them can change it again
        with pytest.raises(Refusal):
            terms = followed(town.terms, town.agents["a"].memory.rotations)
            about = {"old": str(key.public), "key": str(PrivateKey(b"v" * 32).public)}
            change = Author(terms, "d", key).rotation("d", **about, epoch=1)
            terms.rotated(change.rotation)


def test_a_member_cannot_change_its_key_without_end(town):
    keys = [key_of(town, "d"), *(PrivateKey(bytes([1] * 31 + [n])) for n in range(101))]
    terms = town.terms
    for old, new in itertools.pairwise(keys[:-1]):
        about = {"old": str(old.public), "key": str(new.public), "epoch": 1}
        terms = terms.rotated(Author(terms, "d", old).rotation("d", **about).rotation)
    about = {"old": str(keys[100].public), "key": str(keys[101].public), "epoch": 1}
    with pytest.raises(Refusal, match="at most 100"):
        terms.rotated(Author(terms, "d", keys[100]).rotation("d", **about).rotation)
    about["old"] = str(keys[3].public)
    order = Author(terms, "officer", OFFICER).rotation("d", **about)
    assert len(terms.rotated(order.rotation).rotations) == 4


@pytest.mark.slow
def test_two_changes_at_once_are_seen_and_settled_by_an_authority(town):
    old = key_of(town, "d")
    mine = town.rotate("d")
    bare = next(m.content for m in town.letters if m.receiver == "b")
    town.letters.clear()
    town.agents["a"].receive(rotation(town, old, THIEF))
    town.agents["b"].receive(bare)
    town.restart("d")
    town.run()
    assert present(town)["a"] == str(THIEF.public) and present(town)["b"] == str(mine.public)
    reasons = [e["reason"] for e in town.events("b") if e["event"] == "refused"]
    assert "retired" in reasons, "the other change is in the log"
    wanted = PrivateKey.generate()
    wanted.save(town.files("d").next_key)
    town.command("c", "post", envelope=rotation(town, old, wanted, "officer", OFFICER))
    town.run()
    town.restart("d")
    town.run()
    assert set(present(town).values()) == {str(wanted.public)}
    town.command("d", "begin")
    town.run()
    assert town.converged()


@pytest.mark.parametrize("killed", ["before it is announced", "before the file has its name"])
def test_a_change_that_was_cut_off_is_undone_or_finished(town, killed):
    old, folder = key_of(town, "d"), town.folder / "d"
    if killed == "before it is announced":
        PrivateKey.generate().save(town.files("d").next_key)
    else:
        town.rotate("d")
        town.letters.clear()
    wanted = PrivateKey.load(folder / "site.key.new")
    town.restart("d")
    town.run()
    done = killed == "before the file has its name"
    assert key_of(town, "d") == (wanted if done else old)
    assert PrivateKey.load(folder / "site.key") == (wanted if done else old)
    assert (folder / "site.key.new").exists() != done
    assert town.converged() and len(set(present(town).values())) == 1


def test_a_backup_with_the_old_key_says_nothing_and_tells_its_people(town):
    old = key_of(town, "d")
    town.stop("d")
    backup = town.copy("d", "backup")
    town.start("d")
    town.run()
    town.rotate("d")
    town.restart("d")
    town.run()
    key = present(town)["a"]
    town.stop("d")
    shutil.rmtree(town.folder / "d")
    shutil.copytree(backup, town.folder / "d")
    town.start("d")
    town.run()
    agent = town.agents["d"]
    assert agent.machine.key == old and agent.machine.is_replaced
    assert present(town)["d"] == key, "those it wrote to told it"
    assert set(present(town).values()) == {key}
    heard = [len(town.events(site)) for site in "abc"]
    town.restart("d")
    town.run()
    assert [len(town.events(site)) for site in "abc"] == heard, "it says nothing more"
    running = Running(town.agents["d"])
    assert running.status()["key"] != running.status()["rotations"][0][1]
    # The agent that was told it ends, so that people look.
    running._key = old.public
    running._look_around()
    with pytest.raises(UsageError, match="replaced"):
        raise running._error


@pytest.mark.slow
def test_who_lost_its_store_is_told_the_keys_also_by_their_holders_alone(town):
    for site in "bcd":
        town.rotate(site)
    for site in "bcd":
        town.restart(site)
    town.run()
    town.command("b", "begin")
    town.run()
    assert town.converged()
    town.stop("a")
    for file in (town.folder / "a").glob("site.db*"):
        file.unlink()
    document("site", "init", town.folder / "a", "--federation", town.folder / "federation.toml")
    town.start("a")
    town.run()
    assert town.agents["a"].memory.rotations == town.agents["b"].memory.rotations
    town.command("b", "begin")
    town.run()
    assert town.converged()


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["changes", ""])
def test_a_site_with_a_new_key_begins_with_an_empty_store(town, lost):
    for _ in range(2):
        new = town.rotate("d")
        town.restart("d")
        town.run()
    town.stop("d")
    for file in (town.folder / "d").glob("site.db*"):
        file.unlink()
    line = ("site", "init", town.folder / "d", "--federation", town.folder / "federation.toml")
    if lost:
        town.files("d").changes.unlink()
        fail(2, *line)
        return
    document(*line)
    town.start("d")
    assert key_of(town, "d") == new and not town.agents["d"].machine.is_replaced
    town.run()
    town.command("a", "begin")
    town.run()
    assert town.converged()


def test_new_terms_may_have_the_new_key_but_not_the_old_one(town):
    old = key_of(town, "d")
    new = town.rotate("d")
    town.restart("d")
    town.run()
    agent = town.agents["a"]
    members = {site: str(agent.machine.terms.members[site]) for site in SITES}
    from engine.coins import terms

    for key, wrong in ((old, True), (new, False)):
        later = terms(members=members | {"d": str(key.public)}, steps=None)
        machine = type(agent.machine)(later, agent.machine.site, agent.machine.key)
        if wrong:
            with pytest.raises(Refusal, match="replaced these keys"):
                machine.adopt(agent.memory)
        else:
            assert machine.adopt(agent.memory).rotations == ()


@pytest.mark.parametrize("who", ["a", "b"])
def test_a_star_goes_on_with_a_new_key_of_its_server_or_a_site(tmp_path, who):
    town = Town(tmp_path, "--server=a", "--schedule={kind = 'sequential'}")
    town.run()
    town.command("a", "begin")
    town.run()
    new = town.rotate(who)
    town.restart(who)
    town.run()
    assert set(present(town, who).values()) == {str(new.public)}
    town.command("a", "begin")
    town.run()
    server = town.agents["a"]
    assert server.machine.status(server.memory).converged
    certificate = server.memory.certificate.envelope
    assert audit_certificate(town.terms, certificate).passed
    for site in [*town.agents]:
        town.stop(site)


def test_a_certificate_whose_changes_of_keys_are_altered_does_not_hold(town):
    old = key_of(town, "d")
    town.rotate("d")
    town.restart("d")
    town.run()
    envelope = json.loads(town.agents["d"].memory.certificate.envelope)
    statement = json.loads(base64.b64decode(envelope["payload"]))
    for changes in ([], [rotation(town, old, THIEF).decode()], ["nonsense"]):
        statement["predicate"]["rotations"] = changes
        text = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        other = {**envelope, "payload": base64.b64encode(text.encode()).decode()}
        content = json.dumps(other, sort_keys=True, separators=(",", ":")).encode()
        with pytest.raises(Refusal):
            audit_certificate(town.terms, content)


def test_the_store_of_a_site_is_opened_by_its_commands_after_a_change(town):
    new = town.rotate("d")
    town.stop("d")
    with opened(town.folder / "d") as running:
        assert running.agent.machine.key == new
