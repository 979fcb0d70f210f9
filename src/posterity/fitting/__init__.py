"""A site's file from a table of its records, and predictions from it."""

from posterity.artifact.recipe import Recipe, recipe_in
from posterity.artifact.reconcile import check_same, reconciled
from posterity.fitting.fit import Fit, fit, imputed
from posterity.fitting.reading import Reading

__all__ = ["Fit", "Reading", "Recipe", "check_same", "fit", "imputed", "recipe_in", "reconciled"]
