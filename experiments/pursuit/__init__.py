"""Mixtures grown by maximum entropy (egorov2019): densities, regressions, tasks in a row."""
