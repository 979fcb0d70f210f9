"""The picture of a matching: what is drawn where, and what is refused."""

import itertools
import sys
from inspect import unwrap

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import posterity
from posterity import (
    DiagonalGaussian,
    Dirichlet,
    Fusion,
    Plate,
    Product,
)
from posterity.errors import ArtifactError, MissingExtraError, PosterityError, UsageError
from posterity.fusion.alignment import Alignment
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Rule
from posterity.reporting.plots import plot_matching
from posterity.reporting.plots.canvas import finish
from posterity.reporting.plots.matches import COLOURS, Kind, read
from posterity.reporting.plots.matching import Layout

pytestmark = pytest.mark.filterwarnings("ignore::posterity.errors.IdentificationWarning")

MEANS = {"north": [0.0, 9.0], "south": [9.1, 4.0, 0.1], "west": [9.05, 25.0]}
SIZE = 4
"""Components: 9 of three sites, 0 of two, 4 and 25 of one."""


def plate(means):
    means = np.array(means)[:, None]
    return Plate(DiagonalGaussian.from_standard(means, np.full(means.shape, 0.01)))


def found(matching, margins, evidence=None, weights=None):
    """A fusion of which everything is known."""
    matching = {site: np.array(own) for site, own in matching.items()}
    size = 1 + max(int(own.max()) for own in matching.values())
    alignment = Alignment(matching, size, 0.0, ())
    strength = {site: np.array(own, float) for site, own in margins.items()}
    alignment.__dict__.update(margins=strength, components_evidence=evidence or {})
    shares = None if weights is None else Dirichlet.from_standard(np.array(weights, float))
    fused = Plate(plate(range(size)).members, shares)
    return Fusion(fused, None, {"": alignment}, Rule.BARYCENTER, Divergence.REVERSE)


def three(**options):
    """A doubtful match, a likely one, two firm ones, one that is alone, one that held no data."""
    matching = {"a": [0, 1, -1], "b": [1, 0], "c": [2]}
    nan = np.nan
    return found(matching, {"a": [2.0, 50.0, nan], "b": [np.inf, 5.0], "c": [nan]}, **options)


@pytest.fixture(scope="module")
def fusion():
    return posterity.fuse({site: plate(means) for site, means in MEANS.items()})


@pytest.fixture
def images():
    # Each image carries its mean, so that a cell tells which component it shows.
    return {site: np.array(means)[:, None, None] * np.ones((4, 3)) for site, means in MEANS.items()}


def fused_images(fusion):
    return fusion.posterior.members.mean[:, :, None] * np.ones((4, 3))


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def rows(figure):
    """Names on the left, by height."""
    axes = figure.axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    return dict(zip(axes.get_yticks(), names, strict=True))


def heads(figure):
    """The lines above each column: its name, how many sites have it, and its share."""
    return [label.get_text().split("\n") for label in figure.axes[0].get_xticklabels()]


def legend(figure):
    return [text.get_text().split(":")[0] for text in figure.axes[0].get_legend().get_texts()]


def note(figure):
    return figure.axes[0].get_legend().get_title().get_text().replace("\n", " ")


def painted(figure):
    """Kinds of the cells, by row and column."""
    return np.asarray(figure.axes[0].collections[0].get_array())


def columns(figure):
    """Values of the images in each column, from above."""
    cells: dict[float, list[tuple[float, float]]] = {}
    for image in figure.axes[0].images:
        left, right, _, top = image.get_extent()
        cells.setdefault(round((left + right) / 2, 3), []).append(
            (top, float(np.mean(image.get_array())))
        )
    return [[value for _, value in sorted(cells[x])] for x in sorted(cells)]


# --- a row a site --------------------------------------------------------------------------------


def test_each_component_lies_below_what_it_became(fusion, images):
    figure = plot_matching(fusion, images=images, fused_images=fused_images(fusion))
    drawn = columns(figure)
    assert len(drawn) == fusion.components == SIZE
    assert sum(map(len, drawn)) == SIZE + sum(map(len, MEANS.values()))
    for fused, *local in drawn:
        assert fused == pytest.approx(np.mean(local), abs=0.1)
        assert np.ptp(local) < 0.2
    # What is matched comes first.
    assert [len(column) - 1 for column in drawn] == [3, 2, 1, 1]
    assert [lines[1] for lines in heads(figure)] == ["3/3", "2/3", "1/3", "1/3"]
    assert list(rows(figure).values()) == ["north", "south", "west"]


def test_without_images_cells_have_the_numbers_at_the_site(fusion):
    figure = plot_matching(fusion)
    cells = figure.axes[0].texts
    found = {(t.get_position()[1], t.get_text()): t.get_position()[0] for t in cells}
    north, south, west = (y for y, name in rows(figure).items() if name in MEANS)
    # Nine is the second component in the north, and the first elsewhere.
    assert found[north, "1"] == found[south, "0"] == found[west, "0"]
    assert len(cells) == len(found) == 7 and not figure.axes[0].images


def test_strength_of_each_match_is_seen():
    figure = plot_matching(three(evidence={2: 1.5, 3: 0.0, 4: 8.0}, weights=[1.0, 2.0, 5.0]))
    names = [Kind(kind).name for kind in painted(figure).ravel()]
    assert names == [
        *("AMBIGUOUS", "FIRM", "ABSENT"),
        *("LIKELY", "FIRM", "ABSENT"),
        *("ABSENT", "ABSENT", "ALONE"),
    ]
    cells = figure.axes[0].collections[0]
    assert [to_hex(cells.cmap(cells.norm(kind))) for kind in Kind] == list(COLOURS.values())
    assert legend(figure) == [
        "firm",
        "likely",
        "doubtful",
        "no other site has it",
        "the site has none",
    ]
    assert "The next best number of components, 2, is 1.5 nats worse: doubtful." in note(figure)
    assert [lines[-1] for lines in heads(figure)] == ["12%", "25%", "62%"]
    assert list(rows(figure).values()) == ["a (1 held no data)", "b", "c"]


def test_two_components_of_a_site_share_a_cell():
    twice = found({"a": [0, 0], "b": [0]}, {"a": [20.0, 1.0], "b": [20.0]})
    figure = plot_matching(twice)
    assert "0,1" in texts(figure)
    # The weaker of them is seen.
    assert painted(figure).tolist() == [[Kind.AMBIGUOUS], [Kind.FIRM]]
    pictures = {"a": np.ones((2, 3, 3)), "b": np.ones((1, 3, 3))}
    assert len(plot_matching(twice, images=pictures).axes[0].images) == 3


def test_names_are_written_in_their_order_and_titles_small_below():
    names = ["zebra", "ant\n90 %", "a name that takes several lines"]
    figure = plot_matching(three(), names=names, title="Animals\nCounted at night.")
    drawn = ["\n".join(lines[:-1]) for lines in heads(figure)]
    # The last component is one site's only.
    assert drawn == ["ant\n90 %", "zebra", "a name that\ntakes\nseveral\nlines"]
    assert figure.axes[0].get_title(loc="left") == "Animals"
    assert "Counted at night." in note(figure)


def test_numbers_in_names_are_sorted_as_numbers():
    labels = np.arange(12)
    fusion = found({"a": labels, "b": labels}, {"a": labels, "b": labels})
    for names in (None, [f"{12 - g}" for g in range(12)]):
        drawn = [name for name, _ in heads(plot_matching(fusion, names=names))]
        assert drawn.index("2") < drawn.index("10")


# --- many sites ----------------------------------------------------------------------------------


def many(sites, components=6):
    key = np.random.default_rng(0)
    chance = np.append(1.0, np.full(components - 1, 0.6))
    held = key.random((sites, components)) < chance
    labels = {f"s{i}": np.flatnonzero(row) for i, row in enumerate(held)}
    labels["s0"] = np.append(np.arange(components), -1)
    margins = {site: np.where(own < 0, np.nan, 3.0 * own) for site, own in labels.items()}
    return found(labels, margins, weights=np.ones(components))


def test_many_sites_are_thin_lines_of_which_those_alike_are_adjacent():
    fusion = many(40)
    figure = plot_matching(fusion)
    matches = read(fusion.plate)
    cells = painted(figure)
    np.testing.assert_array_equal(np.sort(cells, 0), np.sort(matches.kinds, 0))
    held = [tuple(row) for row in (cells > Kind.ABSENT).tolist()]
    changes = sum(one != other for one, other in itertools.pairwise(held))
    assert changes == len(set(held)) - 1 < 39
    assert not rows(figure) and not texts(figure)
    assert [lines[1] for lines in heads(figure)] == [f"{n}/40" for n in matches.holders]
    assert len(painted(plot_matching(fusion, layout=Layout(lines=20)))) == 20


def test_a_layout_sets_sizes(fusion, images):
    small = Layout(column=1.5, row=1.0, widest=5.0, highest=2.0, letters=3, named=2, image=0.5)
    figure = plot_matching(fusion, names=["abcd"] + ["x"] * 3, images=images, layout=small)
    assert not figure.axes[0].images and figure.get_size_inches().tolist() == [6.5, 4.5]
    assert ["abc", "d"] in [lines[:2] for lines in heads(figure)]
    (image, *_) = plot_matching(fusion, images=images, layout=Layout(image=0.5)).axes[0].images
    left, right, _, _ = image.get_extent()
    assert right - left == 0.5


# --- figures, plates and what is refused ---------------------------------------------------------


def test_one_plate_of_several_is_named():
    sites = {site: Product({"a": plate(means), "b": plate(means)}) for site, means in MEANS.items()}
    fusion = posterity.fuse(sites)
    with pytest.raises(UsageError, match=r"plate=None; expected one of"):
        plot_matching(fusion)
    assert plot_matching(fusion, plate="a").axes
    with pytest.raises(UsageError, match=r"plate=.c.; expected one of"):
        plot_matching(fusion, plate="c")


def test_what_has_no_plate_has_no_picture(fusion):
    rates = posterity.fuse([posterity.Gamma.from_standard(2.0, r) for r in (1.0, 3.0)])
    for named in (None, "a"):
        with pytest.raises(UsageError, match=r"were matched.*draw no picture"):
            plot_matching(rates, plate=named)
    with pytest.raises(UsageError, match="leave it out if there is but one"):
        plot_matching(fusion, plate="a")


def test_images_and_names_that_do_not_fit_are_refused(fusion, images):
    with pytest.raises(UsageError, match=r"2 fused images.*expected 4 fused images"):
        plot_matching(fusion, images=images, fused_images=fused_images(fusion)[:2])
    with pytest.raises(UsageError, match=r"2 names, .*; expected 4 texts"):
        plot_matching(fusion, names=["a", "b"])
    draw = unwrap(plot_matching)  # what annotations forbid is passed all the same
    with pytest.raises(UsageError, match=r"names, \[0, 1, 2, 3\]; expected 4 texts"):
        draw(fusion, names=[0, 1, 2, 3])
    with pytest.raises(UsageError, match=r"of shapes .*\(4, 4\)"):
        draw(fusion, images=images, fused_images=fused_images(fusion)[:, :, 0])
    with pytest.raises(UsageError, match=r"of shapes \['list'"):
        draw(fusion, images=images | {"north": images["north"].tolist()})
    del images["west"]
    with pytest.raises(UsageError, match="'west': 2}, each of shape"):
        plot_matching(fusion, images=images)


@pytest.mark.parametrize("name", ["missing/folder.png", "picture.gif", "picture", "folder.png"])
def test_paths_that_cannot_be_written_are_refused(fusion, tmp_path, name):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(PosterityError, match="cannot be written"):
        plot_matching(fusion, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_an_old_picture_is_kept_if_the_disk_is_full(tmp_path, monkeypatch):
    old, no_space = tmp_path / "old.png", OSError(28, "No space left on device")
    old.write_bytes(b"old")
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(no_space))
    with pytest.raises(ArtifactError, match="No space left"):
        finish(Figure(), old)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_pictures_are_saved_drawn_into_axes_and_need_the_extra(fusion, tmp_path, monkeypatch):
    axes, path = Figure().add_subplot(), tmp_path / "matching.png"
    assert plot_matching(fusion, path, ax=axes) is axes.figure
    assert path.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"posterity\[plots\]"):
        plot_matching(fusion)
