"""Graphs of sites, random walks of tokens over them, and the times that walks take."""

from posterity.graphs.constructors import complete, grid, random_regular, ring, star
from posterity.graphs.times import cover_times, sampled_cover_time
from posterity.graphs.topology import Network
from posterity.graphs.walks import (
    MetropolisHastings,
    NonBacktracking,
    Walk,
    WeightedMetropolisHastings,
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
    "random_regular",
    "ring",
    "sampled_cover_time",
    "star",
]
