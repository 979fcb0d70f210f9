"""Mixtures grown by maximum entropy (egorov2019): densities, regressions, tasks in a row."""

from pathlib import Path

from experiments.harness import CACHES

RESULTS = Path(__file__).parent / "results"
CACHE = CACHES / "pursuit"
