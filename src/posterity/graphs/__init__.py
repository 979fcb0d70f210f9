"""Graphs of sites, random walks of tokens over them, and the times that walks take."""

from posterity.graphs.constructors import complete, grid, random_regular, ring, star
from posterity.graphs.times import cover_times, hitting_times, sampled_cover_time
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
    "grid",
    "hitting_times",
    "positions",
    "random_regular",
    "ring",
    "sampled_cover_time",
    "star",
]
