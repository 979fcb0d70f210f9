"""The picture of a matching: what is drawn where, and what is refused."""

import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

import posterity
from posterity import DiagonalGaussian, Plate, Product
from posterity.errors import MissingExtraError, UsageError
from posterity.plots import plot_matching

KEY = np.random.default_rng(0)
MEANS = {"north": [0.0, 9.0], "south": [9.1, 4.0, 0.1], "west": [4.1, 9.05]}


def plate(means):
    means = np.array(means)[:, None]
    return Plate(DiagonalGaussian.from_standard(means, np.full(means.shape, 0.01)))


@pytest.fixture
def fusion():
    return posterity.fuse({site: plate(means) for site, means in MEANS.items()})


@pytest.fixture
def images():
    # Each image carries its mean, so that a cell tells which component it shows.
    return {site: np.array(means)[:, None, None] * np.ones((4, 3)) for site, means in MEANS.items()}


def fused_images(fusion):
    return fusion.posterior.members.mean[:, :, None] * np.ones((4, 3))


def cells(axes):
    """Mean of the image in each cell, by column and row."""
    return {
        (round(np.mean(image.get_extent()[:2])), round(np.mean(image.get_extent()[2:]))): float(
            np.mean(image.get_array())
        )
        for image in axes.images
    }


def test_each_component_lies_below_what_it_became(fusion, images):
    figure = plot_matching(fusion, images, fused_images(fusion), title="sites")
    (axes,) = figure.axes
    found = cells(axes)
    assert len(found) == fusion.components + sum(map(len, MEANS.values()))
    for column in range(fusion.components):
        local = [found[column, row] for row in (1, 2, 3) if (column, row) in found]
        assert found[column, 0] == pytest.approx(np.mean(local), abs=0.1)
        assert np.ptp(local) < 0.2
    # A frame a cell, filled where the site lacks the component.
    assert len(axes.patches) == 4 * fusion.components
    assert sum(patch.get_fill() for patch in axes.patches) == 4 * fusion.components - len(found)


def test_labels_name_sites_and_count_holders(fusion, images):
    (axes,) = plot_matching(fusion, images, fused_images(fusion)).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fused", *sorted(MEANS)]
    counts = {label.get_text().split("\n")[1] for label in axes.get_xticklabels()}
    assert counts == {"2/3", "3/3"}


def test_unmatched_components_are_left_out(fusion, images):
    fusion.matching["north"][0] = -1
    (axes,) = plot_matching(fusion, images, fused_images(fusion)).axes
    assert len(cells(axes)) == fusion.components + 6


def test_saves_and_draws_into_given_axes(fusion, images, tmp_path):
    axes = Figure().add_subplot()
    path = tmp_path / "matching.png"
    assert plot_matching(fusion, images, fused_images(fusion), path, ax=axes) is axes.figure
    assert path.read_bytes().startswith(b"\x89PNG")


def test_one_plate_of_several_is_named(images):
    sites = {site: Product({"a": plate(means), "b": plate(means)}) for site, means in MEANS.items()}
    fusion = posterity.fuse(sites)
    pictures = fusion.posterior.blocks["a"].members.mean[:, :, None] * np.ones((4, 3))
    with pytest.raises(UsageError, match="2 plates"):
        plot_matching(fusion, images, pictures)
    assert plot_matching(fusion, images, pictures, plate="a").axes
    with pytest.raises(UsageError, match=r"plate=.c.; expected one of"):
        plot_matching(fusion, images, pictures, plate="c")


def test_images_that_do_not_fit_are_refused(fusion, images):
    with pytest.raises(UsageError, match=r"2 fused images.*expected 3 fused images"):
        plot_matching(fusion, images, fused_images(fusion)[:2])
    del images["west"]
    with pytest.raises(UsageError, match="every component of every site"):
        plot_matching(fusion, images, fused_images(fusion))


@pytest.mark.parametrize("name", ["missing/folder.png", "picture.nonsense"])
def test_paths_that_cannot_be_written_are_refused(fusion, images, tmp_path, name):
    with pytest.raises(UsageError, match="cannot be written"):
        plot_matching(fusion, images, fused_images(fusion), tmp_path / name)


def test_missing_library_names_the_extra(fusion, images, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"posterity\[plots\]"):
        plot_matching(fusion, images, fused_images(fusion))
