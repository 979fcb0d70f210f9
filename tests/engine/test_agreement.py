"""The terms of a federation: what makes their digest, and what is refused."""

import numpy as np
import pytest
from engine.coins import terms
from engine.keys import PUBLIC

from posterity.engine.signing import PrivateKey
from posterity.errors import PosterityError
from posterity.families import Beta, Gaussian

MEMBERS = {site: str(key) for site, key in PUBLIC.items()}
OFFICER = str(PrivateKey(b"o" * 32).public)


@pytest.mark.parametrize(
    "change",
    [
        {"prior": Beta.from_standard(0.7, 1.2)},
        {"members": MEMBERS | {"d": str(PUBLIC["a"])[:-2] + "E="}},
        {"links": [["a", "b"], ["b", "c"], ["c", "d"]]},
        {"padding": False},
        {"total_weight": 100.0},
        {"limits": {"magnitude": 10.0}},
        {"seed": 1},
        {"update": "posterity.inference:LocalUpdate", "update_options": {"temperature": 0.5}},
    ],
)
def test_whatever_changes_numbers_or_members_changes_the_digest(change):
    assert terms(**change).digest != terms().digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "posterity.models"}, "model.path"),
        ({"model": "posterity.models:Nothing"}, "cannot be imported"),
        ({"model": "posterity.nowhere:Nothing"}, "cannot be imported"),
        ({"model": "posterity.models:__doc__"}, "cannot be imported"),
        ({"model_options": {"sides": 3}}, "model"),
        ({"update": "os:sep"}, "update.path"),
        ({"limits": {"magnitude": -1.0}}, "limits"),
        ({"limits": {"patients": 3}}, "limits"),
        ({"limits": {"bytes": 0.5}}, "limits"),
        ({"links": [["a", "b"], ["c", "d"]]}, "links"),
        ({"links": [["a", "b"], ["b", "c"], ["c", "z"]]}, "links"),
        ({"members": {}}, "links"),
        ({"members": {"a": "key"}}, "base64"),
        ({"members": MEMBERS | {"e": MEMBERS["a"]}}, "one public key"),
        ({"members": MEMBERS | {"\u0430": MEMBERS["a"]}}, "look alike"),
        ({"authorities": {"a": OFFICER}}, "member and an authority"),
        ({"authorities": {"\u0430": OFFICER}}, "look alike"),
        ({"authorities": {"officer": MEMBERS["a"]}}, "one public key"),
        ({"authorities": {"officer": OFFICER, "other": OFFICER}}, "one public key"),
        ({"prior": Gaussian.from_standard(np.zeros(2), np.eye(2))}, "Gaussian"),
    ],
)
def test_terms_that_make_no_sense_are_refused(change, words):
    with pytest.raises(PosterityError, match=words):
        terms(**change)


def test_links_of_who_is_gone_are_made_up_for():
    line = terms(links=[["a", "b"], ["b", "c"], ["c", "d"]])
    assert line.neighbours("b") == ("a", "c")
    assert line.neighbours("a", frozenset("b")) == ("c",)
    assert line.neighbours("a", frozenset("bc")) == ("d",)
    assert line.neighbours("b", frozenset("b")) == ("a", "c")
    assert line.walk(frozenset("bc")).network.names == ("a", "d")
    assert terms(links=[["a", "b"], ["b", "c"], ["a", "d"]]).neighbours("c", frozenset("b")) == (
        "a",
    )


def test_a_few_listeners_are_enough_only_where_all_are_linked():
    names = [f"{number:02}" for number in range(12)]
    keys = {name: str(PrivateKey(name.encode() * 16).public) for name in names}
    everybody = terms(members=keys)
    assert len(everybody.listeners("00", frozenset())) == 6
    hub = terms(members=keys, server="00")
    assert hub.listeners("00", frozenset(["01"])) == tuple(names[2:])
    assert hub.listeners("05", frozenset()) == ("00",)
