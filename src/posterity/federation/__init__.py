"""Federated inference: one posterior, improved by sites whose data stay where they are."""

from posterity.federation.estimators import (
    BonnetPrice,
    ClosedForm,
    Estimator,
    Exact,
    LeastSquares,
    PredictorQuadrature,
    Quadrature,
    Reinforce,
    Reparameterization,
    VariationalOnlineNewton,
    best_estimator,
)
from posterity.federation.federate import federate
from posterity.federation.forget import Forgotten, certify, forget
from posterity.federation.gossip import Gossip, Token
from posterity.federation.grid import Grid
from posterity.federation.many_tokens import LedgerGossip
from posterity.federation.network import Network, complete, grid, random_regular, ring, star
from posterity.federation.run import Run
from posterity.federation.schedules import Asynchronous, Schedule, Sequential, Synchronous
from posterity.federation.simulate import Leave, Simulation, simulate
from posterity.federation.state import Visit
from posterity.federation.times import (
    cover_times,
    expected_cover_time,
    expected_hitting_time,
    hitting_times,
)
from posterity.federation.update import LocalUpdate
from posterity.federation.walks import (
    MetropolisHastings,
    NonBacktracking,
    Walk,
    WeightedMetropolisHastings,
    positions,
)

__all__ = [
    "Asynchronous",
    "BonnetPrice",
    "ClosedForm",
    "Estimator",
    "Exact",
    "Forgotten",
    "Gossip",
    "Grid",
    "LeastSquares",
    "Leave",
    "LedgerGossip",
    "LocalUpdate",
    "MetropolisHastings",
    "Network",
    "NonBacktracking",
    "PredictorQuadrature",
    "Quadrature",
    "Reinforce",
    "Reparameterization",
    "Run",
    "Schedule",
    "Sequential",
    "Simulation",
    "Synchronous",
    "Token",
    "VariationalOnlineNewton",
    "Visit",
    "Walk",
    "WeightedMetropolisHastings",
    "best_estimator",
    "certify",
    "complete",
    "cover_times",
    "expected_cover_time",
    "expected_hitting_time",
    "federate",
    "forget",
    "grid",
    "hitting_times",
    "positions",
    "random_regular",
    "ring",
    "simulate",
    "star",
]
