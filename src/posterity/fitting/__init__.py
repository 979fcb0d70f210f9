"""Fitting of a site's table of records to a file, and prediction from files."""

from posterity.artifact.recipe import Recipe as Recipe
from posterity.artifact.recipe import recipe_in as recipe_in
from posterity.artifact.reconcile import check_same as check_same
from posterity.artifact.reconcile import reconciled as reconciled
from posterity.fitting.fit import Fit as Fit
from posterity.fitting.fit import fit as fit
from posterity.fitting.fit import imputed as imputed
from posterity.fitting.reading import Reading as Reading
