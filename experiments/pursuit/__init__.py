"""Mixtures grown by maximum entropy (egorov2019): densities, regressions, tasks in a row."""

from experiments.harness import Place

PLACE = Place.of(__file__, "pursuit")
RESULTS, CACHE = PLACE.results, PLACE.cache
