"""The demo reaches its goal from files alone, and leaves what it says it leaves."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from cli.commands import document, fail, succeed

import posterity
from posterity.adapters.sklearn import to_estimator
from posterity.cli import digits

GOAL = 0.95
"""Of the mutual information of a fit to all images, on average over deals."""
SEEDS = 3


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The document of each seed."""
    folder = tmp_path_factory.mktemp("demo")
    return [document("demo", "-o", folder / str(seed), "--seed", seed) for seed in range(SEEDS)]


def test_fusing_files_comes_close_to_pooling_data(reports):
    assert np.mean([report["ratio"] for report in reports]) >= GOAL
    for report in reports:
        sites, fused, pooled = report["sites"], report["fused"], report["pooled"]
        assert fused["mutual_information"] > 1.2 * max(row["mutual_information"] for row in sites)
        assert fused["log_density"] > max(row["log_density"] for row in sites) + 2
        assert fused["log_density"] > pooled["log_density"] - 1
        # The number of components is found: not the union's, and enough for ten digits.
        assert 10 <= fused["components"] < sum(row["components"] for row in sites) / 2


def test_no_site_has_seen_all_digits_and_every_digit_is_somewhere(reports):
    for report in reports:
        sites = report["sites"]
        assert all(4 <= len(row["digits"]) <= 6 for row in sites)
        assert {digit for row in sites for digit in row["digits"]} == set(range(10))
        assert sum(row["images"] for row in sites) == report["fused"]["images"] == 1347


def test_files_are_what_was_fused(reports):
    folder, files = Path(reports[0]["folder"]), reports[0]["files"]
    assert {path.name for path in folder.iterdir()} == set(files)
    assert {"matching.png", "report.json", "fused.safetensors"} < set(files)

    fused = posterity.load(folder / "fused.safetensors")
    assert list(fused.sites) == [f"site-{letter}" for letter in "abcdef"]
    # Any site can be taken out again.
    assert "site-b" not in fused.forget("site-b").sites
    seen = posterity.inspect(folder / "site-a.safetensors").provenance["digits"]
    assert seen == " ".join(map(str, reports[0]["sites"][0]["digits"]))
    data = digits.deal(0, 6)
    assert to_estimator(fused).predict(data.held_out).shape == data.truth.shape


def test_people_programs_and_the_file_are_told_the_same(reports, monkeypatch):
    report = reports[0]
    written = json.loads((Path(report["folder"]) / "report.json").read_text())
    assert written.items() <= report.items()
    monkeypatch.setattr(digits, "run", lambda output, seed: written)
    page = succeed("demo", COLUMNS="120").stdout
    assert f"{report['fused']['mutual_information']:.3f}" in page
    assert "site-f" in page and f"{report['ratio']:.0%}" in page
    assert all(file in page for file in report["files"]) and "folder posterity-demo" in page


def test_deals_each_image_once():
    data = digits.deal(0, 4)
    assert list(data.seen) == ["site-a", "site-b", "site-c", "site-d"]
    everything = np.concatenate([data.together, data.held_out])
    again = np.concatenate([digits.deal(1, 3).together, digits.deal(1, 3).held_out])
    assert everything.shape == again.shape
    np.testing.assert_array_equal(np.sort(everything, axis=0), np.sort(again, axis=0))


def test_a_picture_is_the_image_up_to_brightness_and_detail():
    # An image of low frequencies only survives the map; its lightness is filled in.
    x = np.arange(8) + 0.5
    image = 0.3 * np.cos(np.pi * x / 8)[:, None] * np.cos(2 * np.pi * x / 8) + digits.INK
    pixels = digits.pictures(digits.features(image[None]), side=8)
    np.testing.assert_allclose(pixels[0], image, atol=1e-12)
    assert digits.pictures(digits.features(image[None])).shape == (1, 32, 32)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be made" in fail(5, "demo", "-o", tmp_path / "file" / "folder")["found"]


@pytest.mark.parametrize("module", ["sklearn", "matplotlib"])
def test_missing_library_names_the_extra(module, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)
    assert "posterity[demo]" in fail(7, "demo", "-o", tmp_path)["fix"]
