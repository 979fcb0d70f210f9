"""Witnesses of logs: whose cosignature counts, and what who was away signs for when back."""

import dataclasses
import hashlib
import json

import pytest
from engine.coins import Coins
from engine.keys import KEYS

from posterity.engine.audit import audit_log
from posterity.engine.author import Author
from posterity.engine.log import Tree, TreeHead, key_name
from posterity.engine.messages import Letter, Notice
from posterity.engine.refusal import Refusal
from posterity.engine.signing import Statement

ENTRIES = [b"entry %d" % number for number in range(40)]
OWN = key_name("coins", "a")


def cosigned(head: TreeHead, by: str) -> TreeHead:
    return head.cosigned(key_name("coins", by), KEYS[by], 1)


def bundle(*notes: TreeHead) -> dict:
    head = TreeHead.of(Tree(ENTRIES), OWN, KEYS["a"])
    texts = [head.to_bytes().decode(), *(note.to_bytes().decode() for note in notes)]
    entries = [entry.decode() for entry in ENTRIES]
    return {"site": "a", "entries": entries, "checkpoint": texts[0], "cosignatures": texts[1:]}


def test_a_cosignature_of_what_the_keeper_never_signed_does_not_count():
    coins, fake = Coins(), cosigned(TreeHead(OWN, 3, bytes(32)), "b")
    audit = audit_log(coins.terms, bundle(fake))
    assert audit.passed and "no other member cosigned" in audit.statement
    head = TreeHead.of(Tree(ENTRIES[:3]), OWN, KEYS["a"])
    for note in (fake, head, dataclasses.replace(cosigned(head, "b"), origin="coins/c")):
        with pytest.raises(Refusal):
            Author(coins.terms, "b", KEYS["b"]).cosignature("a", note)
    known = Author(coins.terms, "b", KEYS["b"]).cosignature("a", cosigned(head, "b"))
    assert known.version == (3,)


def test_who_keeps_a_log_is_no_witness_of_it():
    coins, head = Coins(), TreeHead.of(Tree(ENTRIES), OWN, KEYS["a"])
    audit = audit_log(coins.terms, bundle(cosigned(head, "a")))
    assert audit.passed and "no other member cosigned" in audit.statement
    with pytest.raises(Refusal):
        Author(coins.terms, "a", KEYS["a"]).cosignature("a", cosigned(head, "a"))


def checkpoints(coins: Coins, sizes, entries=ENTRIES, without: str = "") -> list[dict]:
    """What the witness d has logged once a has told of its log at these sizes."""
    said = []
    for size in sizes:
        step = coins.machines["a"].checkpoint(coins.memories["a"], Tree(entries[:size]))
        waiting = list(coins.take("a", step).sent)
        while waiting:
            receiver, content = waiting.pop(0)
            if receiver not in without:
                step = coins.deliver(receiver, content)
                waiting += step.sent
                said += [json.loads(entry) for entry in step.entries if receiver == "d"]
    return said


def signed_for(coins: Coins, by: str = "d") -> tuple:
    return coins.memories["a"].notices[f"cosignature of a by {by}"].version


def test_a_witness_that_was_away_for_long_signs_for_the_log_once_it_is_back():
    coins = Coins()
    checkpoints(coins, [1])
    checkpoints(coins, range(2, 30), without="d")
    assert (signed_for(coins), signed_for(coins, "b")) == ((1,), (29,))
    assert checkpoints(coins, [30]) == [] and signed_for(coins) == (30,)


def test_a_log_whose_keeper_lacks_the_witness_s_size_is_not_called_rewritten():
    coins = Coins()
    checkpoints(coins, [1])
    checkpoints(coins, [2], without="d")
    notices = dict(coins.memories["a"].notices)
    del notices["cosignature of a by d"]
    bare = dataclasses.replace(coins.memories["a"], notices=notices, published=())
    coins.memories["a"] = bare
    assert [each["reason"] for each in checkpoints(coins, [30])] == ["unwitnessed"]
    assert signed_for(coins) == (1,)  # it was told again from where a path is to lead
    assert checkpoints(coins, [31]) == [] and signed_for(coins) == (31,)


def test_a_log_that_is_shorter_than_what_was_cosigned_does_not_hold():
    coins = Coins()
    checkpoints(coins, [5])
    copy = coins.memories["a"]
    checkpoints(coins, [12])
    coins.memories["a"] = copy  # and the log has 5 entries again
    checkpoints(coins, [6])
    notes = [k.predicate["note"] for k in coins.memories["a"].notices.values() if k.signer == "d"]
    short = bundle() | {"entries": [entry.decode() for entry in ENTRIES[:6]]}
    short["checkpoint"] = TreeHead.of(Tree(ENTRIES[:6]), OWN, KEYS["a"]).to_bytes().decode()
    assert audit_log(coins.terms, short).passed
    audit = audit_log(coins.terms, short | {"cosignatures": notes})
    assert audit.verification.broken == ("what others cosigned is the beginning of this log",)


def test_a_witness_that_is_restored_signs_again():
    coins = Coins()
    checkpoints(coins, [1])
    copy = coins.memories["d"]
    checkpoints(coins, range(2, 30))
    coins.memories["d"] = copy
    checkpoints(coins, [30, 31])
    assert signed_for(coins) == (31,)


def test_nobody_passes_on_the_cosignature_of_another_as_its_own():
    coins = Coins()
    note = cosigned(TreeHead.of(Tree(ENTRIES), OWN, KEYS["a"]), "b").to_bytes().decode()
    predicate = {"terms": coins.terms.digest, "site": "a", "by": "c", "note": note}
    subjects = {"checkpoint": hashlib.sha256(note.encode()).hexdigest()}
    envelope = Statement("cosignature", subjects, predicate).signed(KEYS["c"]).to_bytes()
    letter = Letter(coins.terms.digest, "c", "a", 0, (), Notice(envelope))
    coins.deliver("a", letter.sealed(KEYS["c"]))
    assert not coins.memories["a"].notices


def test_a_keeper_shows_what_a_restored_witness_cosigned_of_its_log_before_that_was_rewritten():
    coins = Coins()
    others = [b"other", *ENTRIES]
    checkpoints(coins, [4], others)
    copies = {site: coins.memories[site] for site in "ad"}
    coins.memories |= {"a": copies["a"].empty("a"), "d": copies["d"].empty("d")}
    checkpoints(coins, [7, 11])
    coins.memories["d"] = copies["d"]
    checkpoints(coins, [12, 13, 14])
    kept = [k.version for k in coins.memories["a"].notices.values() if k.signer == "d"]
    assert kept == [(11,), (4,)], "what it continues once, and what it does not"
    notes = [k.head for k in coins.memories["a"].notices.values() if k.signer == "d"]
    audit = audit_log(coins.terms, bundle(*notes))
    assert audit.verification.broken == ("what others cosigned is the beginning of this log",)


def test_smaller_cosignatures_are_kept_only_until_the_next_checkpoint():
    coins = Coins()
    checkpoints(coins, [1])
    copy = coins.memories["d"]
    checkpoints(coins, range(2, 30))
    coins.memories["d"] = copy
    checkpoints(coins, [30])
    kept = [k.version for k in coins.memories["a"].notices.values() if k.signer == "d"]
    assert kept == [(29,), (1,)]
    checkpoints(coins, [31, 32])
    kept = [k.version for k in coins.memories["a"].notices.values() if k.signer == "d"]
    assert kept == [(32,)]
