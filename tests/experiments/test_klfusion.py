"""A small version of figures 2 and 3: every part runs, and says what it should."""

import json
from pathlib import Path

import numpy as np
import pytest
from pictures import shows_data

from experiments.harness import Place
from experiments.klfusion import gmm
from experiments.klfusion.gmm import METHODS, OURS, dp_clustering, hausdorff, size_error
from experiments.klfusion.local_fits import POINTS, generate
from experiments.klfusion.published import klfusion_released
from experiments.klfusion.spahm import spahm

pytestmark = [
    pytest.mark.filterwarnings("ignore::posterity.errors.FusionWarning"),
    pytest.mark.filterwarnings("ignore::posterity.errors.IdentificationWarning"),
    pytest.mark.filterwarnings("ignore::posterity.errors.FusionWarning"),
]


def test_generated_problems_are_what_the_process_says() -> None:
    problem = generate(np.random.default_rng(0), separation=0.5, heterogeneity=0.3)
    assert problem.presence.shape == (10, len(problem.means))
    assert (problem.presence.sum(1) >= 2).all() and problem.presence.any(0).all()
    assert problem.pooled.shape == (3000, 2)
    assert (np.linalg.eigvalsh(problem.covariances) > 0).all()


def test_metrics() -> None:
    true = np.array([[0.0, 0.0], [3.0, 4.0]])
    assert hausdorff(true[::-1], true) == 0.0
    assert hausdorff(true[:1], true) == 5.0 == hausdorff(true, true[:1])
    assert size_error(np.zeros((5, 2)), true) == 3


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """Two repetitions at two points, with the methods that are quick."""
    folder = tmp_path_factory.mktemp("klfusion")
    points = [POINTS[5], POINTS[6]]
    quick = {"SPAHM": spahm, "DP clustering": dp_clustering}
    patch = pytest.MonkeyPatch()
    patch.setattr(gmm, "METHODS", quick)
    place = Place(folder / "results", folder / "cache")
    found = gmm.run(place, repetitions=2, processes=1, _points=points)
    patch.undo()
    return folder / "results", found


@pytest.mark.experiment
def test_results_are_written_by_the_run(summary: tuple[Path, dict]) -> None:
    folder, found = summary
    assert found.items() <= json.loads((folder / "expected.json").read_text()).items()
    assert found["repetitions a point"] == 2
    for errors in found["points"].values():
        assert set(errors) == {gmm.ORACLE, "SPAHM", "DP clustering", *OURS}
        assert errors["posterity"]["hausdorff"]["mean"] < 3
    for figure in (2, 3):
        assert shows_data(folder / f"figure{figure}.png")


def test_published_method_runs_and_is_registered() -> None:
    assert METHODS["KL-fusion as released"] is klfusion_released
