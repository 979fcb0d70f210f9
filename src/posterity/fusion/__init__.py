"""Fusing posteriors: geometry, matching, rules, and the verb."""

from posterity.fusion.fuse import fuse
from posterity.fusion.geometry import Divergence, kl_matrix
from posterity.fusion.matching import Matching
from posterity.fusion.result import Fusion
from posterity.fusion.rules import Rule, barycenter

__all__ = ["Divergence", "Fusion", "Matching", "Rule", "barycenter", "fuse", "kl_matrix"]
