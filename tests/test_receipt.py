"""Receipts hold if honest; forgeries are refused, or named as what a receipt cannot show.

Forgers write their own documents, checksums and sentences: they call nothing of `receipt`.
"""

import contextlib
import copy
import dataclasses
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity import Ledger, forget
from posterity.artifact import digest
from posterity.entries import Entry
from posterity.errors import ArtifactError
from posterity.families import Gamma
from posterity.receipt import Receipt, Refinement, issue, verify

PRIOR = Gamma.from_standard(shape=1.0, rate=1.0)
FACTORS = {"a": Gamma(3.0, 2.0), "b": Gamma(5.0, 4.0), "c": Gamma(1.0, 1.5), "d": Gamma(1.0, 9.0)}


def ledger_of(sites, *, independent):
    ledger = Ledger(PRIOR)
    for site in sites:
        ledger = ledger.update(site, FACTORS[site], independent=independent)
    return ledger


def with_entries(ledger, **entries):
    return Ledger(ledger.prior, {**ledger.entries, **entries})


# --- the forger's workshop ----------------------------------------------------------------------


def sentence(document):
    """What a receipt of this content says in words."""
    names = lambda sites: ", ".join(f'"{site}"' for site in sites)
    done, refined = "nothing else was changed", document["refinement"]
    if refined is not None:
        updates = [count for count in refined["updates"].values() if count > 0]
        done = "the others were set to zero, and " if refined["restarted"] else ""
        done += f"{len(updates)} sites refined theirs, {max([0, *updates])} times at most"
        done += f", for the first time {names(refined['joined'])}" if refined["joined"] else ""
        distance = refined["estimated_distance_nats"]
        nats = "an unknown number of" if distance is None else f"{distance:.2g}"
        done += f"; the issuer estimates that going on would change the posterior by {nats} nats"
        done += ", which a receipt cannot show"
    shown = (
        "Every factor that stays is marked as found from its own site's data alone: if that is "
        "so, the posterior is, to the last bit, one that never saw theirs."
        if document["exact"]
        else "This does not prove that nothing of them is left: what stays may have been fitted "
        "in their company."
    )
    return f"The factors of {names(document['sites'])} were subtracted; {done}. {shown}"


def written(document, path):
    """A file whose sentence, unless one is given, and checksum fit."""
    document = {"receipt": 2, **document}
    if "statement" not in document:
        document["statement"] = sentence(document)
    text = json.dumps(document, sort_keys=True)
    document["digest"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(document))
    return path


def document_of(before, after, **content):
    return {
        "sites": ["a"],
        "exact": False,
        "before": digest(before),
        "after": digest(after),
        "time": "2026-11-21T09:00:00+00:00",
        "version": "0.1.0",
        "refinement": None,
        **content,
    }


def refinement_of(**content):
    return {
        "updates": {"b": 2, "c": 1, "e": 1},
        "joined": ["e"],
        "restarted": False,
        "residuals": {"b": 1e-3, "c": 1e-4, "e": None},
        "estimated_distance_nats": 2.5e-7,
        **content,
    }


# An exact forgetting of a; d was forgotten before.
ALONE = ledger_of("abcd", independent=True).forget("d")
ALONE = ALONE.update("b", FACTORS["b"], independent=True)  # its second version
ALONE_LEFT = ALONE.forget("a")
# A subtraction of a from factors fitted in company.
TOGETHER = ledger_of("abcd", independent=False).forget("d")
TOGETHER_LEFT = TOGETHER.forget("a")
# A subtraction of a, after which b refined twice, c once, and e for the first time.
REFINED = (
    TOGETHER_LEFT.update("b", Gamma(5.5, 4.0))
    .update("b", Gamma(5.6, 4.1))
    .update("c", Gamma(0.9, 1.6))
    .update("e", Gamma(2.0, 2.5))
)
# The same, once all other factors were set to zero.
ZEROED = with_entries(
    REFINED,
    a=Entry(0, 1, None),
    b=Entry(0, 3, Gamma(5.6, 4.1)),
    c=Entry(0, 2, Gamma(0.9, 1.6)),
)
HONEST = {
    "exact": (ALONE, ALONE_LEFT, {"exact": True}),
    "subtracted": (TOGETHER, TOGETHER_LEFT, {}),
    "refined": (TOGETHER, REFINED, {"refinement": refinement_of()}),
    "restarted": (TOGETHER, ZEROED, {"refinement": refinement_of(restarted=True)}),
}


def verified(path, before, after):
    return verify(Receipt.load(path), before, after)


@pytest.mark.parametrize("kind", HONEST)
def test_honest_receipts_hold(kind, tmp_path):
    before, after, content = HONEST[kind]
    path = written(document_of(before, after, **content), tmp_path / "receipt.json")
    assert verified(path, before, after).passed
    given = Receipt.load(path)
    refined, told = given.refinement, None
    if refined is not None:
        measured = ("residuals", "estimated_distance_nats")
        told = Refinement.between(
            before, after, refined.restarted, **{name: getattr(refined, name) for name in measured}
        )
    issued = issue(before, after, told)
    assert dataclasses.replace(issued, time=given.time, version=given.version) == given
    issued.save(path)
    assert Receipt.load(path) == issued
    assert [file.name for file in tmp_path.iterdir()] == ["receipt.json"]


# --- what is refused ----------------------------------------------------------------------------

BEFORE = "the ledger before is the one that the receipt names"
AFTER = "the ledger after is the one that the receipt names"
PRIOR_SAME = "the prior is the same"
CONTRIBUTED = "sites are named, each of which contributed before"
GONE = "none of the sites contributes after"
LOOKS = "no site that stays has a name that looks like theirs"
BARRED = "each of the sites is barred, at the version that it had"
LEFT = "nobody else left"
CAME_BACK = "nobody came back"
VERSIONS = "no version went back, vanished or has two contents"
SAME = "every other factor is the same, to the last bit"
EXACT = "it is called exact if and only if every factor that stays is marked as independent"
NOT_EXACT = "what was refined is not called exact"
UPDATES = "every other site refined as often as the receipt says"
JOINED = "nobody joined but whom the receipt names"
HANDED_ON = "what left was not handed on"

a, b, c = (FACTORS[site] for site in "abc")
STAY = {site: TOGETHER.entries[site] for site in "bc"}
alone = lambda **entries: ("exact", with_entries(ALONE_LEFT, **entries))
left = lambda site, factor, **how: (
    "exact",
    ALONE_LEFT.update(site, factor, independent=True, **how),
)
refined = lambda **entries: ("refined", with_entries(REFINED, **entries))
told = lambda **content: {"refinement": refinement_of(**content)}
counts = lambda **updates: told(updates=updates)
marked = lambda site: {site: STAY[site]._replace(independent=True)}
other = lambda ledger: Ledger(Gamma.from_standard(1.0, 1.5), ledger.entries)
exact, subtracted, company = ("exact", None), ("subtracted", None), ("refined", None)
PARTS = {"b": Entry(0, 2, b + a * 0.3), "c": Entry(0, 1, c + a * 0.5), "e": Entry(0, 0, a * 0.2)}
FORGERIES = {
    # name: ((kind, the ledger after or None for the honest one), content changed, claims broken)
    "another ledger before": (exact, {"before": "0" * 64}, {BEFORE}),
    "another ledger after": (company, {"after": "f" * 64}, {AFTER}),
    # who left
    "another site": (exact, {"sites": ["b"]}, {GONE, BARRED, LEFT, SAME}),
    "one site more": (subtracted, {"sites": ["a", "b"]}, {GONE, BARRED}),
    "a ghost": (exact, {"sites": ["yew"]}, {CONTRIBUTED, BARRED, LEFT, SAME}),
    "a ghost beside": (
        alone(yew=Entry(0, 0, None)), {"sites": ["a", "yew"]}, {CONTRIBUTED, BARRED},
    ),
    "a ghost of a refinement": (company, {"sites": ["a", "yew"]}, {CONTRIBUTED, BARRED}),
    "who left long ago": (exact, {"sites": ["a", "d"]}, {CONTRIBUTED}),
    "nobody left": (("exact", ALONE), {}, {GONE, BARRED}),
    "back under a new epoch": (left("a", a, epoch=1), {}, {GONE, BARRED, CAME_BACK}),
    "a tombstone that bars more": (alone(a=Entry(9, 0, None)), {}, {BARRED, CAME_BACK}),
    "no tombstone": (("exact", ALONE_LEFT.compact()), {}, {BARRED, CAME_BACK, VERSIONS, SAME}),
    # who stays, where nothing was refined
    "another left too": (("exact", ALONE_LEFT.forget("b")), {}, {LEFT, SAME}),
    "another came back": (left("d", a, epoch=1), {}, {CAME_BACK, SAME}),
    "handed on, exactly": (left("b", b + a), {}, {SAME}),
    "handed on": (("subtracted", TOGETHER_LEFT.update("b", b + a)), {}, {SAME}),
    "another name, exactly": (left("fir", a), {}, {SAME}),
    "a name that looks alike": (
        ("exact", ALONE_LEFT.compact().update("a ", a, independent=True)),
        {},
        {LOOKS, BARRED, CAME_BACK, VERSIONS, SAME},
    ),
    "a name in capitals": (
        ("exact", ALONE_LEFT.compact().update("A", a, independent=True)),
        {},
        {LOOKS, BARRED, CAME_BACK, VERSIONS, SAME},
    ),
    "another name": (("subtracted", TOGETHER_LEFT.update("fir", a)), {}, {SAME}),
    "a bit": (left("b", Gamma(5.0, 4.000000000000001)), {}, {SAME}),
    "the same version with another factor": (alone(b=Entry(0, 1, a, True)), {}, {VERSIONS, SAME}),
    "an older version": (alone(b=Entry(0, 0, b, True)), {}, {VERSIONS, SAME}),
    "another prior": (("exact", other(ALONE_LEFT)), {}, {PRIOR_SAME, VERSIONS, SAME}),
    # exactness
    "exact though not": (subtracted, {"exact": True}, {EXACT}),
    "not exact though exact": (exact, {"exact": False}, {EXACT}),
    "refined and called exact": (company, {"exact": True}, {NOT_EXACT}),
    "relabelled independent": (
        ("subtracted", with_entries(TOGETHER_LEFT, **marked("b"), **marked("c"))),
        {"exact": True},
        {VERSIONS, SAME},
    ),
    "relabelled independent, in a refinement": (
        refined(**marked("c")), counts(b=2, c=0, e=1), {VERSIONS},
    ),
    "refined and called a subtraction": (company, {"refinement": None}, {SAME}),
    # who refined
    "more updates": (company, counts(b=9, c=1, e=1), {UPDATES}),
    "fewer sites": (company, counts(b=2, e=1), {UPDATES}),
    "more sites": (company, counts(b=2, c=1, e=1, yew=1), {UPDATES}),
    "restarted, it says": (
        company, told(updates={"b": 1, "c": 0, "e": 1}, restarted=True), {BARRED},
    ),
    "not restarted, it says": (("restarted", None), counts(b=3, c=2, e=1), {BARRED}),
    "a newcomer who is not named": (company, told(joined=[]), {JOINED}),
    "a newcomer of another epoch": (refined(e=Entry(1, 0, Gamma(2.0, 2.5))), {}, {CAME_BACK}),
    "another left while they refined": (
        ("refined", REFINED.forget("c")), counts(b=2, e=1), {LEFT},
    ),
    "another came back while they refined": (
        ("refined", REFINED.update("d", Gamma(1.0, 9.0), epoch=1)),
        told(updates={"b": 2, "c": 1, "d": 0, "e": 1}, joined=["d", "e"]),
        {CAME_BACK},
    ),
    "an older factor while they refined": (
        refined(c=Entry(0, 0, Gamma(0.9, 1.6))), counts(b=2, c=0, e=1), {VERSIONS},
    ),
    "another prior of a refinement": (
        ("refined", other(REFINED)), {}, {PRIOR_SAME, VERSIONS, HANDED_ON},
    ),
    # what became of the factor that left
    "handed on to one, in a refinement": (refined(c=Entry(0, 1, c + a)), {}, {HANDED_ON}),
    "handed on to one, or nearly": (refined(c=Entry(0, 1, c + a * 1.000001)), {}, {HANDED_ON}),
    "taken from another too": (refined(c=Entry(0, 1, c + a * -1.0)), {}, {HANDED_ON}),
    "handed on to one, after a restart": (
        ("restarted", with_entries(ZEROED, c=Entry(0, 2, c + a))), {}, {HANDED_ON},
    ),
    "handed on to a newcomer": (refined(e=Entry(0, 0, a)), {}, {HANDED_ON}),
    "handed on in parts, so that the posterior is what it was": (refined(**PARTS), {}, {HANDED_ON}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_are_refused(name, tmp_path):
    (kind, forged), changed, expected = FORGERIES[name]
    before, after, content = HONEST[kind]
    after = after if forged is None else forged
    document = {**document_of(before, after), **content, **changed}
    path = written(document, tmp_path / "receipt.json")
    assert set(verified(path, before, after).broken) == expected


def test_leavers_whose_factors_were_exchanged(tmp_path):
    """Each of two factors that left went to another who stays."""
    before = TOGETHER.update("e", Gamma(2.0, 2.5))
    left = before.forget("a", "b")
    refinement = refinement_of(updates={"c": 1, "e": 1}, joined=[])
    for gains in ((a, b), (a, a * 0.1), (a * 0.1, b)):
        pairs = zip("ce", gains, strict=True)
        parts = {s: Entry(0, 1, before.factor(s) + gain) for s, gain in pairs}
        after = with_entries(left, **parts)
        document = document_of(before, after, sites=["a", "b"], refinement=refinement)
        path = written(document, tmp_path / "receipt.json")
        assert verified(path, before, after).broken == (HANDED_ON,)


# --- what a receipt cannot show -----------------------------------------------------------------

SILENT = ALONE.update("yew", PRIOR.zero(), independent=True)
MARKED = ledger_of("abc", independent=True)
UNSHOWN = {
    "when it was issued": (*exact, {"time": "2020-01-01T00:00:00+00:00"}),
    "by which version of posterity": (*exact, {"version": "99.0"}),
    "how far the posterior is from an optimum without them": (
        *company, told(estimated_distance_nats=0.0, residuals={}),
    ),
    "that a factor marked as independent was found alone": (
        "subtracted", MARKED.forget("a"), {"exact": True}, MARKED,
    ),
    "that a site had data": ("exact", SILENT.forget("yew"), {"sites": ["yew"]}, SILENT),
    "that what left was not handed on in part, or with something else": (
        *refined(c=Entry(0, 1, c + a + b * 0.5)), {},
    ),
    "that who joined is not who left": (*refined(e=Entry(0, 0, a * 1.1)), {}),
    "that a factor refined is what its site found": (
        *refined(c=Entry(0, 1, Gamma(0.9, 1.6), True)), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSHOWN)
def test_what_a_receipt_cannot_show(name, tmp_path):
    """Named in docs/forget.md: whoever refuses one of these can strike it there."""
    kind, after, changed, *before = UNSHOWN[name]
    honest_before, honest_after, content = HONEST[kind]
    before = before[0] if before else honest_before
    after = honest_after if after is None else after
    document = {**document_of(before, after), **content, **changed}
    path = written(document, tmp_path / "receipt.json")
    assert verified(path, before, after).passed


def test_the_page_says_what_is_checked_and_what_cannot_be_shown(tmp_path):
    page = Path(__file__).parent.parent.joinpath("docs", "forget.md").read_text()
    table = lambda title: page.split(f"| {title} |")[1].split("\n\n")[0]
    rows = lambda title: re.findall(r"^\| (.+?) \|", table(title), re.MULTILINE)
    claims = {}
    for before, after, content in HONEST.values():
        path = written(document_of(before, after, **content), tmp_path / "receipt.json")
        claims |= verified(path, before, after).claims
    assert rows("what `verify` checks") == list(claims)
    assert set(claims) == set().union(*(broken for *_, broken in FORGERIES.values()))
    assert rows("what a receipt cannot show") == list(UNSHOWN)


# --- honest, whatever the ledger ----------------------------------------------------------------

NAMES = ["north", "a/b", ".", 'a "quoted", b', "\N{SNOWMAN}\n", "south"]


def random_ledger(rng):
    """Sites at all versions, some of them forgotten, independent or not; one at least stays."""
    ledger = Ledger(PRIOR).update("east", factor_of(rng), independent=bool(rng.integers(2)))
    for site in rng.permutation(NAMES)[: rng.integers(1, 6)]:
        for _ in range(rng.integers(1, 4)):
            ledger = ledger.update(str(site), factor_of(rng), independent=bool(rng.integers(3)))
        if rng.random() < 0.4:
            ledger = ledger.forget(str(site))
            if rng.random() < 0.5:
                ledger = ledger.update(str(site), factor_of(rng), epoch=1)
    return ledger


def factor_of(rng):
    return Gamma(*(10.0 ** rng.integers(-3, 6) * rng.uniform(0.1, 1, 2)))


def some_of(rng, sites):
    """At least one."""
    return [str(site) for site in rng.permutation(sites)[: rng.integers(1, len(sites) + 1)]]


@given(seed=st.integers(0, 2**32 - 1))
def test_whatever_a_ledger_forgets_is_verified(seed, tmp_path_factory):
    rng = np.random.default_rng(seed)
    ledger = random_ledger(rng)
    done = forget(ledger, *some_of(rng, ledger.sites))
    assert verify(done.receipt, ledger, done.ledger).passed
    path = tmp_path_factory.getbasetemp() / "receipt.json"
    done.receipt.save(path)
    assert Receipt.load(path) == done.receipt


@given(seed=st.integers(0, 2**32 - 1))
def test_whatever_was_refined_is_verified(seed):
    """As runs do it: all factors are zeroed or not, some leave, others change or join."""
    rng = np.random.default_rng(seed)
    before = after = random_ledger(rng)
    leavers, restarted = some_of(rng, before.sites), bool(rng.integers(2))
    for site in before.sites if restarted else ():
        after = after.update(site, PRIOR.zero(), independent=True)
    after = after.forget(*leavers)
    newcomers = ["fir", "yew"][: rng.integers(3)]
    for site in (*after.sites, *newcomers):
        for _ in range(rng.integers(site in newcomers, 4)):
            after = after.update(site, factor_of(rng))
    measured = {"residuals": {"east": None}, "estimated_distance_nats": float(rng.exponential())}
    receipt = issue(before, after, Refinement.between(before, after, restarted, **measured))
    assert verify(receipt, before, after).passed
    assert receipt.sites == tuple(sorted(leavers))
    assert receipt.refinement.joined == tuple(newcomers)


# --- files --------------------------------------------------------------------------------------


def places(document, at=()):
    """The keys that lead to each value of a document, and to each group of them."""
    for key, value in document.items():
        yield (*at, key)
        if isinstance(value, dict):
            yield from places(value, (*at, key))


def put(document, place, value):
    document = copy.deepcopy(document)
    *path, last = place
    inner = document
    for key in path:
        inner = inner[key]
    inner[last] = value
    return document


RECEIPT = document_of(TOGETHER, REFINED, refinement=refinement_of())
PLACES = list(places(RECEIPT))
FREE = [
    ("time",),
    ("version",),
    ("refinement", "estimated_distance_nats"),
    *(place for place in PLACES if place[:2] == ("refinement", "residuals")),
]
VALUES = [None, True, False, 0, 1, -1, 2.0, 1e400, float("nan"), 10**400, "", "a", "0" * 64, [], {},
          ["a"], ["e", "b"], ["e", "e"], [["a"]], {"b": 1}, {"b": True}, "2026-11-21",
          "2026-11-21T09:00:00", "2026-11-21T10:00:00+01:00", "1999-01-01T00:00:00+00:00",
          "2026-13-21T09:00:00+00:00", "2026-11-21T09:00:00Z", "1.0\nall is well"]  # fmt: skip


@pytest.mark.parametrize("place", [("statement",), ("receipt",), *PLACES], ids="/".join)
def test_whatever_else_a_field_says_is_refused(place, tmp_path):
    """With a checksum and, where one can be written, a sentence that fit."""
    honest = {"receipt": 2, **RECEIPT, "statement": sentence(RECEIPT)}
    for value in VALUES:
        document = put(honest, place, value)
        if json.dumps(document) == json.dumps(honest):
            continue
        with contextlib.suppress(AttributeError, KeyError, OverflowError, TypeError, ValueError):
            document["statement"] = value if place == ("statement",) else sentence(document)
        path = written(document, tmp_path / "receipt.json")
        try:
            assert not verified(path, TOGETHER, REFINED).passed or place in FREE
        except ArtifactError as error:
            assert "receipt" in error.found


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("time", "yesterday"),
        ("time", "2019-12-31T23:59:59+00:00"),
        ("version", "the newest"),
        ("sites", []),
        ("sites", ["b", "a"]),
        ("exact", "no"),
        ("before", "F" * 64),
        ("refinement/updates", {"b": True}),
        ("refinement/updates", {"b": -1}),
        ("refinement/restarted", 0),
        ("refinement/estimated_distance_nats", -1.0),
        ("refinement/residuals", {"b": float("inf")}),
    ],
)
def test_what_a_field_has_to_be_is_told(field, value, tmp_path):
    document = put(RECEIPT, field.split("/"), value)
    path = written({"statement": "", **document}, tmp_path / "receipt.json")
    with pytest.raises(ArtifactError) as caught:
        Receipt.load(path)
    assert caught.value.found.startswith(field.split("/")[-1])
    assert str(path) in caught.value.found


@pytest.mark.parametrize("place", PLACES, ids="/".join)
def test_no_field_may_lack_or_come_twice(place, tmp_path):
    path = written(RECEIPT, tmp_path / "receipt.json")
    document = json.loads(path.read_text())
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    text = json.dumps({place[-1]: inner[place[-1]]})[1:-1]
    twice = path.read_text().replace(text, f"{text}, {text}")
    del inner[place[-1]]
    for content in (twice, json.dumps(document)):
        path.write_text(content)
        with pytest.raises(ArtifactError, match=r"not a receipt|altered"):
            Receipt.load(path)


def test_layout_does_not_matter_and_strangers_do(tmp_path):
    path = written(RECEIPT, tmp_path / "receipt.json")
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7))
    assert verified(path, TOGETHER, REFINED).passed
    for strange in ({**RECEIPT, "note": ""}, put(RECEIPT, ("refinement", "note"), "")):
        with pytest.raises(ArtifactError, match=r"altered|note"):
            Receipt.load(written(strange, path))


NO_RECEIPTS = ["", "[]", "7", "{}", '{"digest": 1, "receipt": 1}', "\x00", "\xff", "[" * 100_000]


@pytest.mark.parametrize("text", NO_RECEIPTS)
def test_files_that_are_no_receipts(text, tmp_path):
    path = tmp_path / "receipt.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ArtifactError, match="not a receipt"):
        Receipt.load(path)
    with pytest.raises(ArtifactError, match="No such file"):
        Receipt.load(tmp_path / "nowhere.json")
    with pytest.raises(ArtifactError, match="cannot be written"):
        forget(ALONE, "a").receipt.save(tmp_path / "no" / "folder.json")
