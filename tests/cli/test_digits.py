"""The demo reaches its goal from files alone, and leaves what it says it leaves."""

import dataclasses
import io
import json
import sys

import numpy as np
import pytest
from rich.console import Console

import posterity
from posterity.adapters.sklearn import to_estimator
from posterity.cli import digits as demo
from posterity.errors import ArtifactError, MissingExtraError, UsageError

GOAL = 0.95
"""Of the mutual information of a fit to all images, on average over deals."""
SEEDS = 5


def silent():
    return Console(file=io.StringIO())


def study(folder, seeds):
    """A report for each seed."""
    return [demo.run(folder / str(seed), seed=seed, console=silent()) for seed in range(seeds)]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return study(tmp_path_factory.mktemp("demo"), SEEDS)


def test_fusing_files_comes_close_to_pooling_data(reports):
    assert np.mean([report.ratio for report in reports]) >= GOAL
    for report in reports:
        sites = [row.mutual_information for row in report.sites]
        assert report.fused.mutual_information > 1.2 * max(sites)
        assert report.fused.log_density > max(row.log_density for row in report.sites) + 2
        assert report.fused.log_density > report.pooled.log_density - 1
        # The number of components is found: not the union's, and enough for ten digits.
        assert 10 <= report.fused.components < sum(row.components for row in report.sites) / 2


def test_no_site_has_seen_all_digits_and_every_digit_is_somewhere(reports):
    for report in reports:
        assert all(4 <= len(row.digits) <= 6 for row in report.sites)
        assert {digit for row in report.sites for digit in row.digits} == set(range(10))
        assert sum(row.images for row in report.sites) == report.fused.images == 1347


def test_files_are_what_was_fused(reports):
    folder = reports[0].folder
    sites = [f"site-{letter}" for letter in "abcdef"]
    files = {f"{name}.safetensors" for name in [*sites, "fused"]} | {"matching.png", "report.json"}
    assert {path.name for path in folder.iterdir()} == files

    fused = posterity.load(folder / "fused.safetensors")
    assert list(fused.sites) == sites
    # Any site can be taken out again.
    assert fused.forget("site-b").sites == (*sites[:1], *sites[2:])
    seen = posterity.inspect(folder / "site-a.safetensors").provenance["digits"]
    assert seen == " ".join(map(str, reports[0].sites[0].digits))
    data = demo.deal(0, 6)
    assert to_estimator(fused).predict(data.held_out).shape == data.truth.shape


def test_report_tells_the_same_to_people_and_programs(reports):
    report = reports[0]
    written = json.loads((report.folder / "report.json").read_text())
    assert written == json.loads(report.to_json())
    assert written["fused"] == dataclasses.asdict(report.fused)
    page = io.StringIO()
    Console(file=page, width=120).print(report.table())
    assert f"{report.fused.mutual_information:.3f}" in page.getvalue()
    assert "site-f" in page.getvalue() and f"{report.ratio:.0%}" in page.getvalue()


def test_deals_each_image_once():
    data = demo.deal(0, 4)
    assert list(data.seen) == ["site-a", "site-b", "site-c", "site-d"]
    everything = np.concatenate([data.together, data.held_out])
    again = np.concatenate([demo.deal(1, 3).together, demo.deal(1, 3).held_out])
    assert everything.shape == again.shape
    np.testing.assert_array_equal(np.sort(everything, axis=0), np.sort(again, axis=0))


def test_a_picture_is_the_image_up_to_brightness_and_detail():
    # An image of low frequencies only survives the map; its lightness is filled in.
    x = np.arange(8) + 0.5
    image = 0.3 * np.cos(np.pi * x / 8)[:, None] * np.cos(2 * np.pi * x / 8) + demo.INK
    pixels = demo.pictures(demo.features(image[None]), side=8)
    np.testing.assert_allclose(pixels[0], image, atol=1e-12)
    assert demo.pictures(demo.features(image[None])).shape == (1, 32, 32)


@pytest.mark.parametrize("sites", [1, 27])
def test_number_of_sites_is_checked(sites, tmp_path):
    with pytest.raises(UsageError, match=f"{sites} sites; expected 2 to 26"):
        demo.run(tmp_path, sites=sites)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot be made"):
        demo.run(tmp_path / "file" / "folder")


@pytest.mark.parametrize("module", ["sklearn", "matplotlib"])
def test_missing_library_names_the_extra(module, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"posterity\[demo\]"):
        demo.run(tmp_path)
