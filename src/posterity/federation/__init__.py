"""Federated inference: one posterior, improved by sites whose data stay where they are."""

from typing import TYPE_CHECKING

from posterity.federation.agreement import Agreement
from posterity.federation.driver import Federation
from posterity.federation.federate import federate, start
from posterity.federation.forget import Forgotten, forget
from posterity.federation.gossip import Gossip, LedgerGossip, SiteState, turn
from posterity.federation.keys import site_key, step_key
from posterity.federation.messages import Report, Token
from posterity.federation.run import Run
from posterity.federation.schedules import Asynchronous, Machine, Schedule, Sequential, Synchronous
from posterity.federation.site import Site
from posterity.federation.state import Visit
from posterity.federation.status import Certificate, certify, status_from
from posterity.lazy import exports
from posterity.status import Status

if TYPE_CHECKING:
    from posterity.federation.personal import SitePosterior, site_posterior

__getattr__, __dir__ = exports(__name__, {"personal": ("SitePosterior", "site_posterior")})

__all__ = [
    "Agreement",
    "Asynchronous",
    "Certificate",
    "Federation",
    "Forgotten",
    "Gossip",
    "LedgerGossip",
    "Machine",
    "Report",
    "Run",
    "Schedule",
    "Sequential",
    "Site",
    "SitePosterior",
    "SiteState",
    "Status",
    "Synchronous",
    "Token",
    "Visit",
    "certify",
    "federate",
    "forget",
    "site_key",
    "site_posterior",
    "start",
    "status_from",
    "step_key",
    "turn",
]
