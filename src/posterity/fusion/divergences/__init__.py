"""How far components are apart other than by a direction of KL, and what is in their middle."""

from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.divergences.jensen import Jeffreys, Renyi

__all__ = ["Discrepancy", "Jeffreys", "Renyi"]
