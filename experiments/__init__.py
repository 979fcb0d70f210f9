"""Reproductions of published experiments, one folder a paper."""
