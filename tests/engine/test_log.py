"""The tree, judged by pymerkle; proofs of all sizes; checkpoints, and a log that was rewritten."""

import dataclasses

import pytest
from engine.keys import KEYS, PUBLIC
from hypothesis import given
from hypothesis import strategies as st
from pymerkle import InmemoryTree

from posterity.engine.log import (
    SIGNATURE,
    Tree,
    TreeHead,
    continues,
    key_id,
    key_name,
    leaf_hash,
    verify_consistency,
)
from posterity.engine.refusal import Refusal
from posterity.engine.signing import PublicKey, from_base64

MOST = 20
ENTRIES = [f"entry {number}".encode() for number in range(MOST)]
TREE = Tree(ENTRIES)
ORIGIN = key_name("heart", "north")


def test_roots_are_those_of_another_library():
    judge = InmemoryTree(algorithm="sha256")
    assert Tree().root() == judge.get_root() or len(Tree()) == 0
    for size, entry in enumerate(ENTRIES, start=1):
        judge.append_entry(entry)
        assert TREE.root(size) == Tree(ENTRIES[:size]).root() == judge.get_root()
    assert leaf_hash(b"") == judge.hash_buff(b"")


def test_every_size_continues_every_smaller_one():
    for size in range(MOST + 1):
        tree = Tree(ENTRIES[:size])
        for old in range(size + 1):
            path, roots = tree.consistency(old), (TREE.root(old), TREE.root(size))
            verify_consistency(old, roots[0], size, roots[1], path)
            for changed in (*([path[:-1]] if path else []), (*path, b"\x01" * 32)):
                with pytest.raises(Refusal):
                    verify_consistency(old, roots[0], size, roots[1], changed)
            other = b"\x02" * 32
            for first, second in ((other, roots[1]), (roots[0], other)):
                if old == 0 and first == roots[0]:
                    continue  # nothing is known of any entry
                with pytest.raises(Refusal) as error:
                    verify_consistency(old, first, size, second, path)
                assert error.value.reason == "rewritten"


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=40), st.data())
def test_a_rewritten_log_has_no_proof(entries, data):
    old = data.draw(st.integers(1, len(entries)))
    place = data.draw(st.integers(0, old - 1))
    rewritten = [*entries]
    rewritten[place] += b"!"
    known, now = Tree(entries[:old]), Tree(rewritten)
    verify_consistency(
        old, known.root(), len(entries), Tree(entries).root(), Tree(entries).consistency(old)
    )
    with pytest.raises(Refusal) as error:
        verify_consistency(old, known.root(), len(now), now.root(), now.consistency(old))
    assert error.value.reason == "rewritten"


# --- checkpoints ---------------------------------------------------------------------------------


def test_an_auditor_finds_that_a_log_was_rewritten():
    """With nothing but the checkpoint of a month ago and the proof that is shown today."""
    kept = TreeHead.from_bytes(TreeHead.of(Tree(ENTRIES[:11]), ORIGIN, KEYS["a"]).to_bytes())
    honest = TreeHead.of(TREE, ORIGIN, KEYS["a"])
    continues(kept, honest, TREE.consistency(11), PUBLIC["a"])
    false = Tree([*ENTRIES[:4], b"another story", *ENTRIES[5:]])
    for path in (false.consistency(11), TREE.consistency(11), ()):
        with pytest.raises(Refusal) as error:
            continues(kept, TreeHead.of(false, ORIGIN, KEYS["a"]), path, PUBLIC["a"])
        assert error.value.reason == "rewritten"
    shorter = Tree(ENTRIES[:10])
    with pytest.raises(Refusal):
        continues(kept, TreeHead.of(shorter, ORIGIN, KEYS["a"]), (), PUBLIC["a"])
    elsewhere = TreeHead.of(TREE, key_name("heart", "south"), KEYS["a"])
    with pytest.raises(Refusal) as error:
        continues(kept, elsewhere, TREE.consistency(11), PUBLIC["a"])
    assert error.value.reason == "membership"
    with pytest.raises(Refusal) as error:
        continues(kept, TreeHead.of(TREE, ORIGIN, KEYS["b"]), TREE.consistency(11), PUBLIC["a"])
    assert error.value.reason == "signature"
    continues(None, honest, (), PUBLIC["a"])


def test_witnesses_say_when_they_saw_a_checkpoint():
    checkpoint = TreeHead.of(TREE, ORIGIN, KEYS["a"])
    for name, time in (("b", 1_700_000_000), ("c", 1_700_000_001), ("b", 1_700_000_002)):
        checkpoint = checkpoint.cosigned(name, KEYS[name], time)
    checkpoint = TreeHead.from_bytes(checkpoint.to_bytes())
    checkpoint.verify(PUBLIC["a"])
    witnesses = {name: PUBLIC[name] for name in "bc"}
    times = {"b": 1_700_000_002, "c": 1_700_000_001}
    assert checkpoint.witnesses(witnesses) == times
    others = {"b": PUBLIC["b"], "d": PUBLIC["a"]}
    assert checkpoint.witnesses(others) == {"b": times["b"]}
    later = dataclasses.replace(checkpoint, size=MOST - 1)
    assert later.witnesses(witnesses) == {}
    # Who keeps the log has not witnessed it by signing it.
    assert checkpoint.witnesses({ORIGIN: PUBLIC["a"]}) == {}


def test_a_note_is_signed_as_in_go():
    """The example of golang.org/x/mod/sumdb/note."""
    key = PublicKey(from_base64("ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW", "a key")[1:])
    assert key_id("PeterNeumann", SIGNATURE, key).hex() == "c74f20a3"
    text = (
        b"If you think cryptography is the answer to your problem,\n"
        b"then you don't know what your problem is.\n"
    )
    raw = from_base64(
        "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=",
        "a signature",
    )
    assert raw[:4] == key_id("PeterNeumann", SIGNATURE, key)
    assert key.verifies(raw[4:], text)


def test_the_example_of_the_standard_is_read():
    example = (
        "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
        "— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/"
        "Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
    )
    read = TreeHead.from_bytes(example.encode())
    assert (read.origin, read.size) == ("example.com/behind-the-sofa", 20852163)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"a\n1\n\n",
        b"a\n-1\n" + b"A" * 43 + b"=\n\n",
        b"a\n01\n" + b"A" * 43 + b"=\n\n",
        b"a\n1\nAAAA\n\n",
        b"a\n1\n" + b"A" * 43 + b"=\nmore\n\n",
        b"a\n1\n" + b"A" * 43 + b"=\n\n- a AAAA\n",
        ("a\n1\n" + "A" * 43 + "=\n\n— a b c\n").encode(),
        ("a\n1\n" + "A" * 43 + "=\n\n" + "— a AAAA\n" * 30_000).encode(),
        b"a\n" + b"9" * 5000 + b"\n" + b"A" * 43 + b"=\n\n",
    ],
)
def test_foreign_checkpoints_are_refused(content):
    with pytest.raises(Refusal):
        TreeHead.from_bytes(content)
