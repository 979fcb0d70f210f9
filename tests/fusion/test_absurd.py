"""Clusters so far apart that any other answer than the true one is absurd, whoever holds what."""

import numpy as np
import pytest

from posterity import fuse
from tests.fusion.clusters import MAKERS, Held, plates

pytestmark = [
    pytest.mark.filterwarnings("ignore::posterity.errors.IdentificationWarning"),
    pytest.mark.filterwarnings("ignore::posterity.errors.FusionWarning"),
]

COUNTED = ["NormalWishart", "NormalGamma", "Gamma", "Dirichlet"]
"""Families of which something says how far sites may well be apart, for two sites already."""
SHIFTS = [0.0, 0.3]
DIMENSIONS = {family: [2, 10] for family in MAKERS} | {"Gamma": [1], "Gaussian": [2, 4]}
"""Full covariances in ten dimensions hide how far a handful of components lie apart."""
EVERYWHERE = [(family, d) for family, dimensions in DIMENSIONS.items() for d in dimensions]


def scattered(sites: int, size: int, groups: int, seed: int) -> list[list[int]]:
    """So many of all groups at each site."""
    rng = np.random.default_rng(seed)
    held = [rng.choice(groups, size, replace=False) for _ in range(sites)]
    names = {int(g): k for k, g in enumerate(np.unique(held))}
    return [[names[int(g)] for g in site] for site in held]


CASES: dict[str, Held] = {
    "two sites share one of three": [[0, 1], [1, 2]],
    "two sites share nothing": [[0, 1], [2, 3]],
    "nine single components of three": [[k % 3] for k in range(9)],
    "an outlier at one of five": [[0, 1, 2]] * 4 + [[0, 1, 2, 3]],
    "the same three at two": [[0, 1, 2]] * 2,
    "the same three at three": [[0, 1, 2]] * 3,
    "the same three at ten": [[0, 1, 2]] * 10,
}


def assert_right(sites: dict, held: Held, shift: float) -> None:
    """Right, and not doubted where sites do not differ."""
    fused = fuse(sites)
    found = fused.plate.labels.tolist()
    true = [cluster for site in held for cluster in site]
    assert len(set(zip(found, true, strict=True))) == len(set(true)) == len(set(found))
    assert shift or not fused.doubts


CHOSEN = [(case, *where, SHIFTS[k % 2]) for case in CASES for k, where in enumerate(EVERYWHERE)]
OTHERS = [(case, *where, SHIFTS[~k % 2]) for case in CASES for k, where in enumerate(EVERYWHERE)]


@pytest.mark.parametrize(
    ("case", "family", "dimension", "shift"),
    [*CHOSEN, *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHERS)],
)
def test_what_is_plain_is_found(case: str, family: str, dimension: int, shift: float) -> None:
    held = CASES[case]
    if len(held) == 2 and family not in COUNTED:
        held = [*held, *held]  # nothing else says how far sites may well be apart
    assert_right(plates(family, held, dimension=dimension, shift=shift, seed=0), held, shift)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize(
    ("family", "dimension"), [pair for pair in EVERYWHERE if pair[0] in COUNTED]
)
def test_fifty_records_against_fifty_thousand(family: str, dimension: int, shift: float) -> None:
    held = [[0, 1, 2]] * 2
    sites = plates(family, held, dimension=dimension, shift=shift, seed=0, records=[50, 50_000])
    assert_right(sites, held, shift)


@pytest.mark.parametrize("shift", [0.0, 0.3])
@pytest.mark.parametrize("dimension", [2, 10])
@pytest.mark.parametrize("family", ["NormalWishart", "NormalGamma"])
def test_ten_of_a_hundred_at_twenty_sites(family: str, dimension: int, shift: float) -> None:
    held = scattered(20, 10, 100, seed=0)
    assert_right(plates(family, held, dimension=dimension, shift=shift, seed=1), held, shift)


@pytest.mark.parametrize("family", MAKERS)
def test_clusters_that_no_site_has_two_of_stay_apart_in_a_crowd(family: str) -> None:
    """Each of sixty sites has one of three: as many as halves that are put together."""
    held = [[k % 3] for k in range(60)]
    assert_right(plates(family, held, dimension=2, shift=0.3, seed=0), held, 0.3)
