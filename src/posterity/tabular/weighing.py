"""Weights of records, and groups of records that depend on each other."""

from typing import Any

import numpy as np

from posterity.tabular.identifiers import NAMED, clusters, groups_of
from posterity.tabular.options import SAMPLING
from posterity.tabular.reading import ALONE
from posterity.tabular.recipe import Recipe
from posterity.tabular.tables.reader import Cells, table_error


def weighted(
    recipe: Recipe, weights: np.ndarray | None, cells: Cells
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Return weights (n,) of records, and notes: counts as they are, and those of sampling with
    the sum of Kish's effective number of records (kish1965).
    """
    name = recipe.weights
    if weights is None or not len(weights):
        return weights, ()
    if recipe.weighting == SAMPLING:
        size = weights.sum() ** 2 / (weights**2).sum()
        note = (
            f"weights {name!r} of sampling: {len(weights)} records are worth {size:.4g} equal ones"
        )
        return weights * (size / weights.sum()), (note,)
    broken = weights != np.round(weights)
    if broken.any():
        at = np.argmax(broken)
        raise table_error(
            cells.path,
            f"weight {weights[at]:g} in line {cells.lines[at]}, column {name!r}, which is no "
            "number of equal records",
            "whole numbers, or weights of a survey or of inverse probabilities by their name",
            "Fit with --weights sampling, which gives sandwich covariances; or, of a linear model "
            "whose noise varies as known, divide target and columns by its deviation instead.",
        )
    if recipe.weighting is not None or not (weights > 1).any():
        return weights, ()
    return weights, (
        f"{name!r} is read as numbers of equal records: {len(weights)} rows count as "
        f"{weights.sum():.6g}; say --weights counts, or of a survey --weights sampling",
    )


def dependent(recipe: Recipe, cells: Cells) -> dict[str, Any]:
    """Return the groups of dependent records, if any, and columns that may be of clusters."""
    if recipe.cluster:
        return {"groups": groups_of([text.strip() for text in cells.column(recipe.cluster)])}
    roles = {getattr(recipe, role) for role in ALONE} | recipe.categories.keys()
    covariates = recipe.columns or ()
    if recipe.weights and recipe.weighting != SAMPLING:
        # A row of counts stands for all records of its values.
        roles |= {name for name in covariates if not NAMED.fullmatch(name)}
    others = [name for name in cells.header if name and name not in roles]
    groups = np.arange(len(cells.rows)) if recipe.robust else None
    return {"groups": groups, "suspects": dict(clusters(cells, others, covariates))}
