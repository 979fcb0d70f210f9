"""``posterity show``: for people, programs and spreadsheets."""

import csv
import io
import os
from pathlib import Path

import numpy as np
import pytest
from cli.commands import call, document, fail, refuse, succeed
from laws.table import TABLE

import posterity
from posterity import Ledger
from posterity.families import DiagonalGaussian, Dirichlet, Gaussian, Mixture, Network, Plate
from posterity.families.layers import Layers


def factor(mean, count):
    return Gaussian(np.array(mean, float) * count, np.eye(len(mean)) * count)


@pytest.fixture
def shown():
    prior = Gaussian.from_standard(np.zeros(2), 100 * np.eye(2)).named(["age", "dose"])
    ledger = Ledger(prior).extend({"north": factor([1, 0], 50), "south": factor([1, 2], 10)})
    posterity.save(ledger, "ledger.safetensors")
    posterity.save(Ledger(prior), "empty.safetensors")
    q = DiagonalGaussian.from_standard(np.arange(1014.0), np.ones(1014))
    posterity.save(q, "q.safetensors")
    return ledger


@pytest.mark.parametrize("name", TABLE)
def test_every_family(name):
    posterity.save(TABLE[name].draw(np.random.default_rng(0), (), 3), "q.safetensors")
    found = document("show", "q.safetensors")
    assert found["rows"] or found["layers"]
    assert len(found["rows"]) == found["count"]
    text = succeed("show", "q.safetensors", COLUMNS="100").stdout
    assert found["family"] in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_posterior_by_name(shown):
    found = document("show", "ledger.safetensors", "--level", "0.5")
    age, dose = found["rows"]
    assert (age["name"], age["label"], dose["name"]) == ("age", "age", "dose")
    q = shown.posterior
    assert age["mean"] == pytest.approx(q.mean[0])
    assert age["high"] - age["mean"] == pytest.approx(0.6744897501960817 * age["sd"])
    north, south = found["sites"]
    assert south["nats"] == pytest.approx(float(q.kl(shown.cavity("south"))))
    assert (south["most"]["name"], north["most"]["name"]) == ("dose", "dose")
    text = succeed("show", "ledger.safetensors").stdout
    for part in ("Ledger of 2 sites, Gaussian", "adds, nats", "age", "north", "95 % from"):
        assert part in text


def test_one_site_and_none(shown):
    found = document("show", "ledger.safetensors", "--site", "south")
    assert [pull["name"] for pull in found["pulls"]] == ["age", "dose"]
    assert "without south" in succeed("show", "ledger.safetensors", "--site", "south").stdout
    refuse("show ledger.safetensors --site east", 6, "site 'east'; north")
    refuse("show q.safetensors --site east", 2, "--site east of a DiagonalGaussian; a ledger")
    assert "this is the prior" in succeed("show", "empty.safetensors").stdout
    assert document("show", "empty.safetensors")["sites"] == []


def test_many_rows_are_cut_for_people_alone(shown):
    text = succeed("show", "q.safetensors").stdout
    assert "and 990 more (--all)" in text
    assert "1013" not in text
    assert "1013" in succeed("show", "q.safetensors", "--all").stdout
    assert len(document("show", "q.safetensors")["rows"]) == 1014


def test_csv(shown):
    named = shown.posterior.named(['a "b", c', "=d\nnext"])
    posterity.save(named, "named.safetensors")
    text = succeed("show", "named.safetensors", "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["name"] for row in rows] == ['a "b", c', "'=d\nnext"], "no formula"
    assert float(rows[0]["mean"]) == shown.posterior.mean[0]
    pulls = list(csv.DictReader(io.StringIO(
        succeed("show", "ledger.safetensors", "--site", "north", "--csv").stdout)))  # fmt: skip
    assert [row["name"] for row in pulls] == ["age", "dose"]
    assert call("show", "q.safetensors", "--csv", "--json").exit_code == 2


@pytest.mark.parametrize("columns", ["40", "0", "300"])
def test_names_fit_whatever_they_hold(shown, columns):
    names = ["x" * 200, "\x1b[31mred\r\n"]
    ledger = Ledger(shown.prior.named(names)).update("\x1b]0;title\x07", factor([1, 0], 3))
    posterity.save(ledger, "ugly.safetensors")
    for option in ((), ("--site", "\x1b]0;title\x07")):
        text = succeed("show", "ugly.safetensors", *option, COLUMNS=columns).stdout
        assert "\x1b" not in text and "\x07" not in text and "\r" not in text
        assert max(map(len, text.splitlines())) <= (int(columns) or 80)
        assert "x" * 5 in text


def test_what_is_improper_is_said(shown):
    prior = Gaussian.from_standard([0.0], [[1.0]])
    took = Ledger(prior).update("took", Gaussian(np.zeros(1), np.array([[-1.5]])))
    whole = took.update("gave", factor([1], 1))
    posterity.save(whole, "whole.safetensors")
    posterity.save(took, "broken.safetensors")
    text = succeed("show", "whole.safetensors", COLUMNS="100").stdout
    assert "gave: without it what is left is no distribution" in text
    found = document("show", "broken.safetensors")
    told = (found["proper"], found["rows"][0]["mean"], found["sites"][0]["nats"])
    assert told == (False, None, None)
    assert "improper" in succeed("show", "broken.safetensors").stdout


def test_topics_networks_and_dictionaries(shown):
    topics = Plate(Dirichlet.from_standard([[9.0, 1.0, 5.0]]))
    topics = topics.named({"members": ["cat", "dog", "elk"]})
    posterity.save(topics, "topics.safetensors")
    assert "cat 0.6, elk 0.33, dog 0.067" in succeed("show", "topics.safetensors").stdout
    posterity.save(Network.prior(Layers.dense(3, 2, 1)), "net.safetensors")
    text = succeed("show", "net.safetensors", COLUMNS="100").stdout
    assert "0 Dense 3 to 2, relu" in text
    assert document("show", "net.safetensors")["rows"] == []
    assert "by layer" in call("show", "net.safetensors", "--csv").stderr
    posterity.save({"a": np.zeros(3)}, "dict.safetensors")
    refuse("show dict.safetensors", 4, "a dict; posterity inspect FILE")


def test_components_of_a_mixture_have_their_weights(shown):
    members = DiagonalGaussian.from_standard([[-3.0], [3.0]], np.full((2, 1), 0.25))
    posterity.save(Mixture(np.log([0.3, 0.7]), members).named(["dose"]), "two.safetensors")
    lines = succeed("show", "two.safetensors").stdout.splitlines()
    assert any(line.split() == ["component", "weight"] for line in lines)
    assert any(line.split() == ["1", "0.7"] for line in lines)


def test_files_that_cannot_be_shown(shown):
    Path("bad.safetensors").write_bytes(Path("q.safetensors").read_bytes()[:-9])
    refuse("show bad.safetensors", 5, "'bad.safetensors'")
    refuse("show missing.safetensors", 5, "'missing.safetensors'")
    refuse("show q.safetensors --level 1", 2, "level=1.0; between 0 and 1")
    os.mkfifo("pipe")
    assert "pipe or a device" in fail(5, "show", "pipe")["found"]


def test_fuse_says_what_a_residual_is_worth(files):
    found = document("fuse", "n.safetensors", "s.safetensors", "-o", "both.safetensors")
    plate = found["plates"][""]
    assert plate["residual"] == pytest.approx(plate["cost"] / 4)
    assert 0.1 < plate["residual"] / plate["expected_residual"] < 10
    text = succeed("fuse", "n.safetensors", "s.safetensors", "-o", "both.safetensors").stdout
    assert "sampling alone would give" in text
    found = document("fuse", "plain.safetensors", "s.safetensors", "-o", "both.safetensors")
    assert found["plates"][""]["expected_residual"] is None
    assert "priors are not known" in found["plates"][""]["scale"]
