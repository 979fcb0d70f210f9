"""Fusing Bayesian neural networks: section 5.2 of the paper, and deeper networks."""
