"""Files that stay as they are, their expected values, and readers in other languages."""

import importlib.util
import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import posterity
from posterity import Beta, Gaussian, Ledger
from posterity.errors import ArtifactError
from posterity.families import Product

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
FILES = EXPECTED["files"]
REFUSED = sorted(path.name for path in HERE.glob("refused-*.safetensors"))
SCHEMA = json.loads((HERE / f"manifest-{EXPECTED['format']}.schema.json").read_text())
READERS = {"R": ("Rscript", "ledger.R"), "JavaScript": ("node", "ledger.js")}


def manifest(name):
    content = (HERE / f"{name}.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["posterity"])


def run(language, path):
    program, script = READERS[language]
    if (found := shutil.which(program)) is None:
        pytest.skip(f"{program} is not installed: the reader in {language} is not run")
    return subprocess.run(
        [found, HERE / script, path],
        env={**os.environ, "LC_ALL": "C"},  # whatever the locale
        capture_output=True,
        encoding="utf-8",
        timeout=600,  # for a machine that is busy: it takes a tenth of a second
    )


@pytest.mark.parametrize("name", FILES)
def test_files_hold_what_is_expected_of_them(name):
    ledger, expected = posterity.load(HERE / f"{name}.safetensors"), FILES[name]
    assert ledger.sites == tuple(expected["sites"])
    law = ledger.posterior
    np.testing.assert_allclose(np.ravel(law.mean), expected["mean"], rtol=1e-12)
    if expected["names"] != ["z0"]:
        assert ledger.names == tuple(expected["names"])


@pytest.mark.parametrize("name", FILES)
def test_writing_gives_the_same_bytes_as_when_the_format_was_fixed(name, tmp_path):
    spec = importlib.util.spec_from_file_location("conformance_make", HERE / "make.py")
    assert spec is not None and spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    path = tmp_path / "again.safetensors"
    posterity.save(make.ledger(name), path, provenance={"of": "conformance"})
    assert path.read_bytes() == (HERE / f"{name}.safetensors").read_bytes()


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_are_not_of_the_format_are_refused(name):
    with pytest.raises(ArtifactError):
        posterity.load(HERE / name)


@pytest.mark.parametrize("name", FILES)
def test_manifests_are_of_the_schema(name):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    jsonschema.validate(manifest(name), SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest(name) | {"format": 3}, SCHEMA)


@pytest.mark.parametrize("language", READERS)
@pytest.mark.parametrize("name", FILES)
def test_other_languages_read_them(language, name):
    done = run(language, HERE / f"{name}.safetensors")
    assert done.returncode == 0, done.stderr
    sites, *rows = (line.split("\t") for line in done.stdout.splitlines())
    assert sites == ["sites", *FILES[name]["sites"]]
    labels, means, deviations = zip(*rows, strict=True)
    assert list(labels) == FILES[name]["names"]
    np.testing.assert_allclose(np.array(means, float), FILES[name]["mean"], rtol=1e-12)
    np.testing.assert_allclose(np.array(deviations, float), FILES[name]["sd"], rtol=1e-12)


@pytest.mark.parametrize("language", READERS)
def test_other_languages_refuse_another_version_and_half_a_file(language):
    for name in ("refused-format.safetensors", "refused-short.safetensors"):
        done = run(language, HERE / name)
        assert done.returncode != 0 and "refused" in done.stderr


@pytest.mark.parametrize("language", READERS)
def test_other_languages_read_names_of_all_letters(language, tmp_path):
    names = ["größe \U0001f600", 'a "quoted" \\ name']
    prior = Gaussian.from_standard(np.zeros(2), np.eye(2)).named(names)
    ledger = Ledger(prior).update("Zürich \U0001f3e5", Gaussian(np.ones(2), np.eye(2)))
    posterity.save(ledger, tmp_path / "names.safetensors")
    done = run(language, tmp_path / "names.safetensors")
    sites, *rows = (line.split("\t") for line in done.stdout.splitlines())
    assert sites == ["sites", "Zürich \U0001f3e5"] and [row[0] for row in rows] == names


@pytest.mark.parametrize("language", READERS)
def test_other_languages_refuse_what_they_do_not_know(language, tmp_path):
    law = Product(a=Beta(0.0, 0.0), b=Beta(0.0, 0.0))
    posterity.save(Ledger(law).update("north", law), tmp_path / "product.safetensors")
    posterity.save(law, tmp_path / "law.safetensors")
    save_file({"weights": np.zeros(2)}, tmp_path / "foreign.safetensors")
    for path in tmp_path.iterdir():
        done = run(language, path)
        assert done.returncode != 0 and "refused: " in done.stderr
