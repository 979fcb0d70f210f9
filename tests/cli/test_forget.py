"""``posterity forget`` and ``verify``, as a user calls them."""

import html
import os
from pathlib import Path

import numpy as np
import pytest
from cli.commands import contents, document, fail, refuse, succeed
from cli.configurations import COUNTS, LOGISTIC

import posterity
from posterity.cli import files as command_files
from posterity.cli.forget import _report as report
from posterity.families import Gamma
from posterity.tabular.recipe import recipe_in
from posterity.tabular.sites import sites_in


def test_forget_and_verify_exactly(folder):
    document("federate", "gossip.toml")
    text = succeed(
        *("forget", "shared.safetensors", "--site", "south"),
        *("-o", "left.safetensors", "--receipt", "receipt.json"),
    ).stdout
    assert "Exact" in text and "2 sites are left" in text
    left = posterity.load("left.safetensors")
    assert float(left.posterior.shape) == 2 + sum(COUNTS["north"]) + sum(COUNTS["east"])
    assert left.forgotten == ("south",)
    claims = document("verify", "receipt.json", "shared.safetensors", "left.safetensors")["claims"]
    assert claims["every other factor is the same, to the last bit"] and all(claims.values())
    wrong = fail(6, "verify", "receipt.json", "left.safetensors", "shared.safetensors")
    assert "the ledger before is the one that the receipt names" in wrong["found"]
    Path("receipt.json").write_text(Path("receipt.json").read_text().replace("true", "false"))
    fail(5, "verify", "receipt.json", "shared.safetensors", "left.safetensors")


@pytest.mark.parametrize(
    ("name", "said"),
    [("köln", '"köln"'), ('a"b', r'"a\"b"'), ("a\N{RIGHT-TO-LEFT OVERRIDE}b", r'"a\u202eb"')],
)
def test_a_receipt_has_names_as_they_are_but_for_what_could_mislead(folder, name, said):
    document("federate", "gossip.toml")
    ledger = posterity.load("shared.safetensors").update(name, Gamma(3.0, 2.0), independent=True)
    posterity.save(ledger, "more.safetensors")
    out = ("-o", "left.safetensors", "--receipt", "r.json")
    succeed("forget", "more.safetensors", "--site", name, *out)
    verified = ("r.json", "more.safetensors", "left.safetensors")
    assert f"factors of {said} were" in succeed("verify", *verified).stdout
    succeed("report", *verified, "-o", "r.html")
    page = Path("r.html").read_text(encoding="utf-8")
    assert f"factors of {said} were" in html.unescape(page)


def test_options_of_tables_are_those_of_the_federation_that_refines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for site in "abc":
        x = rng.normal(size=80)
        ill = rng.random(80) < 1 / (1 + np.exp(-x))
        cells = np.where(rng.random(80) < 0.1, "-9", x)
        lines = [f"{one},{int(y)}" for one, y in zip(cells, ill, strict=True)]
        Path(f"{site}.csv").write_text("\n".join(["x,ill", *lines]))
    told = ("--missing", "-9", "--drop-missing")
    document("federate", "a.csv", "b.csv", "c.csv", "--target", "ill", "--model", "logistic", *told,
             "-o", "all.safetensors")  # fmt: skip
    sites = '[sites]\na = "a.csv"\nb = "b.csv"\n[data]\nlike = "all.safetensors"\n'
    Path("by_flags.toml").write_text(sites)
    Path("by_file.toml").write_text(f'{sites}missing = ["-9"]\ndrop_missing = true\n')
    line = ("forget", "all.safetensors", "--site", "c", "--receipt")
    document(*line, "1.json", "--config", "by_flags.toml", *told, "-o", "1.safetensors")
    document(*line, "2.json", "--config", "by_file.toml", "-o", "2.safetensors")
    assert posterity.load("1.safetensors") == posterity.load("2.safetensors")
    for alone, other in (("--missing -9", "--config"), ("--data a.csv", "--record")):
        error = fail(2, *line, "3.json", *alone.split(), "-o", "3.safetensors")
        assert alone.split()[0] in error["found"] and other in error["found"]


CONFIG = ("--config", "logistic.toml")


def test_forget_says_that_it_is_not_exact_and_refines_with_a_configuration(folder):
    document("federate", "logistic.toml")
    arguments = ["forget", "coupled.safetensors", "--site", "b"]
    plain = document(*arguments, "-o", "plain.safetensors", "--receipt", "plain.json", code=9)
    assert plain["status"]["state"] == "not converged" and plain["status"]["left"] is None
    assert (plain["exact"], plain["distance"]) == (False, None)
    assert "Not exact, not converged: " in report(plain)
    succeed("verify", "plain.json", "coupled.safetensors", "plain.safetensors")
    out = ["-o", "refined.safetensors", "--receipt", "r.json"]
    refined = document(*arguments, *out, *CONFIG)
    assert not refined["exact"] and 0 <= refined["distance"] < 1e-5
    succeed("verify", "r.json", "coupled.safetensors", "refined.safetensors")
    Path("logistic.toml").write_text(
        LOGISTIC.replace('b = "b.csv"\n', "")
        .replace("coupled", "retrained")
        .replace("steps = 2", "steps = 20")
    )
    document("federate", "logistic.toml")
    distances = [
        float(
            posterity.load(f"{name}.safetensors").posterior.kl(
                posterity.load("retrained.safetensors").posterior
            )
        )
        for name in ("plain", "refined")
    ]
    assert distances[1] < 1e-5 < distances[0]
    assert not any("not those" in note for note in refined["notes"])
    Path("c.csv").write_text(Path("c.csv").read_text().replace(",1,", ",0,"))
    edited = document(*arguments, "-o", "e.safetensors", "--receipt", "e.json", *CONFIG)
    assert "records of site 'c' are not those" in edited["notes"][-1]


SPREADS = {"linear": "noise_variance", "gamma": "dispersion"}


@pytest.mark.parametrize("model", SPREADS)
def test_noise_of_the_forgotten_is_estimated_again_from_who_stays(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    rng, sites, spread = np.random.default_rng(4), {}, SPREADS[model]
    for site, noise in {"a": 0.3, "b": 0.3, "c": 4.0, "d": 4.0}.items():
        x = rng.normal(size=30)
        errors = rng.gamma(1 / noise, noise, 30) if model == "gamma" else rng.normal(0, noise, 30)
        y = np.exp(x / 2) * errors + 1e-6 if model == "gamma" else 2 + x + errors
        rows = [f"{one},{two}" for one, two in zip(x, y, strict=True)]
        Path(f"{site}.csv").write_text("\n".join(["x,y", *rows]))
        sites[site] = f'{site} = "{site}.csv"'
    for name, known in {"all": "abcd", "few": "ab"}.items():
        lines = ["[sites]", *(sites[site] for site in known), "[model]", f'kind = "{model}"']
        lines += ['target = "y"', "intercept = true", "[schedule]", "tolerance = 1e-6"]
        Path(f"{name}.toml").write_text("\n".join(lines))
        assert not document("federate", f"{name}.toml", "-o", f"{name}.safetensors")["exact"]

    def forgotten(before, site, after, *options, code=0):
        out = ["-o", f"{after}.safetensors", "--receipt", f"{after}.json"]
        line = ["forget", f"{before}.safetensors", "--site", site, *out, *options]
        told = document(*line, code=code)
        succeed("verify", f"{after}.json", f"{before}.safetensors", f"{after}.safetensors")
        return told

    if model == "linear":  # a variance that is known has nothing of any site's
        line = ("federate", "all.toml", "--noise-variance", "2", "-o", "known.safetensors")
        assert document(*line)["exact"] and forgotten("known", "c", "left")["exact"]
    told = forgotten("all", "c", "plain", code=9)
    assert not told["exact"] and f"{spread.replace('_', ' ')} of the file stays" in told["notes"][0]
    for line in (("all", "c", "one"), ("one", "d", "two")):
        told = forgotten(*line, "--config", "all.toml")
        assert not told["exact"] and "of the sites that stay" in told["notes"][0]
        assert not any("not those" in note for note in told["notes"])
        Path("d.csv").unlink(missing_ok=True)  # the table of a site that leaves is not needed
    text = Path("all.toml").read_text()
    Path("other.toml").write_text(text + "\n[data]\nscale = {x = 2.0}")
    out = "-o three.safetensors --receipt three.json"
    refuse(f"forget all.safetensors --site d {out} --config other.toml", 4, "--scale")
    kept, never = (command_files.read_ledger(Path(f"{n}.safetensors")) for n in ("two", "few"))
    assert float(never[0].posterior.kl(kept[0].posterior)) < 1e-5 and not kept[0].independent
    assert sites_in(kept[1].provenance) == sites_in(never[1].provenance)
    assert recipe_in(kept[1].provenance) == recipe_in(never[1].provenance)


def test_what_has_not_converged_gets_no_receipt_unless_told_to(folder):
    document("federate", "logistic.toml")
    arguments = "forget coupled.safetensors --site b -o left.safetensors --receipt r.json"
    arguments += " --config logistic.toml --sweeps 0"
    refuse(
        arguments,
        9,
        "no visit yet to; after 'b' left; Raise --sweeps; pass --allow-unconverged for",
    )
    told = document(*arguments.split(), "--allow-unconverged", code=9)
    assert not told["exact"] and told["distance"] > 1e-3
    assert f"by {told['distance']:.2g} nats" in told["statement"]
    succeed("verify", "r.json", "coupled.safetensors", "left.safetensors")


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        ("--site nowhere", 6, "nowhere"),
        ("--site south --site nowhere", 6, "nowhere"),
        ("", 2, "site"),
        ("--site south --sweeps 3", 2, "--sweeps 3 without --config"),
        ("--site south --config logistic.toml", 6, "prior"),
        ("--site south -o /dev/null", 5, "which is not a file"),
        ("--site south --receipt gossip.toml", 2, "which exists already"),
    ],
)
def test_what_cannot_be_forgotten(folder, arguments, code, words):
    document("federate", "gossip.toml")
    output = "" if "-o" in arguments else "-o left.safetensors"
    receipt = "" if "--receipt" in arguments else "--receipt r.json"
    refuse(f"forget shared.safetensors {arguments} {output} {receipt}", code, words)


def test_only_ledgers_can_forget(folder):
    options = "--site south -o left.safetensors --receipt r.json"
    refuse(f"forget prior.safetensors {options}", 4, "a Gaussian in 'prior.safetensors'")


@pytest.mark.parametrize(
    "receipt, words",
    [
        ("text.safetensors", "not a receipt"),
        ("pipe", "pipe"),
        ("n.safetensors", "receipt 'n.safetensors'; not a receipt; verify RECEIPT BEFORE AFTER"),
    ],
)
def test_receipts_that_are_none(strange, receipt, words):
    refuse(f"verify {receipt} n.safetensors n.safetensors", 5, words)


@pytest.mark.parametrize(
    "line",
    [
        "show r.json",
        "inspect r.json",
        "diff n.safetensors r.json",
        "fuse n.safetensors r.json -o out.safetensors",
        "forget r.json --site north -o out.safetensors --receipt s.json",
        "export r.json -o out.csv",
        "verify r.json r.json n.safetensors",
    ],
)
def test_a_receipt_where_a_posterior_is_wanted_is_named(files, line):
    made = ("-o", "left.safetensors", "--receipt", "r.json")
    succeed("forget", "n.safetensors", "--site", "north", *made)
    refuse(line, 5, "a JSON document in file 'r.json'; posterity.save; posterity verify")


def test_ledger_and_receipt_are_written_both_or_not_at_all(files, monkeypatch):
    line = ["forget", "n.safetensors", "--site", "north", "-o", "left.safetensors"]
    real = os.fsync

    def full(handle):
        if "receipt" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(28, "No space left on device")
        real(handle)

    before = contents()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert "No space" in fail(5, *line, "--receipt", "receipt.json")["found"]
    assert contents() == before
    monkeypatch.setattr(command_files, "write", lambda *_: 1 / 0)
    fail(70, *line, "--receipt", "receipt.json")
    assert contents() == before


def test_the_same_may_be_forgotten_again(files):
    line = "forget n.safetensors --site north -o left.safetensors --receipt receipt.json"
    for _ in range(2):
        succeed(*line.split())
    assert document("verify", "receipt.json", "n.safetensors", "left.safetensors")["exact"]
    refuse(line.replace("n.safe", "s.safe").replace("north", "south"), 2, "which exists already")
