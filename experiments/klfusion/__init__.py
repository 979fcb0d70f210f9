"""Experiments of Claici, Yurochkin, Ghosh, Solomon, "Model Fusion with KL Divergence" (2020)."""
