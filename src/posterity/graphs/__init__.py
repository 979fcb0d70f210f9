"""Who can hand a token to whom: graphs of sites, walks over them, and how long walks take."""

from posterity.graphs.constructors import complete, grid, random_regular, ring, star
from posterity.graphs.times import (
    cover_times,
    expected_cover_time,
    expected_hitting_time,
    hitting_times,
)
from posterity.graphs.topology import Network
from posterity.graphs.walks import (
    MetropolisHastings,
    NonBacktracking,
    Walk,
    WeightedMetropolisHastings,
    positions,
)

__all__ = [
    "MetropolisHastings",
    "Network",
    "NonBacktracking",
    "Walk",
    "WeightedMetropolisHastings",
    "complete",
    "cover_times",
    "expected_cover_time",
    "expected_hitting_time",
    "grid",
    "hitting_times",
    "positions",
    "random_regular",
    "ring",
    "star",
]
