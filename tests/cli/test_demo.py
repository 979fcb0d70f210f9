"""The demo reaches its goal from files alone, and leaves what it says it leaves."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.commands import document, fail

import posterity
from posterity.cli import demo
from tests.pictures import shows_data

pytestmark = pytest.mark.filterwarnings("ignore:.* are known from fewer records:UserWarning")

GOAL = 0.95
"""Of the mutual information of a fit to all images, on average over deals."""
SEEDS = 2


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The document of each seed."""
    folder = tmp_path_factory.mktemp("demo")
    return [document("demo", "-o", folder / str(seed), "--seed", seed) for seed in range(SEEDS)]


@pytest.mark.slow
def test_fusing_files_comes_close_to_pooling_data(reports):
    assert np.mean([report["ratio"] for report in reports]) >= GOAL
    for report in reports:
        sites, fused = report["sites"].values(), report["fused"]
        assert fused["mutual_information"] > 1.2 * max(row["mutual_information"] for row in sites)
        # The number of components is found: not the union's, and enough for ten digits.
        assert 10 <= fused["components"] < sum(row["components"] for row in sites) / 2
        # No site has seen all digits, and every digit is somewhere.
        assert all(4 <= len(row["digits"]) <= 6 for row in sites)
        assert {digit for row in sites for digit in row["digits"]} == set(range(10))
        assert sum(row["images"] for row in sites) == fused["images"] == 1347


@pytest.mark.slow
def test_files_are_what_was_fused(reports):
    folder, files = Path(reports[0]["folder"]), reports[0]["files"]
    assert {path.name for path in folder.iterdir()} == set(files)
    assert set(demo.FILES) < set(files)
    assert "fused components" in (folder / "matching.html").read_text()
    fused = posterity.load(folder / "fused.safetensors")
    assert list(fused.sites) == [f"site-{letter}" for letter in "abcdef"]
    # Any site can be taken out again.
    assert "site-b" not in fused.forget("site-b").sites
    seen = posterity.inspect(folder / "site-a.safetensors").provenance["digits"]
    assert seen == " ".join(map(str, reports[0]["sites"]["site-a"]["digits"]))


@pytest.mark.slow
def test_people_programs_and_the_file_are_told_the_same(reports, capsys):
    from rich.console import Console

    report = reports[0]
    written = json.loads((Path(report["folder"]) / "report.json").read_text())
    assert written.items() <= report.items()
    Console(width=120).print(demo._report(report))
    page = capsys.readouterr().out
    assert f"{report['fused']['mutual_information']:.3f}" in page
    assert "site-f" in page and f"{report['ratio']:.0%}" in page
    # Each file is named, and what it is.
    listed = page.split("Wrote to the folder")[1].splitlines()[1:]
    assert sorted(line.split()[0] for line in listed if len(line.split()) > 3) == report["files"]


def test_deals_each_image_once():
    data, other = demo.deal(0, 4), demo.deal(1, 3)
    assert list(data.images) == ["site-a", "site-b", "site-c", "site-d"]
    both = [np.concatenate([*deal.images.values(), deal.held_out]) for deal in (data, other)]
    np.testing.assert_array_equal(*(np.sort(images, axis=0) for images in both))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    assert "Not a directory" in fail(5, "demo", "-o", tmp_path / "file" / "folder")["found"]


def test_missing_library_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert "posterity[demo]" in fail(7, "demo", "-o", tmp_path)["fix"]


@pytest.mark.slow
def test_the_picture_in_the_pages_is_of_such_files(reports, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: posterity[demo]")
    from PIL import Image

    from examples import matching

    ledgers, fusion = matching.fused(Path(reports[0]["folder"]))
    path = tmp_path / "matching.png"
    matching.draw(ledgers, fusion, path)
    pictures: list[Any] = [Image.open(each) for each in (path, matching.PICTURE)]
    found, committed = (json.loads(each.text["Description"]) for each in pictures)
    assert list(found) == list(committed) == list(ledgers)
    assert found == {site: labels.tolist() for site, labels in fusion.matching.items()}
    assert shows_data(path) and shows_data(matching.PICTURE)
