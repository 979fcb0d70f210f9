"""KL-fusion in the setting of its own paper, kept for comparison (claici2020)."""

from posterity.fusion.kl_fusion.setting import Setting, kl_fusion

__all__ = ["Setting", "kl_fusion"]
