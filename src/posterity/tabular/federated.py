"""The arguments of a federation of tables: records, prior and spreads by the names of columns."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.artifact.aligned import names_in, ordered
from posterity.entries import dependent, with_factors
from posterity.errors import StructureError
from posterity.families.names import some
from posterity.ledger import Ledger
from posterity.models import PredictorModel
from posterity.models.sandwich import sandwiched, slopes_of_groups
from posterity.models.tables import SPREAD, by_column, columns_of, with_columns
from posterity.tabular.fitting import prior_of
from posterity.tabular.multicentre import Columns, differing, personal_of
from posterity.tabular.pooled import spreads_of
from posterity.tabular.recipe import Recipe
from posterity.tabular.reconcile import prior_digest
from posterity.tabular.records import Table, in_one_order
from posterity.tabular.rows import Design


def robust_ledger(
    ledger: Ledger, model: Any, data: Mapping[str, Any], designs: Mapping[str, Design]
) -> Ledger:
    """Return a ledger whose factors together have a sandwich covariance, of slopes at their mean;
    none is independent. Factors of sites without records stay as they are.

    Args:
        ledger: ledger of a federation.
        model: its model.
        data: inputs and targets by site, with columns in the order of the ledger's coefficients.
        designs: by site, the design that has the groups of its records.
    """
    posterior: Any = ledger.posterior
    sites = [site for site in ledger.sites if site in designs and len(designs[site].x)]
    slopes = [
        slopes_of_groups(model, posterior.mean, data[site], designs[site].groups) for site in sites
    ]
    if not sites:
        return ledger
    made = sandwiched({site: ledger.factor(site) for site in sites}, np.concatenate(slopes))

    def own(site: str, factor: Any) -> Any:
        return made.get(site, factor)

    return ledger.holding(dependent(with_factors(ledger.entries, own)))


class Arranged(NamedTuple):
    """Data by site, and a prior, in one order of columns with ``names``.

    ``personal`` is the argument of :func:`posterity.federate`. ``recipe`` tells the prior if that
    was given.
    """

    data: dict[str, Any]
    names: tuple[str, ...]
    prior: Any
    personal: Any
    recipe: Recipe | None
    notes: tuple[str, ...]


def arranged(
    tables: Mapping[str, Table],
    model: Any,
    prior: Any,
    recipe: Recipe | None = None,
    *,
    given: bool = False,
    names: Sequence[str] = (),
    target: str | None = None,
    personal: Columns = None,
) -> Arranged:
    """Return the records of all sites, the prior and the personal columns in one order of columns.

    Args:
        tables: records by site, with columns in orders of their own.
        model: the model of the records.
        prior: its prior, whose coefficients may be in another order, or have no names.
        recipe: recipe of the tables, if they have one.
        given: whether the prior is another than that which the recipe describes.
        names: names of the columns, in order; by default the prior's, or the first site's.
        target: name of the target, by default ``y``.
        personal: columns whose coefficients differ between sites.

    Raises:
        StructureError: for a prior of another size or order, and columns that differ.
        UsageError: for personal columns that are none, or occur twice.
    """
    if recipe and recipe.own and given:
        recipe = dataclasses.replace(recipe, prior_sd={}, prior=prior_digest(prior))
        prior = prior_of(next(iter(tables.values())).names, recipe, prior)
    regression = isinstance(model, PredictorModel)
    leading = recipe and (recipe.baseline or recipe.own)  # in place of one intercept, or several
    wanted = names or columns_of(prior)
    columns = in_one_order(tables, wanted, target, regression and not leading)
    names = columns.names
    size = getattr(prior, "own_size", 0)
    by_columns = by_column(prior, len(names))
    unfit = regression and names and size != len(names) and not by_columns
    found = f"a prior of {size} coefficients for {len(names)} columns {some(names)}"
    fix = "Use a prior of this size; if one column is the target, set model.target."
    of_classes = recipe.coefficients() if recipe and recipe.model == "multinomial" else names
    in_turn = f"those of each class in the model's order, {some(of_classes)}"
    StructureError.check(
        (unfit, found, "a coefficient for each column, in this order", fix),
        (of_classes != names, f"a prior or ledger of coefficients {some(names)}", in_turn),
    )
    order = dict.fromkeys(by_columns, names)
    prior = with_columns(ordered(prior, order, "the prior", "the records"), names)
    if recipe and given and not recipe.own:
        recipe = dataclasses.replace(recipe, prior_sd={}, prior=prior_digest(prior))
    chosen = personal_of(personal, names)
    if SPREAD in names_in(prior):  # one spread for each column that differs between sites
        spreads = differing(chosen, names)
        prior = ordered(prior, {SPREAD: spreads}, "the prior", "model.personal")
    elif recipe is not None:
        chosen = spreads_of(chosen, recipe, names)
    return Arranged(columns.data, names, prior, chosen, recipe, columns.notes)
