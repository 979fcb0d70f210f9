"""The terms of a federation: what makes their digest, and what is refused."""

import math

import numpy as np
import pytest
from engine.coins import PRIOR, terms
from engine.keys import PUBLIC
from engine.packages import provide

from posterity.engine.signing import PrivateKey
from posterity.errors import PosterityError, UsageError
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
        {"limits": {"magnitude": 10.0}},
        {"seed": 1},
        {"update": {"temperature": 0.5}},
        {"update": {"steps": 2}},
        {"model": "theirs", "package": "acme", "version": "1.0"},
        {"model": "theirs", "package": "acme", "version": "1.1"},
    ],
)
def test_whatever_changes_numbers_or_members_changes_the_digest(change):
    assert terms(**change).digest != terms().digest


def test_terms_in_another_order_have_the_same_digest():
    links = [["a", "b"], ["b", "c"], ["c", "d"]]
    turned = [[b, a] for a, b in reversed(links)]
    mirrored = dict(reversed(MEMBERS.items()))
    assert terms(links=turned, members=mirrored).digest == terms(links=links).digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "os:system"}, "model.kind"),
        ({"model": "posterity.models:BetaBernoulli"}, "model.kind"),
        ({"model": "no-such-model"}, "model.kind"),
        ({"package": "acme"}, "both, or neither"),
        ({"version": "1.0"}, "both, or neither"),
        ({"options": {"sides": 3}}, "model"),
        ({"options": {"sides": {"a": 3}}}, "model.options.sides"),
        ({"options": {"sides": math.inf}}, "model.options.sides"),
        (
            {"model": "theirs", "package": "acme", "version": "1", "options": {"f": [1]}},
            "plain|number",
        ),
        ({"update": {"estimator": "os:sep"}}, "update.estimator"),
        ({"members": {str(number): "" for number in range(1025)}}, "at most 1,024"),
        ({"limits": {"magnitude": -1.0}}, "limits"),
        ({"limits": {"patients": 3}}, "limits"),
        ({"limits": {"bytes": 0.5}}, "limits"),
        ({"links": [["a", "b"], ["c", "d"]]}, "links"),
        ({"links": [["a", "b"], ["b", "c"], ["c", "z"]]}, "links"),
        ({"members": {}}, "links"),
        ({"members": {"a": "key"}}, "base64"),
        ({"members": MEMBERS | {"e": MEMBERS["a"]}}, "one public key"),
        ({"members": MEMBERS | {"\u0430": MEMBERS["a"]}}, "look alike"),
        ({"members": MEMBERS | {"A": MEMBERS["a"]}}, "look alike"),
        ({"authorities": {"a": OFFICER}}, "members and authorities"),
        ({"authorities": {"\u0430": OFFICER}}, "look alike"),
        ({"authorities": {"officer": MEMBERS["a"]}}, "one public key"),
        ({"authorities": {"officer": OFFICER, "other": OFFICER}}, "one public key"),
        ({"prior": Gaussian.from_standard(np.zeros(2), np.eye(2))}, "Gaussian"),
    ],
)
def test_terms_that_make_no_sense_are_refused(change, words):
    with pytest.raises(PosterityError, match=words):
        terms(**change)


def test_a_package_is_loaded_only_where_it_is_allowed(tmp_path, monkeypatch):
    provide(tmp_path, monkeypatch, theirs="posterity.models:BetaBernoulli", broken="nowhere:it")
    theirs = {"model": "theirs", "package": "acme", "version": "1.0"}
    sent = terms(**theirs)
    assert not sent.knows_model and len(sent.digest) == 64 and sent.law == PRIOR
    for allow in ({}, {"acme": "1.1"}, {"acm": "1.0"}):
        with pytest.raises(UsageError, match=r"acme 1.0, which is not allowed here"):
            _ = terms(**theirs, allow=allow).agreement
    allowed = terms(**theirs, allow={"acme": "1.0"})
    assert allowed.agreement.digest == terms().agreement.digest
    assert allowed.digest == sent.digest != terms().digest
    for change, words in (
        ({"version": "1.1", "allow": {"acme": "1.1"}}, "pip install 'acme==1.1'"),
        ({"package": "no-such", "allow": {"no-such": "1.0"}}, "pip install 'no-such==1.0'"),
        ({"model": "others"}, "model.kind = 'others'"),
        ({"model": "broken"}, "cannot be imported"),
        ({"options": {"sides": 3}}, "sides"),
    ):
        with pytest.raises(UsageError, match=words):
            terms(**theirs | {"allow": {"acme": "1.0"}} | change)


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
    eight = terms(members={name: keys[name] for name in names[:9]})
    assert eight.listeners("00", frozenset()) == tuple(names[1:9])
    nine = terms(members={name: keys[name] for name in names[:10]})
    assert len(nine.listeners("00", frozenset())) < 9
    hub = terms(members=keys, server="00")
    assert hub.listeners("00", frozenset(["01"])) == tuple(names[2:])
    assert hub.listeners("05", frozenset()) == ("00",)
