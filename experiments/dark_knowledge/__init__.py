"""Bayesian dark knowledge: tables 2, 3 and 5 and figures 1 and 2 of korattikara2015, and beyond."""

from pathlib import Path

from experiments.harness import CACHES

RESULTS = Path(__file__).parent / "results"
CACHE = CACHES / "dark_knowledge"
