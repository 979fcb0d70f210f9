"""Configurations of federations and sites: what they say, and what is refused."""

from pathlib import Path

import pytest
from engine.coins import PRIOR
from engine.keys import KEYS, PUBLIC

import posterity
from posterity.cli.deployment import read_site, read_terms
from posterity.errors import PosterityError, UsageError

FEDERATION = f"""
name = "coins"
links = [["a", "b"], ["b", "c"], ["c", "d"]]

[members]
{"".join(f'{site} = "{key}"' + chr(10) for site, key in PUBLIC.items())}
[model]
kind = "beta-bernoulli"

[prior]
file = "prior.safetensors"

[limits]
pseudo_counts = 1000
"""
SITE = """
name = "b"
federation = "federation.toml"
key = "site.key"
store = "site.db"

[data]
path = "engine.records:coins"
options = { heads = 3, tails = 2 }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    posterity.save(PRIOR, tmp_path / "prior.safetensors")
    KEYS["b"].save(tmp_path / "site.key")
    (tmp_path / "federation.toml").write_text(FEDERATION)
    (tmp_path / "site.toml").write_text(SITE)
    return tmp_path


def test_a_site_has_its_records_and_its_key(folder):
    site = read_site(folder / "site.toml")
    machine = site.machine()
    assert (site.name, site.store) == ("b", folder / "site.db")
    assert (machine.site.records.size, machine.key) == (5, KEYS["b"])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "coins"', "", "no name"),
        ('name = "coins"', "name = 3", "name = 3"),
        ('name = "coins"', 'name = "coins"\nowner = "us"', "owner, which is unknown"),
        ("[limits]", "[limits]\npatients = 3", "limits.patients, which is unknown"),
        ("pseudo_counts = 1000", "pseudo_counts = -1", "limits.pseudo_counts = -1"),
        ("pseudo_counts = 1000", "bytes = 0.5", "limits.bytes = 0.5"),
        ('["c", "d"]]', '["c"]]', "a pair"),
        ('["c", "d"]]', '["c", "z"]]', "links"),
        ("beta-bernoulli", "os:system", "model.kind"),
        ("[prior]", "[update]\nsteps = 1\n[prior]", ""),
        ("prior.safetensors", "missing.safetensors", "missing.safetensors"),
        ("[members]", "[members]\ne = 3", "members.e = 3"),
        ("[members]", '[members]\ne = "?"', "base64"),
        ("[members]", "[members", "TOML"),
    ],
)
def test_terms_with_something_wrong_are_refused_by_name(folder, old, new, words):
    assert old in FEDERATION
    (folder / "federation.toml").write_text(FEDERATION.replace(old, new))
    if not words:
        read_terms(folder / "federation.toml")
        return
    with pytest.raises(PosterityError) as error:
        read_terms(folder / "federation.toml")
    assert words in str(error.value) and "federation.toml" in str(error.value)
    assert error.value.found and error.value.expected


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "b"', 'name = "e"', "name = 'e'"),
        ('name = "b"', 'name = "a"', "a key file"),
        ("site.key", "other.key", "other.key"),
        ("engine.records:coins", "engine.records:dice", "data.path"),
        ("tails = 2", "tails = 2, edges = 1", "edges"),
        ("heads = 3, ", "", "data"),
        ("[data]", "[data]\nrows = 3", "data.rows, which is unknown"),
    ],
)
def test_sites_with_something_wrong_are_refused_by_name(folder, old, new, words):
    assert old in SITE
    (folder / "site.toml").write_text(SITE.replace(old, new))
    with pytest.raises(PosterityError) as error:
        read_site(folder / "site.toml").machine()
    assert words in str(error.value)


def test_records_that_are_not_the_models_are_refused(folder, monkeypatch):
    monkeypatch.setattr("engine.records.coins", lambda **options: "coins")
    with pytest.raises((PosterityError, UsageError)):
        read_site(folder / "site.toml").machine()
