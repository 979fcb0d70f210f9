"""Tables of records: recipes, fits of a site's table to a file, and predictions from files."""

from typing import TYPE_CHECKING

from posterity.runtime.lazy import exports

if TYPE_CHECKING:
    from posterity.tabular.fitting import Fit as Fit
    from posterity.tabular.fitting import fit as fit
    from posterity.tabular.fitting import imputed as imputed
    from posterity.tabular.reading import Reading as Reading
    from posterity.tabular.recipe import Recipe as Recipe
    from posterity.tabular.recipe import recipe_in as recipe_in
    from posterity.tabular.reconcile import check_same as check_same
    from posterity.tabular.reconcile import reconciled as reconciled

_HOMES = {
    "estimators": (),
    "fitting": ("Fit", "fit", "imputed"),
    "reading": ("Reading",),
    "recipe": ("Recipe", "recipe_in"),
    "reconcile": ("check_same", "reconciled"),
    "tables": (),
}
__getattr__, __dir__ = exports(__name__, _HOMES)
