"""Bayesian dark knowledge: tables 2, 3 and 5 and figures 1 and 2 of korattikara2015, and beyond."""

from experiments.harness import Place

PLACE = Place.of(__file__, "dark_knowledge")
RESULTS, CACHE = PLACE.results, PLACE.cache
