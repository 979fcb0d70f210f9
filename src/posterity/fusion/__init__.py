"""Fusion of posteriors: geometry, matching, rules, and the verb ``fuse``."""

from posterity.fusion.fuse import fuse
from posterity.fusion.geometry import Divergence, barycenter, kl_matrix
from posterity.fusion.matching import Matching, Rule
from posterity.fusion.result import Fusion

__all__ = ["Divergence", "Fusion", "Matching", "Rule", "barycenter", "fuse", "kl_matrix"]
