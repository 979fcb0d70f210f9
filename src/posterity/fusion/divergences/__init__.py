"""How far components are apart other than by a direction of KL, and what is in their middle."""

from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.divergences.jeffreys import Jeffreys
from posterity.fusion.divergences.renyi import Renyi
from posterity.fusion.divergences.transport import OptimalTransport
from posterity.fusion.divergences.wasserstein import Wasserstein

__all__ = ["Discrepancy", "Jeffreys", "OptimalTransport", "Renyi", "Wasserstein"]
