"""Admission: what is wrong with a letter has a reason, and the walk goes on."""

import dataclasses
import json

import numpy as np
import pytest
from engine.coins import PRIOR, Coins, opened, terms
from engine.keys import KEYS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posterity.arrays.tree_sums import TreeSum
from posterity.engine.admission import admitted, check_posterior
from posterity.engine.messages import Acknowledgement, Letter, Notice
from posterity.engine.notices import read
from posterity.engine.refusal import Refusal
from posterity.engine.signing import MESSAGE, Envelope, PrivateKey, Statement
from posterity.families import Beta, Gamma, Gaussian
from posterity.federation import Token

COINS = Coins(terms(limits={"magnitude": 1e4, "pseudo_counts": 500.0, "bytes": 20_000}))
DIGEST = COINS.terms.digest
FIRST = COINS.begin("a").sent[0]
LETTER = opened(FIRST.content)
RECEIVER = LETTER.receiver


def refused(content: bytes) -> str:
    """The reason in the log of who got these bytes; nothing else may follow from them."""
    memory = COINS.memories[RECEIVER]
    step = COINS.machines[RECEIVER].receive(memory, content)
    (entry,) = step.entries
    assert step.memory == memory or step.memory.own == memory.own
    line = json.loads(entry)
    assert line["event"] == "refused" and line["found"] and line["expected"]
    with pytest.raises(Refusal) as error:
        admitted(COINS.terms, content, RECEIVER, ())
    assert error.value.reason == line["reason"]
    return line["reason"]


def token(total, **changes) -> bytes:
    exact = total if isinstance(total, TreeSum) else TreeSum.of([total])
    body = dataclasses.replace(LETTER.body, exact_sum=exact, **changes)
    return dataclasses.replace(LETTER, body=body).sealed(KEYS["a"])


def test_what_a_member_sends_is_admitted():
    assert admitted(COINS.terms, FIRST.content, RECEIVER, ()) == LETTER
    assert admitted(COINS.terms, token(Beta(100.0, 300.0)), RECEIVER, ())


@pytest.mark.parametrize(
    ("total", "reason"),
    [
        (Gamma(3.0, 2.0), "family"),
        (Beta(np.ones(3), np.ones(3)), "family"),
        (Gaussian.from_standard(np.zeros(2), np.eye(2)), "family"),
        (Beta(1e9, 3.0), "magnitude"),  # a thousand million patients
        (Beta(600.0, 3.0), "magnitude"),
        (Beta(3.0, -5000.0), "magnitude"),
        (Beta(-5.0, 3.0), "proper"),
        (PRIOR.zero() - PRIOR * 9.0, "proper"),
    ],
)
def test_what_is_beyond_the_terms_has_a_reason(total, reason):
    assert refused(token(total)) == reason


def test_who_is_nobody_or_somebody_else_is_refused():
    stranger = PrivateKey(b"?" * 32)
    assert refused(LETTER.sealed(stranger)) == "signature"
    assert refused(LETTER.sealed(KEYS["b"])) == "signature"
    for change in (
        {"sender": "z"},
        {"receiver": next(site for site in "bcd" if site != RECEIVER)},
        {"terms": "0" * 64},
    ):
        letter = dataclasses.replace(LETTER, **change)
        assert refused(letter.sealed(KEYS["a"])) == "membership"
    for change in (
        {"agreement": "0" * 64},
        {"sender": "b"},
        {"sender": None},
        {"sequence": 0},
        {"epoch": (1, "z")},
        {"epoch": (0, "a")},
    ):
        assert refused(token(LETTER.body.exact_sum, **change)) == "membership"


def test_nothing_of_a_letter_is_read_before_its_signature():
    for payload in (b"", b"{}", b"[" * 9_999, LETTER.to_bytes()[:-1]):
        envelope = Envelope(payload, MESSAGE).signed(PrivateKey(b"?" * 32))
        assert refused(envelope.to_bytes()) == "signature"


def test_each_limit_of_the_terms_holds_alone():
    own = PRIOR.natural_parameters
    for limits, words in (
        ({"magnitude": 100.0}, "a number beyond 100"),
        ({"pseudo_counts": 100.0}, "factors of 200 pseudo-counts"),
    ):
        agreed = terms(limits=limits)
        with pytest.raises(Refusal, match=words):
            check_posterior(agreed, PRIOR.with_natural_parameters(own + 200.0))
        check_posterior(agreed, PRIOR.with_natural_parameters(own + 99.0))


def test_another_spelling_is_refused():
    envelope = Envelope.from_bytes(FIRST.content)
    head, _, body = envelope.payload.partition(b"\n")
    spaced = json.dumps(json.loads(head), sort_keys=True).encode() + b"\n" + body
    assert refused(Envelope(spaced, MESSAGE).signed(KEYS["a"]).to_bytes()) == "canonical"
    assert refused(FIRST.content.replace(b",", b", ")) == "canonical"
    layers = LETTER.body.exact_sum.layers
    for other in ((*layers, layers[0].zero()), (layers[0] * 0.5, layers[0] * 0.5)):
        assert refused(token(TreeSum(other))) == "schema"


def test_what_is_no_letter_is_refused():
    for payload in (
        b"",
        b"{}",
        b"{}\n",
        b"[]\n",
        b'{"sender":["a"]}\n',
        b'{"sender":"a"}\n',
        b'{"gone":[],"highest":0,"kind":"Else","receiver":"b","sender":"a","terms":""}\n',
        b'{"gone":[],"highest":-1,"kind":"Notice","receiver":"b","sender":"a","terms":""}\n',
        b'{"gone":[],"highest":0.5,"kind":"Notice","receiver":"b","sender":"a","terms":""}\n',
        b'{"gone":["b","a"],"highest":0,"kind":"Notice","receiver":"b","sender":"a","terms":""}\nx',
        b'{"gone":["a","a"],"highest":0,"kind":"Notice","receiver":"b","sender":"a","terms":""}\nx',
        b'{"gone":3,"highest":0,"kind":"Notice","receiver":"b","sender":"a","terms":""}\nx',
        b'{"gone":[],"highest":0,"kind":"Token","receiver":"b","sender":"a","terms":""}\nx',
        b'{"gone":[],"highest":0,"kind":"Acknowledgement","receiver":"b","sender":"a","terms":""}\n\xff',
    ):
        assert refused(Envelope(payload, MESSAGE).signed(KEYS["a"]).to_bytes()) == "schema"
    assert refused(Envelope(LETTER.to_bytes()).signed(KEYS["a"]).to_bytes()) == "schema"
    assert refused(b"x" * 20_001) == "size"


def test_a_tombstone_is_signed_by_who_it_is_about():
    def tombstone(site: str, **changes) -> bytes:
        about = {"terms": DIGEST, "site": site, "highest": 3} | changes
        statement = Statement("tombstone", {"key": KEYS["c"].public.id}, about)
        return statement.signed(KEYS["c"]).to_bytes()

    assert read(COINS.terms, tombstone("c")).predicate["highest"] == 3
    for envelope in (
        tombstone("b"),
        tombstone("c", highest=-1),
        tombstone("c", highest=2.5),
        tombstone("c", terms="0" * 64),
        tombstone("c", more=1),
    ):
        with pytest.raises(Refusal):
            read(COINS.terms, envelope)
        letter = dataclasses.replace(LETTER, body=Notice(envelope))
        step = COINS.machines[RECEIVER].receive(COINS.memories[RECEIVER], letter.sealed(KEYS["a"]))
        assert step.memory.notices == {} and not step.sent
    wrong = Statement("tombstone", {"key": "ab" * 32}, {"terms": DIGEST, "site": "c", "highest": 3})
    with pytest.raises(Refusal):
        read(COINS.terms, wrong.signed(KEYS["c"]).to_bytes())


NAMES = st.tuples(*[st.sampled_from(["", "a", "north \u2603", '"\\\n'])] * 3)
NUMBERS = st.integers(0, 2**53 - 1)


@pytest.mark.parametrize(("sequence", "reasons"), [(2**32 - 4, []), (2**32 - 2, ["membership"])])
def test_a_sequence_number_fits_into_the_words_of_a_random_key(sequence, reasons):
    coins = Coins()
    (token,) = coins.begin("a").sent
    letter = Letter.from_bytes(Envelope.from_bytes(token.content).payload)
    numbered = dataclasses.replace(letter.body, sequence=sequence)
    start = len(coins.log)
    coins.deliver(token.receiver, dataclasses.replace(letter, body=numbered).sealed(KEYS["a"]))
    refused = [json.loads(entry) for _, entry in coins.log[start:]]
    assert [each["reason"] for each in refused if each["event"] == "refused"] == reasons


@pytest.mark.parametrize(("highest", "read"), [(2**53 - 1, True), (2**53, False)])
def test_an_epoch_is_a_number_that_readers_of_json_have_exactly(highest, read):
    content = dataclasses.replace(LETTER, highest=highest).to_bytes()
    if read:
        assert Letter.from_bytes(content).highest == highest
    else:
        with pytest.raises(Refusal, match="out of bounds"):
            Letter.from_bytes(content)


@given(NAMES, NUMBERS, st.binary(max_size=32).map(bytes.hex), st.binary(max_size=50))
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_letters_come_back_as_they_were(names, highest, digest, envelope):
    bodies = Acknowledgement(digest), Acknowledgement(digest, True), Notice(envelope)
    for body in bodies:
        letter = Letter(*names, highest, tuple(sorted({*names})), body)
        assert Letter.from_bytes(letter.to_bytes()) == letter


@given(NAMES, NUMBERS, st.floats(0.01, 1e9))
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_letters_with_tokens_come_back_bit_for_bit(names, number, count):
    total = TreeSum.of([Beta(count, 0.1), Beta(1e-20, count)])
    token = Token(names[0], (number, names[1]), number, total, names[2], None)
    letter = Letter(*names, number, (), token)
    assert Letter.from_bytes(letter.to_bytes()) == letter


@given(st.data())
@settings(max_examples=60)
def test_altered_letters_are_refused_for_a_reason(data):
    """Signed again by their sender, so that what is altered is looked at."""
    payload = bytearray(LETTER.to_bytes())
    places = st.dictionaries(st.integers(0, len(payload) - 1), st.integers(1, 255), min_size=1)
    for place, change in data.draw(places).items():
        payload[place] ^= change
    content = Envelope(bytes(payload), MESSAGE).signed(KEYS["a"]).to_bytes()
    step = COINS.machines[RECEIVER].receive(COINS.memories[RECEIVER], content)
    assert json.loads(step.entries[0])["event"] == "refused"
    assert step.memory.own == COINS.memories[RECEIVER].own
