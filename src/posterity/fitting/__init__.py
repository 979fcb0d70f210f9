"""A site's file from a table of its records: what ``posterity fit`` does."""

from posterity.artifact.provenance import check_same, recipe_in
from posterity.fitting.fit import Fit, fit
from posterity.fitting.recipe import Recipe

__all__ = ["Fit", "Recipe", "check_same", "fit", "recipe_in"]
