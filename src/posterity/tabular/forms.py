"""The coefficients of a recipe as an affine function of those of another, and laws under it."""

from typing import Any, NamedTuple

import numpy as np

from posterity.entries import with_factors
from posterity.errors import StructureError
from posterity.families.names import in_order, some, with_names
from posterity.ledger import Ledger
from posterity.models.strata import AT
from posterity.tabular.options import INTERCEPT
from posterity.tabular.recipe import Recipe


class Affine(NamedTuple):
    """The function ``z_site = offset + matrix @ z`` from common coefficients to a site's."""

    offset: np.ndarray
    matrix: np.ndarray


def scale_of(recipe: Recipe, name: str | None) -> float:
    """Return the scale of a column, by default 1."""
    return float(recipe.scale.get(name or "", 1.0))


def affine(recipe: Recipe, common: Recipe) -> Affine:
    """Return a site's coefficients as an affine function of those of the common recipe.

    Each column of the common design is expressed by the site's columns. A level that the site lacks
    is 0 in all of its records.

    Raises a StructureError if this needs an intercept that does not exist, or one per site where
    there is one for all.
    """
    if common.in_one_form:  # the columns have the same units and levels
        return unmoved(recipe, common)
    if common.own:
        return _of_strata(recipe, common)
    mine = recipe.coefficients()
    names = common.coefficients()
    matrix = np.zeros((len(mine), len(names)))
    place = {name: row for row, name in enumerate(mine)}
    needs_ones = []
    if common.intercept:
        matrix[place[INTERCEPT], names.index(INTERCEPT)] = 1.0
    for name in common.columns or ():
        needs_ones += _of_column(recipe, common, name, matrix)
    target = (common.target or "") if common.model == "linear" else ""
    shift = common.center.get(target, 0.0) - recipe.center.get(target, 0.0)
    absorbed = [name for name, _, _ in needs_ones]
    if shift:
        absorbed.append(target)
    if absorbed and INTERCEPT not in place:
        raise StructureError(
            found=f"column {absorbed[0]!r} with another center or reference, and no intercept",
            expected="an intercept, which absorbs the change",
            fix="Fit with the same --center and --category at every site.",
        )
    for _, column, value in needs_ones:
        matrix[place[INTERCEPT], column] = value
    offset = np.zeros(len(mine))
    if recipe.levels and common.levels and recipe.levels != common.levels:
        matrix *= -1.0
    if target:
        matrix *= scale_of(common, target) / scale_of(recipe, target)
    if shift:
        offset[place[INTERCEPT]] = shift / scale_of(recipe, target)
    return Affine(offset, matrix)


def _of_column(
    recipe: Recipe, common: Recipe, name: str, matrix: np.ndarray
) -> list[tuple[str, int, float]]:
    """Fill in a column's part of the matrix of :func:`affine`, and return what the intercept adds:
    names, columns of the matrix, and values.
    """
    mine = recipe.coefficients()
    names = common.coefficients()
    levels = common.categories.get(name)
    if levels is None:
        scale = scale_of(common, name)
        column = names.index(name)
        matrix[mine.index(name), column] = scale_of(recipe, name) / scale
        shift = recipe.center.get(name, 0.0) - common.center.get(name, 0.0)
        return [(name, column, shift / scale)] if shift else []
    first, *others = recipe.categories.get(name, ("",))
    rows = [mine.index(f"{name}[{level}]") for level in others]
    for level in levels[1:]:
        column = names.index(f"{name}[{level}]")
        if level in others:
            matrix[rows[others.index(level)], column] = 1.0
    if first not in levels[1:]:
        return []
    column = names.index(f"{name}[{first}]")
    matrix[rows, column] = -1.0
    return [(name, column, 1.0)]


def _of_strata(recipe: Recipe, common: Recipe) -> Affine:
    """Return the function for sites with coefficients of their own, where others' do not matter."""
    there = affine(recipe.shared, common.shared)
    mine = recipe.stratified.coefficients
    names = common.stratified.coefficients
    matrix = there.matrix[np.ix_([row for row, _ in mine], [column for column, _ in names])]
    here = [recipe.strata[0] if len(recipe.strata) == 1 else site for _, site in mine]
    others = np.array([[b not in ("", a) for _, b in names] for a in here])
    if (matrix * others)[[not site for site in here]].any():
        raise StructureError(
            found=f"another center or reference of a column of which each site has a coefficient, "
            f"and one intercept of {some(recipe.strata)}",
            expected="an intercept for each site, which absorbs the difference",
            fix="Fuse the files of single sites, or fit with the same --center and --category.",
        )
    return Affine(there.offset[[row for row, _ in mine]], np.where(others, 0.0, matrix))


def unmoved(recipe: Recipe, common: Recipe) -> Affine:
    """Return the function under which each coefficient keeps its value."""
    mine = recipe.coefficients()
    names = common.coefficients()
    same = [[float(one == other) for other in names] for one in mine]
    return Affine(np.zeros(len(mine)), np.array(same))


def widened(prior: Any, recipe: Recipe, common: Recipe) -> Any:
    """Return the first site's prior with the coefficients of levels and sites that it lacks."""
    if not prior.gaussian:
        raise _unlike("the first site")
    names = common.coefficients()
    known = prior.names
    if set(known) == set(names):
        return prior
    if common.prior is not None:  # one site's coefficients are used for each
        strata = common.stratified
        at = f"{AT}{recipe.strata[0]}"
        ends = (at if place in strata.own else "" for place in range(len(strata.names)))
        one = [known.index(name + end) for name, end in zip(strata.names, ends, strict=True)]
        full = (
            prior.marginal_variance[one] if prior.diagonal else prior.covariance[np.ix_(one, one)]
        )
        return strata.prior(type(prior).from_standard(prior.mean[one], full).named(strata.names))
    place = [names.index(name) for name in known]
    linear = np.zeros(len(names))
    precision = np.diag(1 / np.square(common.deviations()))
    linear[place] = prior.precision_mean
    precision[np.ix_(place, place)] = _precision(prior)
    return _like(prior, linear, precision, names, "the prior")


def expressed(
    value: Any, there: Affine, recipe: Recipe, common: Recipe, prior: Any, site: str
) -> Any:
    """Return a ledger or Gaussian of a site in the common coefficients."""
    names = common.coefficients()
    mine = recipe.coefficients()

    def move(law: Any) -> Any:
        if not getattr(law, "gaussian", False):
            raise _unlike(site)
        order = [(law.names or mine).index(name) for name in mine]
        square = _precision(law)[np.ix_(order, order)]
        turn = there.matrix.T
        linear = turn @ (law.precision_mean[order] - square @ there.offset)
        return _like(law, linear, turn @ square @ there.matrix, names, site)

    if not isinstance(value, Ledger):
        return move(value)
    if prior is None:
        raise _unlike(site)

    def own(name, _):
        return with_names(move(value.factor(name)), {})

    moved = with_factors(value.entries, own)
    return Ledger(in_order(prior, {"": names}, "the prior", "the recipe")).holding(moved)


def _precision(law: Any) -> np.ndarray:
    return np.diag(law.precision) if law.diagonal else law.precision


def _like(law: Any, linear: np.ndarray, square: np.ndarray, names: Any, site: str) -> Any:
    """Return a Gaussian of the same family; a StructureError if that is impossible."""
    if law.diagonal and np.count_nonzero(square - np.diag(np.diagonal(square))):
        raise _unlike(site)
    square = np.diagonal(square).copy() if law.diagonal else (square + square.T) / 2
    return type(law)._of(precision_mean=linear, precision=square).named(names)


def _unlike(site: str) -> StructureError:
    return StructureError(
        found=f"a posterior of {site!r} in other units or levels that is not a full Gaussian",
        expected="a ledger of Gaussians, as of fit",
        fix="Fit again with another site's recipe: posterity fit TABLE --like FILE.",
    )
