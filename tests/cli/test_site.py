"""Commands of sites and federations: what they write, and what they refuse."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cli.commands import call, contents, document, fail, refuse, succeed
from engine.folders import make
from engine.keys import KEYS, PUBLIC
from engine.packages import provide

import posterity
from posterity.cli.deployment import as_toml, configuration
from posterity.engine.log import TreeHead
from posterity.engine.signing import PrivateKey
from posterity.engine.transports.unix import Client
from posterity.families import Gaussian

SOURCE = str(Path(posterity.__file__).parents[1])
RUN = (sys.executable, "-m", "posterity", "site", "run")


@pytest.fixture
def sites(tmp_path):
    make(tmp_path)
    return tmp_path


def test_a_site_is_made_in_two_steps(sites):
    folder = sites / "a"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "site.key").stat().st_mode) == 0o600
    again = document("site", "init", folder)
    assert again["name"] == "a"
    assert again["key"] == str(PrivateKey.load(folder / "site.key").public)
    moved = "site", "init", folder, "--federation", sites / "federation.toml"
    before = (folder / "site.db").read_bytes()
    assert document(*moved)["digest"] and (folder / "site.db").read_bytes() == before
    assert "Leave --epoch out" in fail(5, *moved, "--epoch", 4)["fix"]
    said = succeed("site", "status", folder).stdout
    assert "a of coins, does not run" in said and "nats left" in said


def test_what_is_agreed_on_is_said_in_words(sites):
    (sites / "a" / "site.db").unlink()
    (sites / "dir.toml").mkdir()  # a folder, which is no configuration
    assert "no site.toml" in fail(5, "site", "status", sites / "dir.toml")["found"]
    said = succeed("site", "init", sites / "a", "--federation", sites / "federation.toml").stdout
    for words in (
        "Members: a (",
        "Links: every two",
        "walks at random",
        "nats are left",
        "Refused",
    ):
        assert words in said.replace("\n", " ")


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("site init", 2, "0 arguments"),
        ("site init x", 2, "no name"),
        ("site init x --name ' '", 2, "one line"),
        ("site init x --name n --data d.csv --loader p:q", 2, "data.file; data.path"),
        ("site init x --name n --federation no.toml", 5, "no.toml"),
        ("site init a --name b", 2, "name; site.toml"),
        ("site init a --data d.csv", 2, "data.file; site.toml"),
        ("site status nowhere", 5, "site.toml"),
        ("site forget a", 2, "--yes"),
        ("site pass-over a", 2, "no sites"),
        ("site pass-over a --site a", 5, "pass over"),
        ("site pass-over a --site z", 5, "pass over"),
        ("site audit a", 2, "output.file"),
        ("site result a -o out.safetensors", 5, "no posterior yet"),
        ("federation new -o f.toml", 2, "prior.file"),
        ("federation new --prior prior.safetensors -o f.toml", 2, "no name"),
        ("federation new federation.toml", 2, "output.file"),
        ("federation new federation.toml --model os:system -o f.toml", 2, "model.kind"),
        ("federation new federation.toml --member a=KEY -o f.toml", 5, "base64"),
        ("federation new federation.toml --server z -o f.toml", 2, "server"),
        ("federation new federation.toml --schedule '{kind=\"x\"}' -o f.toml", 2, "schedule"),
        ("site status nowhere", 5, "site.toml"),
    ],
)
def test_what_makes_no_sense_is_refused(line, code, words, sites):
    if line.endswith("--loader p:q"):
        succeed("site", "init", "x", "--name", "a", "--data", "d.csv", "--loader", "p:q")
        error = fail(code, "site", "init", "x", "--federation", "federation.toml")
        assert all(word in error["found"] for word in words.split("; "))
    elif line.endswith("no.toml"):
        succeed("site", "init", "x", "--name", "n")
        before = Path("x/site.toml").read_bytes()
        assert words in fail(code, "site", "init", "x", "--federation", "no.toml")["found"]
        assert Path("x/site.toml").read_bytes() == before
    elif "site.db" not in {path.name for path in contents()}:
        pytest.fail("no store")
    else:
        refuse(line, code, words)


def test_commands_work_on_the_store_where_no_agent_runs(sites):
    begun = document("site", "begin", sites / "a", "--number", "7")
    assert begun["epoch"] == [7, "a"] and begun["counted"] and begun["running"] is None
    left = document("site", "leave", sites / "a")
    assert left["epoch"] == [8, "a"] and not left["leaving"]
    assert document("site", "status", sites / "a")["highest"] == 8
    gone = document("site", "forget", sites / "a", "--yes")
    assert gone["forgotten"] == ["a"] and not gone["counted"]
    fail(5, "site", "forget", sites / "a", "--yes")
    fail(5, "site", "begin", sites / "a")


def test_an_audit_has_the_log_and_its_checkpoint(sites):
    document("site", "begin", sites / "a")
    document("site", "audit", sites / "a", "-o", "audit.json")
    bundle = json.loads(Path("audit.json").read_text())
    head = TreeHead.from_bytes(bundle["checkpoint"].encode())
    head.verify(PrivateKey.load(sites / "a" / "site.key").public)
    assert head.size == len(bundle["entries"]) > 0 and bundle["site"] == "a"


def test_keys_are_replaced_by_their_owners_and_by_authorities(tmp_path):
    officer, sites = tmp_path / "officer.key", tmp_path / "sites"
    sites.mkdir()
    PrivateKey(b"o" * 32).save(officer)
    make(sites, f"--authority=officer={PrivateKey(b'o' * 32).public}")
    first = document("site", "init", sites / "d")["key"]
    told = document("site", "rotate-key", sites / "d")
    assert told["announced"] and told["key"] != first
    there = document("site", "status", sites / "d")
    assert there["key"] == told["key"] == there["rotations"][0][1]
    said = succeed("site", "status", sites / "d").stdout
    assert f"key of d {told['key']}" in " ".join(said.split())
    again = document("site", "rotate-key", sites / "d")
    assert [key for _, key, *_ in document("site", "status", sites / "d")["rotations"]] == [
        told["key"],
        again["key"],
    ]
    stolen = ("site", "rotate-key", sites / "d", "--stolen")
    new = document(*stolen)
    assert document(*stolen) == new and not new["announced"]
    assert "authority in person" in succeed(*stolen).stdout
    line = ("federation", "revoke", "d", "--to", new["key"], "--by", sites / "d", "--key")
    officer.chmod(0o640)
    refused = fail(5, *line, officer)
    assert "mode 640" in refused["found"] and f"chmod 600 {officer}" in refused["fix"]
    officer.chmod(0o600)
    assert "authority" in fail(2, *line, sites / "d" / "site.key")["expected"]
    assert "authority" in fail(2, *line, sites / "a" / "site.key")["expected"]
    for stolen_key, to in ((new["key"], new["key"]), (first, first), ("", "AAAA")):
        options = ["--to", to, "--stolen", stolen_key] if stolen_key else ["--to", to]
        fail(5, *line[:3], *options, *line[5:], officer)
    document(*line, officer)
    there = document("site", "status", sites / "d")
    assert there["key"] == new["key"] and there["rotations"][-1][2] == "officer"
    fail(5, *line, officer)
    document("site", "forget", sites / "d", "--yes")
    assert "forgotten" in fail(2, "site", "rotate-key", sites / "d")["found"]


def test_a_model_of_a_package_runs_only_where_a_site_allows_it(sites, monkeypatch):
    """Its import leaves a trace, then fails: so nothing that reads terms imports it unseen."""
    trace, packages = sites / "imported", sites / "packages"
    provide(packages, monkeypatch, theirs="their_models:Theirs")
    code = f"import pathlib\npathlib.Path({str(trace)!r}).touch()\n"
    (packages / "their_models.py").write_text(code + "raise RuntimeError('imported')\n")
    terms, site, store = (sites / name for name in ("federation.toml", "a/site.toml", "a/site.db"))
    model = ["--model", "theirs", "--package", "acme", "--package-version"]
    options = [f"--member={site}={key}" for site, key in PUBLIC.items()]
    options += ["--prior", sites / "prior.safetensors", "--name", "coins", "-o", terms]
    document("federation", "new", *options, *model, "1.0")
    init = ("site", "init", sites / "a", "--federation", terms)
    (sites / "certificate.json").write_text("{}")
    store.unlink()
    (sites / "a/site.key").unlink()
    KEYS["a"].save(sites / "a/site.key")
    fail(5, "verify", sites / "certificate.json", "--federation", terms)
    error = fail(2, *init)
    assert "not allowed" in error["found"] and 'allow = { "acme" = "1.0" }' in error["fix"]
    fail(5, "site", "status", sites / "a")  # no store yet
    with site.open("a") as file:
        file.write('[models]\nallow = { "acme" = "1.1" }\n')
    assert "not allowed" in fail(2, *init)["found"]
    site.write_text(site.read_text().replace("1.1", "1.0"))
    document("federation", "new", *options, *model, "1.1")
    assert "not allowed" in fail(2, *init)["found"]
    site.write_text(site.read_text().replace("1.0", "1.1"))
    assert "in version '1.0'" in fail(2, *init)["found"]
    site.write_text(site.read_text().replace("1.1", "1.0"))
    document("federation", "new", *options, *model[:1], "others", *model[2:], "1.0")
    assert "model.kind = 'others'" in fail(2, *init)["found"]
    document("inspect", sites / "prior.safetensors")
    assert not trace.exists()
    document("federation", "new", *options, *model, "1.0")
    assert "RuntimeError('imported')" in fail(2, *init)["found"]
    assert trace.exists()


def test_an_import_path_in_terms_is_no_model(sites):
    terms = sites / "federation.toml"
    written = terms.read_text()
    for path in (
        'kind = "os:system"',
        'path = "os:system"',
        'kind = "posterity.models:BetaBernoulli"',
    ):
        options = f'options = {{ command = "touch {sites / "owned"}" }}'
        terms.write_text(written.replace('kind = "beta-bernoulli"', f"{path}\n{options}"))
        (sites / "c.json").write_text("{}")
        fail(2, "site", "init", sites / "a", "--federation", terms)
        fail(2, "verify", sites / "c.json", "--federation", terms)
    assert not (sites / "owned").exists()


@contextlib.contextmanager
def started(line, environment, stdout=None):
    process = subprocess.Popen(line, env=environment, text=True, stdout=stdout)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_an_agent_is_alone_on_its_folder_and_writes_a_new_log_once_the_old_is_rotated(sites):
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    (sites / "b").chmod(0o755)
    done = subprocess.run([*RUN, sites / "b"], capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and "chmod 700" in done.stderr
    log = sites / "log"
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(started([*RUN, sites / "a", "--log", log], environment))
        socket, deadline = sites / "a" / "site.sock", time.monotonic() + 60
        while not socket.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        with Client(socket) as client:
            assert client.ask("status")[0]["running"] is not None
        done = subprocess.run([*RUN, sites / "a"], capture_output=True, text=True, env=environment)
        assert done.returncode == 2 and f"process ID {process.pid}, which runs" in done.stderr
        assert f"kill {process.pid}" in done.stderr
        log.rename(sites / "log.1")
        process.send_signal(signal.SIGHUP)
        begun = document("site", "begin", sites / "a")
        assert begun["running"] is not None and begun["epoch"] == [1, "a"]
        assert document("site", "status", sites / "a")["running"] is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert document("site", "status", sites / "a")["running"] is None
    assert json.loads((sites / "log.1").read_text().splitlines()[0])["event"] == "started"
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert "started" not in events and "begun" in events and events[-1] == "stopped"


def test_records_of_a_table_are_in_the_order_of_the_prior(tmp_path):
    prior = Gaussian.from_standard(np.zeros(3), np.eye(3)).named(["intercept", "age", "dose"])
    posterity.save(prior, "prior.safetensors")
    Path("n.csv").write_text("dose,ill,age\n1,0,50\n2,1,60\n3,1,70\n")
    line = ("site", "init", "n", "--name", "n", "--data", "n.csv", "--target", "ill")
    key = document(*line, "--intercept")["key"]
    line = ("federation", "new", "--name", "one", "--model", "logistic-regression")
    document(*line, "--prior", "prior.safetensors", "--member", f"n={key}", "-o", "federation.toml")
    document("site", "init", "n", "--federation", "federation.toml")
    from posterity.cli.deployment import read_site

    x, y = read_site(configuration(Path("n"))).machine().site.records.data
    assert np.array_equal(x, [[1, 50, 1], [1, 60, 2], [1, 70, 3]]) and list(y) == [0, 1, 1]


def test_new_terms_are_taken_over_with_the_store(sites):
    document("site", "begin", sites / "a")
    line = ("federation", "new", sites / "federation.toml", "--seed", "5", "-o", "new.toml")
    digest = document(*line)["digest"]
    assert document("site", "init", sites / "a", "--federation", "new.toml")["digest"] == digest
    there = document("site", "status", sites / "a")
    assert there["terms"] == digest and there["highest"] == 1 and not there["counted"]
    other = Path("other.toml").write_text(
        (sites / "federation.toml").read_text().replace('"coins"', '"else"')
    )
    assert other
    result = call("site", "init", sites / "a", "--federation", "other.toml", "--epoch", "9")
    assert result.exit_code == 5


def test_the_member_that_an_order_is_about_is_asked_for_first():
    assert fail(2, "federation", "revoke")["expected"] == "the member whose key was stolen"
    assert fail(2, "federation", "forget")["expected"] == "the member to be forgotten"
    assert fail(2, "federation", "revoke", "d")["found"] == "no to"


def test_documents_come_back_as_they_were_written():
    from posterity.cli.options import read

    values = {
        "name": 'a "name" \\ of \u2603 \x7f\n',
        "members": {"a b": "x=", "c.d": "y="},
        "links": [["a b", "c.d"]],
        "padding": False,
        "seed": -3,
        "tolerance": 1e-7,
        "model.kind": "a:b",
        "model.options": {"nested": {"list": [1, 2.5, True]}},
        "prior.file": "folder/prior.safetensors",
    }
    text = as_toml("federation-file", values, Path())
    Path("f.toml").write_text(text)
    assert dict(read("federation-file", {}, Path("f.toml")).values) == values
