"""Conversion of files of one model in different units, levels or labels to one form.

Recipes may differ in the center or scale of a column, in a category's levels or its reference, or
in which label is 1. The coefficients of one are then an affine function of those of the other,
``z_site = b + A z``. A Gaussian factor with precision ``Λ`` and precision times mean ``h`` becomes
one with ``AᵀΛA`` and ``Aᵀ(h - Λb)``, without loss. Any other difference is refused, with an error
that names the command for a fix.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from math import comb
from typing import Any, NamedTuple

import numpy as np

from posterity.artifact.manifest import digest
from posterity.errors import StructureError
from posterity.families.names import in_order, names_of, some
from posterity.ledger import Ledger
from posterity.runtime.text import cut
from posterity.tabular.forms import Affine, affine, expressed, scale_of, unmoved, widened
from posterity.tabular.options import ESTIMATE, indicator
from posterity.tabular.recipe import RECIPE, Recipe, recipe_in
from posterity.tabular.sites import (
    MOST_NUMBERS,
    as_provenance,
    law_of,
    sites_in,
    under,
    without_lists,
)
from posterity.tabular.sites import moved as moved_cubic
from posterity.tabular.units import suspicious

_FLAGS = {
    "categories": "--category",
    "terms": "--formula",
    "weights": "--record-weights",
    "version": "the version of posterity fit",
}
"""Keys of a recipe whose flag has another name."""
_MOVED = ("center", "scale", "categories")
_FREE = (*_MOVED, "unit", "prior_sd", "noise_variance", "dispersion", "strata")
"""Keys whose differences can be reconciled or ignored."""
_OF_THE_FIT = ("prior", "prior_sd", "weights")
"""Keys that files may differ in that are compared."""


class Reconciled(NamedTuple):
    """The common recipe, each site's value under it, its provenance, and notes for people."""

    recipe: Recipe | None
    values: dict[str, Any]
    provenance: dict[str, str]
    notes: list[str]


def reconciled(
    values: Mapping[str, Any], provenances: Mapping[str, Mapping[str, str]]
) -> Reconciled:
    """Convert posteriors and ledgers of several files to the recipe of the first that has one.

    Args:
        values: content of each file, by site.
        provenances: provenance of each file, by site.

    Raises:
        StructureError: if recipes differ in what cannot be reconciled, or a posterior cannot be
            expressed by the common coefficients; it names two sites and the option.
    """
    recipes = {site: own for site in values if (own := recipe_in(provenances[site])) is not None}
    facts = {k: v for site in values for k, v in _facts(site, values, provenances).items() if k}
    if not recipes:
        return Reconciled(None, dict(values), {}, [])
    if any(map(are_texts, (recipe.levels for recipe in recipes.values()))):
        recipes = {site: as_texts(recipe) for site, recipe in recipes.items()}
    first = next(iter(recipes))
    common = recipes[first]
    notes = []
    for site, recipe in recipes.items():
        _check_alike(first, common, site, recipe)
        common = _united(common, recipe)
    moved = dict(values)
    labels = {bool(recipe.levels) for recipe in recipes.values()}
    if len(labels) > 1:
        plain = [site for site, recipe in recipes.items() if not recipe.levels]
        zero, one = common.levels
        notes.append(f"0 and 1 in {common.target!r} at {some(plain)} are read as {zero} and {one}")
    names = common.coefficients()
    with_third = sum(bool(own.get("third")) for own in facts.values())
    if with_third * comb(len(names) + 2, 3) > MOST_NUMBERS:  # too many for a file, or for memory
        facts = without_lists(facts)
    base = values[first].prior if isinstance(values[first], Ledger) else None
    for site, recipe in recipes.items():
        value = values[site]
        there = affine(recipe, common)
        same = all(map(np.array_equal, there, unmoved(recipe, common)))
        moves = set(recipe.coefficients()) != set(names) or not same
        if moves or (isinstance(value, Ledger) and recipe.prior_sd != recipes[first].prior_sd):
            prior = None if base is None else widened(base, recipes[first], common)
            moved[site] = expressed(value, there, recipe, common, prior, site)
            what = "units and levels" if moves else "prior"
            if site != first and (recipe.strata == common.strata or not (moves and same)):
                notes.append(f"{site!r} is put into the {what} of {first!r}")
            for name in value.sites if isinstance(value, Ledger) else (site,):
                _move(facts.get(name, {}), recipe, common, there)
    spread = common.spread or "model"
    if len({getattr(recipe, spread) for recipe in recipes.values()}) > 1:
        common = common.replaced(**{spread: ESTIMATE})
    notes += suspicious({site: moved[site] for site in recipes}, common, known=facts)
    return Reconciled(common, moved, as_provenance(common, facts), notes)


def _facts(
    site: str, values: Mapping[str, Any], provenances: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, Any]]:
    """Return the facts of a file's sites; of a ledger of one site under the name that it has."""
    value = values[site]
    one = isinstance(value, Ledger) and len(value.entries) == 1
    about = provenances[site]
    return sites_in(under(about, *value.entries) if one else about)


def _move(facts: dict[str, Any], recipe: Recipe, common: Recipe, there: Affine) -> None:
    """Express a site's facts in the units and coefficients of the common recipe, in place."""
    ratio = scale_of(recipe, common.target) / scale_of(common, common.target)
    if "noise_variance" in facts:
        facts["noise_variance"] *= ratio**2
    if "third" in facts:
        coefficients = recipe.coefficients(), common.coefficients()
        facts["third"] = moved_cubic(facts["third"], there.matrix, *coefficients)


def comparable(
    values: Mapping[str, Any], provenances: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, Any], list[str]]:
    """Convert the second of two files to the units and levels of the first, and return notes.

    Each posterior keeps its own prior, unless a file lacks a level of the other. Files are returned
    as they are unless both have recipes, and these differ.

    Raises a StructureError if the recipes are not of one model.
    """
    recipes = {name: recipe_in(provenances[name]) for name in values}
    one, other = recipes.values()
    if one is None or other is None or one == other:
        return dict(values), []
    if one.model == other.model:  # these do not change the meaning of coefficients
        other = other.replaced(**{key: getattr(one, key) for key in _OF_THE_FIT})
    about = dict(zip(values, (as_provenance(one), as_provenance(other)), strict=True))
    laws = {name: law_of(value) for name, value in values.items()}
    done = reconciled(laws, about)
    if all(done.values[name] is law for name, law in laws.items()):
        return dict(values), done.notes
    if not all(law.is_proper() for law in done.values.values()):
        done = reconciled(values, about)
    return done.values, done.notes


def check_same(provenances: Mapping[str, Mapping[str, str]]) -> None:
    """Raise a StructureError if the recipes of two files differ; files without one are ignored.

    This is for files that are read in passes: :func:`reconciled` needs all of them at once.
    """
    known = {site: own for site, own in provenances.items() if RECIPE in own}
    first = next(iter(known), "")
    for site, own in known.items():
        if own[RECIPE] != known[first][RECIPE]:
            one = recipe_in(known[first])
            other = recipe_in(own)
            assert one is not None and other is not None
            odd = _differences(one, other)
            if odd:
                raise _apart(first, one, site, other, odd)


def check_model(ledger: Mapping[str, str], configured: Mapping[str, str]) -> None:
    """Raise a StructureError if a configuration's model or units differ from those of a ledger.

    Recipes are looked for in provenances; their priors and estimated variances may differ.
    """
    one = recipe_in(ledger)
    other = recipe_in(configured)
    if one is None or other is None:
        return
    free = {"unit", "strata", "prior", "prior_sd", "noise_variance", "dispersion"}
    odd = [words for key, words in _differences(one, other).items() if key not in free]
    found = f"a ledger and a configuration that differ: {'; '.join(odd)}"
    StructureError.check((odd, found, "the model, columns and units by which the ledger was made"))


def prior_digest(prior: Any) -> str:
    """Return a digest of a prior that does not depend on the order of its coordinates."""
    names = {path: tuple(sorted(own)) for path, own in names_of(prior).items()}
    return digest(in_order(prior, names, "the prior", "the prior"))


# --- what differs --------------------------------------------------------------------------------


def _differences(one: Recipe, other: Recipe) -> dict[str, str]:
    """Return what differs between recipes: by key, its flag with both values."""
    mine = json.loads(one.canonical())
    theirs = json.loads(other.canonical())
    return {
        key: f"{_FLAGS.get(key, '--' + key.replace('_', '-'))} "
        f"{_own(own, theirs[key])} and {_own(theirs[key], own)}"
        for key, own in sorted(mine.items())
        if own != theirs[key]
    }


def _check_alike(first: str, common: Recipe, site: str, recipe: Recipe) -> None:
    mine = common.categories
    theirs = recipe.categories
    differences = _differences(common, recipe)
    odd = {*differences} - (set(_FREE) - set(_MOVED if common.in_one_form else ()))
    if _differ_in_labels(common, recipe):
        odd -= {"categories"}
    if any(common.unit[n] != recipe.unit[n] for n in common.unit.keys() & recipe.unit.keys()):
        odd.add("unit")
    texts = {*(common.columns or ()), common.target} & (mine.keys() ^ theirs.keys())
    new = any(set(theirs[n]) != set(mine[n]) for n in mine.keys() & theirs.keys())
    labels = [own.levels for own in (common, recipe) if common.levels and recipe.levels]
    if (
        texts - ({common.target} if common.model == "logistic" else set())
        or len({frozenset(own) for own in labels}) > 1
        or (common.prior is not None and new)
        # An offset keeps its sign where the coefficients change theirs.
        or (common.offset and len(set(labels)) > 1)
    ):
        odd.add("categories")
    if common.offset and scale_of(common, common.target) != scale_of(recipe, common.target):
        odd.add("scale")  # the offset is in these units
    if odd:
        words = {key: own for key, own in differences.items() if key in odd}
        raise _apart(first, common, site, recipe, words)


def are_texts(levels: Sequence[str]) -> bool:
    """Return whether labels are the texts 0 and 1, in either order, or one of them in the place of
    the other.
    """
    return {*levels} == {"0", "1"} or (len(levels) == 2 and (levels[0] == "1" or levels[1] == "0"))


def as_texts(recipe: Recipe) -> Recipe:
    """Return the recipe with the texts 0 and 1 as labels, if it is logistic and has none."""
    if recipe.model != "logistic" or recipe.levels:
        return recipe
    return recipe.replaced(categories={**recipe.categories, recipe.target: ("0", "1")})


def _differ_in_labels(common: Recipe, recipe: Recipe) -> bool:
    """Return whether only one recipe has labels for 0 and 1, and all other categories agree."""
    mine, theirs = (
        {name: levels for name, levels in own.categories.items() if name != common.target}
        for own in (common, recipe)
    )
    one_has = bool(common.levels) != bool(recipe.levels)
    return common.model == "logistic" and one_has and mine == theirs


def _apart(
    first: str, one: Recipe, site: str, other: Recipe, odd: Mapping[str, str]
) -> StructureError:
    mending = {
        "unit": " --convert COLUMN=FACTOR",
        "columns": " --rename COLUMN=NAME",
        "target": " --rename TARGET=NAME",
        "categories": " --category COLUMN=LEVEL,...",
    }
    more = "".join(flag for key, flag in mending.items() if key in odd)
    command = f"posterity fit TABLE --like FILE{more} -o FILE"
    again, model = (first, site) if other.cluster and not one.cluster else (site, first)
    fix = f"Fit {again!r} again by the recipe of {model!r}: {command}, with its file after --like."
    apart = {*(one.columns or ())} ^ {*(other.columns or ())}
    if "columns" in odd and apart:
        what = " + ".join(map(indicator, sorted(apart)))
        fix += f" If a site never recorded them, fit all with {what} in the --formula."
    return StructureError(
        found=f"{first!r} and {site!r} fitted by different flags: {'; '.join(odd.values())}",
        expected="one model of the same columns and units at every site",
        fix=fix,
    )


def _own(value: object, other: object) -> str:
    """Return the part of a value that differs from the other, shortened."""
    if isinstance(value, dict) and isinstance(other, dict):
        value = {key: part for key, part in value.items() if part != other.get(key)}
    if isinstance(value, list) and isinstance(other, list):
        value = [part for part in value if part not in other]
    return "none" if value is None else cut(json.dumps(value, ensure_ascii=False))


def _united(common: Recipe, recipe: Recipe) -> Recipe:
    """Return the common recipe with the levels, units and sites of another added."""
    levels = dict(common.categories)
    for name, own in recipe.categories.items():
        levels[name] = tuple(dict.fromkeys((*levels.get(name, ()), *own)))
    strata = tuple(sorted({*common.strata, *recipe.strata}))
    unit = {**recipe.unit, **common.unit}
    return dataclasses.replace(common, categories=levels, unit=unit, strata=strata)
