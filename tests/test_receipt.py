import dataclasses
import json

import pytest

from posterity import Ledger, forget
from posterity.errors import ArtifactError
from posterity.families import Gamma
from posterity.receipt import Receipt, issue, verify

PRIOR = Gamma.from_standard(shape=1.0, rate=1.0)
BEFORE = (
    Ledger(PRIOR)
    .update("a", Gamma(3.0, 2.0), independent=True)
    .update("b", Gamma(5.0, 4.0), independent=True)
    .update("c", Gamma(1.0, 1.0), independent=True)
    .update("d", Gamma(1.0, 9.0), independent=True)
    .forget("d")
)
DONE = forget(BEFORE, "a")
AFTER, RECEIPT = DONE.ledger, DONE.receipt
DIGESTS = {
    "the ledger before is the one that the receipt names",
    "the ledger after is the one that the receipt names",
}


def broken(receipt=RECEIPT, before=BEFORE, after=AFTER):
    """Claims that do not hold, but for digests that tell any change of a file."""
    return {c for c, holds in verify(receipt, before, after).claims.items() if not holds} - DIGESTS


def test_a_receipt_holds():
    verification = verify(RECEIPT, BEFORE, AFTER)
    assert verification.passed
    assert len(verification.claims) == 10
    assert RECEIPT.sites == ("a",)
    assert RECEIPT.exact
    assert RECEIPT.time.endswith("+00:00")


@pytest.mark.parametrize("field", ["before", "after"])
def test_files_of_another_forgetting(field):
    (claim,) = (claim for claim in DIGESTS if field in claim)
    tampered = dataclasses.replace(RECEIPT, **{field: "0" * 64})
    verification = verify(tampered, BEFORE, AFTER)
    assert [c for c, holds in verification.claims.items() if not holds] == [claim]
    swapped = verify(RECEIPT, AFTER, BEFORE)
    assert not swapped.claims[claim]
    assert not swapped.passed


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ((), {"sites are named, none of which was forgotten before",
              "nobody else left or came back",
              "every other factor is the same, to the last bit"}),
        (("b",), {"the sites do not contribute after", "nobody else left or came back"}),
        (("a", "d"), {"sites are named, none of which was forgotten before",
                      "the sites are barred from coming back by an old message"}),
        (("a", "yew"), {"the sites are barred from coming back by an old message"}),
    ],
)  # fmt: skip
def test_a_receipt_that_names_other_sites(sites, expected):
    assert expected <= broken(dataclasses.replace(RECEIPT, sites=sites))


def test_a_receipt_that_says_less_than_it_could():
    assert broken(dataclasses.replace(RECEIPT, exact=False)) == {"it says exact where it could"}


def test_a_receipt_that_says_more_than_it_could():
    for ledger in (
        Ledger(PRIOR).update("a", Gamma(3.0, 2.0)).update("b", Gamma(5.0, 4.0)),
        BEFORE.update("b", Gamma(5.0, 4.0)),
    ):
        done = forget(ledger, "a")
        assert not done.exact
        assert verify(done.receipt, ledger, done.ledger).passed
        bold = dataclasses.replace(done.receipt, exact=True)
        assert broken(bold, ledger, done.ledger) == {
            "every other factor was found without the sites"
        }


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (BEFORE, {"the sites do not contribute after",
                  "the sites are barred from coming back by an old message"}),
        (AFTER.update("a", Gamma(3.0, 2.0), epoch=1, independent=True),
         {"the sites do not contribute after",
          "the sites are barred from coming back by an old message"}),
        (AFTER.compact(), {"the sites are barred from coming back by an old message",
                           "no other site went back to an older version",
                           "nobody else left or came back",
                           "every other factor is the same, to the last bit"}),
        (AFTER.update("d", Gamma(1.0, 9.0), epoch=1, independent=True),
         {"nobody else left or came back", "every other factor is the same, to the last bit"}),
        (AFTER.forget("b"), {"nobody else left or came back",
                             "every other factor is the same, to the last bit"}),
        (AFTER.update("b", Gamma(5.0, 4.000001), independent=True),
         {"every other factor is the same, to the last bit"}),
        (AFTER.update("b", Gamma(5.0, 4.0)),
         {"every other factor is the same, to the last bit",
          "every other factor was found without the sites"}),
        (AFTER.update("e", Gamma(5.0, 4.0), independent=True),
         {"every other factor is the same, to the last bit"}),
        (Ledger(Gamma.from_standard(1.0, 1.5), AFTER.entries),
         {"the prior is the same", "every other factor is the same, to the last bit"}),
    ],
)  # fmt: skip
def test_a_ledger_after_that_was_tampered_with(after, expected):
    assert not verify(RECEIPT, BEFORE, after).claims[
        "the ledger after is the one that the receipt names"
    ]
    # Even if the digest were forged to fit.
    forged = dataclasses.replace(issue(BEFORE, after, ("a",), None), exact=True)
    assert broken(forged, after=after) == expected


def test_a_version_that_went_back():
    before = BEFORE.update("b", Gamma(6.0, 4.0))
    done = forget(before, "a")
    back = Ledger(PRIOR, {**done.ledger.entries, "b": BEFORE.entries["b"]})
    forged = issue(before, back, ("a",), {"sweeps": 2})
    assert broken(forged, before, back) == {"no other site went back to an older version"}


# --- files -------------------------------------------------------------------------------------


def test_receipts_as_files(tmp_path):
    refined = dataclasses.replace(
        RECEIPT, exact=False, refinement={"sweeps": 2, "residuals": {"b": 0.1, "c": None}}
    )
    for receipt in (RECEIPT, refined):
        receipt.save(tmp_path / "receipt.json")
        assert Receipt.load(tmp_path / "receipt.json") == receipt
    assert [path.name for path in tmp_path.iterdir()] == ["receipt.json"]


@pytest.mark.parametrize("field", ["sites", "exact", "before", "after", "time", "version",
                                   "refinement", "receipt", "digest"])  # fmt: skip
def test_an_altered_file_is_told(field, tmp_path):
    path = tmp_path / "receipt.json"
    content = json.loads(RECEIPT.to_json())
    other = {"sites": ["b"], "exact": False, "receipt": 2, "refinement": {}}.get(field, "altered")
    path.write_text(json.dumps(content | {field: other}))
    with pytest.raises(ArtifactError, match="altered, or of another version"):
        Receipt.load(path)
    path.write_text(json.dumps({k: v for k, v in content.items() if k != field}))
    if field != "refinement":
        with pytest.raises(ArtifactError, match="not a receipt"):
            Receipt.load(path)


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", '{"digest": 1, "receipt": 1}', "\x00"])
def test_files_that_are_no_receipts(text, tmp_path):
    path = tmp_path / "receipt.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match="not a receipt"):
        Receipt.load(path)
    with pytest.raises(ArtifactError, match="No such file"):
        Receipt.load(tmp_path / "nowhere.json")
    with pytest.raises(ArtifactError, match="cannot be written"):
        RECEIPT.save(tmp_path / "no" / "folder.json")
