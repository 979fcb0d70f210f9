"""The picture of a matching: what is drawn where, and what is refused."""

import sys
from inspect import unwrap

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from pictures import shows_data

import posterity
from posterity import (
    DiagonalGaussian,
    Dirichlet,
    Distillation,
    Fusion,
    Plate,
    Product,
    distillation,
)
from posterity import status as statuses
from posterity.distillation import Head, Student
from posterity.errors import ArtifactError, MissingExtraError, PosterityError, UsageError
from posterity.families import Mixture
from posterity.fusion.alignment import Alignment
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Rule
from posterity.networks import Layers
from posterity.pursuit import Pursuit, Row
from posterity.reporting.plots import plot_distillation, plot_matching, plot_pursuit
from posterity.reporting.plots.canvas import INK, ORANGE, PALE, finish
from posterity.reporting.plots.matches import COLOURS, Kind, read
from posterity.status import Status

pytestmark = pytest.mark.filterwarnings("ignore:The matching.* is uncertain:UserWarning")

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


def legend(figure):
    return [text.get_text().split(":")[0] for text in figure.axes[0].get_legend().get_texts()]


def columns(figure):
    """Values of the images in each column, from above."""
    cells: dict[float, list[tuple[float, float]]] = {}
    for image in figure.axes[0].images:
        left, right, _, top = image.get_extent()
        cells.setdefault(round((left + right) / 2, 3), []).append(
            (top, float(np.mean(image.get_array())))
        )
    return [[value for _, value in sorted(cells[x])] for x in sorted(cells)]


def coloured(figure, kind):
    """Patches of a kind's colour."""
    axes = figure.axes[0]
    return [p for p in axes.patches if COLOURS[kind] in map(to_hex, (p.get_fc(), p.get_ec()))]


# --- a row a site --------------------------------------------------------------------------------


def test_each_component_lies_below_what_it_became(fusion, images):
    figure = plot_matching(fusion, images=images, fused_images=fused_images(fusion))
    drawn = columns(figure)
    assert len(drawn) == fusion.components == SIZE
    assert sum(map(len, drawn)) == SIZE + sum(map(len, MEANS.values()))
    for fused, *local in drawn:
        assert fused == pytest.approx(np.mean(local), abs=0.1)
        assert np.ptp(local) < 0.2
    # What is matched comes first, and what is not lies apart.
    assert [len(column) - 1 for column in drawn] == [3, 2, 1, 1]
    assert "at one\nsite only" in texts(figure)
    assert list(rows(figure).values()) == ["found at", "north", "south", "west", "fused"]


def test_without_images_cells_have_the_numbers_at_the_site(fusion):
    figure = plot_matching(fusion)
    cells = [t for t in figure.axes[0].texts if t.get_text() in "012" and t.get_position()[1] > 0]
    found = {(t.get_position()[1], t.get_text()): t.get_position()[0] for t in cells}
    north, south, west = (y for y, name in rows(figure).items() if name in MEANS)
    # Nine is the second component in the north, and the first elsewhere.
    assert found[north, "1"] == found[south, "0"] == found[west, "0"]
    assert len(cells) == len(found) == 7 and not figure.axes[0].images
    assert {"3/3", "2/3", "1/3"} <= set(texts(figure))


def test_strength_of_each_match_is_seen():
    figure = plot_matching(three(evidence={2: 1.5, 3: 0.0, 4: 8.0}, weights=[1.0, 2.0, 5.0]))
    count = {kind: len(coloured(figure, kind)) for kind in Kind}
    assert count == {
        Kind.FIRM: 2,
        Kind.LIKELY: 1,
        Kind.AMBIGUOUS: 1,
        Kind.ALONE: 1,
        Kind.ABSENT: 4,
        Kind.UNKNOWN: 0,
    }
    assert legend(figure) == [
        "firm",
        "likely",
        "doubtful",
        "no other site has it",
        "the site has none",
    ]
    note = texts(figure)[-1].replace("\n", " ")
    assert "The next best number of components, 2, is 1.5 nats worse: doubtful." in note
    assert {"12%", "25%", "62%", "held\nno data"} <= set(texts(figure))
    no_data = found({"a": [0, 1], "b": [0, 1]}, {"a": [9, 9], "b": [9, 9]})
    assert "held\nno data" not in texts(plot_matching(no_data))


def test_a_doubtful_picture_has_a_broken_frame(images):
    pictures = {site: np.ones((len(own), 2, 2)) for site, own in three().matching.items()}
    frames = coloured(plot_matching(three(), images=pictures), Kind.AMBIGUOUS)
    assert [(frame.get_linestyle(), frame.get_fill()) for frame in frames] == [((0, (2, 1)), False)]


def test_two_components_of_a_site_share_a_cell():
    twice = found({"a": [0, 0], "b": [0]}, {"a": [20.0, 1.0], "b": [20.0]})
    figure = plot_matching(twice)
    assert "0,1" in texts(figure)
    # The weaker of them is seen.
    assert len(coloured(figure, Kind.AMBIGUOUS)) == 1
    pictures = {"a": np.ones((2, 3, 3)), "b": np.ones((1, 3, 3))}
    assert len(plot_matching(twice, images=pictures).axes[0].images) == 3


def test_names_are_written_in_their_order_and_titles_small_below():
    names = ["zebra", "ant\n90 %", "a name that takes several lines"]
    figure = plot_matching(three(), names=names, title="Animals\nCounted at night.")
    place = {t.get_text(): t.get_position()[0] for t in figure.axes[0].texts}
    # The last component is one site's only, and lies apart.
    assert place["ant"] < place["zebra"] < place["a name that"] == place["takes"]
    assert figure.axes[0].get_title(loc="left") == "Animals"
    assert "Counted at night." in texts(figure)[-1].replace("\n", " ")


def test_numbers_in_names_are_sorted_as_numbers():
    labels = np.arange(12)
    fusion = found({"a": labels, "b": labels}, {"a": labels, "b": labels})
    for names in (None, [f"{12 - g}" for g in range(12)]):
        drawn = plot_matching(fusion, names=names).axes[0].texts
        place = {t.get_text(): t.get_position()[0] for t in drawn}
        assert place["2"] < place["10"]


# --- many sites ----------------------------------------------------------------------------------


def many(sites, components=6):
    key = np.random.default_rng(0)
    chance = np.append(1.0, np.full(components - 1, 0.6))
    held = key.random((sites, components)) < chance
    labels = {f"s{i}": np.flatnonzero(row) for i, row in enumerate(held)}
    labels["s0"] = np.append(np.arange(components), -1)
    margins = {site: np.where(own < 0, np.nan, 3.0 * own) for site, own in labels.items()}
    return found(labels, margins, weights=np.ones(components))


@pytest.mark.parametrize(("sites", "lines"), [(40, 40), (300, 0)])
def test_many_sites_are_counted_in_bars_by_strength(sites, lines):
    fusion = many(sites)
    figure = plot_matching(fusion)
    matches = read(fusion.plate)
    names = list(rows(figure).values())
    assert f"all {sites}" in names and len(names) == lines + 5  # share, found at, 0, half and all
    # A thin line a site, coloured where it has the component, or held no data.
    absent = to_rgb(COLOURS[Kind.ABSENT])
    drawn = [(image.get_array() != absent).any((1, 2)).sum() for image in figure.axes[0].images]
    assert sorted(drawn) == sorted([*matches.holders, (matches.idle > 0).sum()])
    # Bars stand on one foot, as high as there are sites of their colour.
    height = {name: y for y, name in rows(figure).items()}
    foot, top = height["0 sites"], height[f"all {sites}"]
    bars = [p for p in coloured(figure, Kind.AMBIGUOUS) if p.get_y() < foot]
    heights = [round(bar.get_height() / (foot - top) * sites) for bar in bars]
    doubtful = (matches.kinds == Kind.AMBIGUOUS).sum(0)
    assert sorted(heights) == sorted(doubtful)
    (idle,) = (p for p in figure.axes[0].patches if p.get_x() + 0.4 > 6 and top < p.get_y() < foot)
    assert to_hex(idle.get_fc()) == PALE
    assert idle.get_height() == pytest.approx((foot - top) / sites)


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
        with pytest.raises(UsageError, match=r"were matched\. Draw no picture"):
            plot_matching(rates, plate=named)
    with pytest.raises(UsageError, match="Leave the plate out"):
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
    with pytest.raises(UsageError, match="every component of every site"):
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


def distilled(gaps, tolerance=0.01, drift=0.004):
    """A distillation of which the trace and the status are known."""
    trace = [distillation.Row(10 * (n + 1), gap, 1.0) for n, gap in enumerate(gaps)]
    status = statuses.Status.of(gaps[-1], tolerance)
    layers, probe = Layers.dense(1, 2), np.zeros((1, 1))
    student = Student(layers, np.zeros(layers.size), Head("categorical", 2))
    return Distillation(
        student,
        status,
        tuple(trace),
        probe,
        student.predict(probe),
        trace[-1].step,
        drift,
        temperature=None,
        posterior=None,
    )


def lines(figure):
    """Of each line its places, by its colour."""
    return {to_hex(line.get_color()): line.get_data() for line in figure.axes[0].get_lines()}


def test_a_picture_of_closing_in_shows_trace_tolerance_and_error():
    figure = plot_distillation(distilled([1.0, 0.1, 0.005]))
    axes, found = figure.axes[0], lines(figure)
    drawn = axes.get_lines()[0].get_data()
    assert np.allclose(drawn, [[10, 20, 30], [1.0, 0.1, 0.005]])
    assert np.allclose(found[INK][1], 0.01)
    assert np.allclose(found[ORANGE][1], 0.001), "a quarter of the drift"
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_title(loc="left") == ("Converged: 0.005 nats from its teacher after 30 steps")
    told = " ".join(text.get_text() for text in axes.texts)
    assert "tolerance, 0.01 nats" in told and "own average, 0.001 nats" in told
    low, high = axes.get_ylim()
    assert low < 0.001 and high > 1


def test_a_picture_of_a_trace_alone():
    trace = distilled([1.0, 0.5]).trace
    title = plot_distillation(distilled([1.0, 0.5])).axes[0].get_title(loc="left")
    assert title.startswith("Not converged: 0.5 nats")
    figure = plot_distillation(trace, title="so far")
    assert figure.axes[0].get_title(loc="left") == "so far"
    assert INK not in lines(figure)
    own = Figure().add_subplot()
    assert plot_distillation(trace, ax=own) is own.figure


@pytest.mark.parametrize("gaps", [[0.0], [0.5, 0.0], [1e-30, 1e-31], [1e-3] * 3])
def test_a_gap_of_nothing_can_be_drawn(gaps, tmp_path):
    path = tmp_path / "convergence.png"
    for drift in (0.0, np.inf, 1.0):
        figure = plot_distillation(distilled(gaps, drift=drift), path if drift == 1 else None)
        low, high = figure.axes[0].get_ylim()
        assert 0 < low < 0.01 < high < np.inf
    assert path.exists() if gaps == [0.0] else shows_data(path)


@pytest.mark.parametrize("plot", [plot_distillation, plot_pursuit])
def test_no_picture_of_no_trace(plot, tmp_path):
    nan = [distillation.Row(1, np.nan, 1.0)], [Row(1, np.nan, *[0.1, 1.0] * 4)]
    for trace in ([], nan[plot is plot_pursuit]):
        with pytest.raises(UsageError, match="a trace of"):
            plot(trace)
    with pytest.raises(UsageError, match="its extension is not a picture's"):
        plot_distillation(distilled([1.0]), tmp_path / "convergence.gif")


def grown(*gains, polished=False, state="converged"):
    """A pursuit of which the trace and the status are known."""
    rows, elbo = [Row(1, -3.0, 0.1, -3.0, 0.1, 1.0, 1.0, 1.4, 1.0, 100)], -3.0
    for count, gain in enumerate(gains, 2):
        elbo += gain
        rows.append(Row(count, elbo, 0.05, gain, 0.01, 0.3, 1.7, 1.9, 0.8 * count, 100 * count))
        if polished:
            rows.append(rows[-1]._replace(gain=0.02, alpha=np.nan))
    posterior = Mixture.from_standard([1.0], DiagonalGaussian.from_standard([[0.0]], [[1.0]]))
    return Pursuit(posterior, Status(state, 0.1, 0.2), tuple(rows))


def test_a_picture_of_growth_shows_the_trace():
    figure = plot_pursuit(grown(1.0, 0.2, polished=True))
    assert figure.get_suptitle() == "Converged: ELBO -1.8 ± 0.05 nats with 3 components"
    elbo, gain, alpha, effective = figure.axes
    drawn = {line.get_marker(): line.get_data() for line in elbo.get_lines()}
    assert np.allclose(drawn["o"], [[1, 2, 3], [-3.0, -2.0, -1.8]])
    assert np.allclose(drawn["D"], [[2, 3], [-2.0, -1.8]])
    drawn = {line.get_marker(): line.get_data() for line in gain.get_lines()}
    assert np.allclose(drawn["o"], [[2, 3], [1.0, 0.2]]), "there was nothing before the first"
    assert np.allclose(drawn["D"], [[2, 3], [0.02, 0.02]])
    assert gain.get_yscale() == "log"
    assert [text.get_text() for text in alpha.texts] == ["λ 1", "λ 1.7", "λ 1.7"]
    (points,) = [line for line in alpha.get_lines() if line.get_marker() == "o"]
    assert np.allclose(points.get_data(), [[1, 2, 3], [1.0, 0.3, 0.3]])
    (points,) = [line for line in effective.get_lines() if line.get_marker() == "o"]
    assert np.allclose(points.get_data(), [[1, 2, 3], [1.0, 1.6, 2.4]])


@pytest.mark.parametrize("gains", [(), (-0.1,), (1e-9, 0.0), (50.0, 1e-12)])
def test_growth_of_nothing_can_be_drawn(gains, tmp_path):
    path = tmp_path / "grown.png" if gains in ((), (50.0, 1e-12)) else None
    figure = plot_pursuit(grown(*gains, state="not converged"), path)
    assert figure.get_suptitle().startswith("Not converged: ")
    assert path is None or shows_data(path)
    assert plot_pursuit(grown(*gains).trace, title="so far").get_suptitle() == "so far"
