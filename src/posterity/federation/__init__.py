"""Federated inference: one posterior, improved by sites whose data stay where they are."""

from posterity.federation.certificate import certify
from posterity.federation.federate import federate
from posterity.federation.forget import Forgotten, forget
from posterity.federation.gossip import Gossip, Token
from posterity.federation.personal import SitePosterior, site_posterior
from posterity.federation.run import Run
from posterity.federation.schedules import Asynchronous, Schedule, Sequential, Synchronous
from posterity.federation.several_tokens import LedgerGossip
from posterity.federation.simulate import Leave, Simulation, simulate
from posterity.federation.status import Status
from posterity.federation.visit import SiteProblem, Visit

__all__ = [
    "Asynchronous",
    "Forgotten",
    "Gossip",
    "Leave",
    "LedgerGossip",
    "Run",
    "Schedule",
    "Sequential",
    "Simulation",
    "SitePosterior",
    "SiteProblem",
    "Status",
    "Synchronous",
    "Token",
    "Visit",
    "certify",
    "federate",
    "forget",
    "simulate",
    "site_posterior",
]
