"""Records of several sites, one table a site, under one recipe."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.errors import StructureError, UsageError, within
from posterity.families.names import order, some
from posterity.runtime.text import typed
from posterity.tabular.fitting import identifiers_of, prepared, records_of
from posterity.tabular.options import no_coefficient
from posterity.tabular.reading import Reading
from posterity.tabular.recipe import ESTIMATE, Recipe, check_recipe
from posterity.tabular.reconcile import are_texts
from posterity.tabular.records import TARGET, Table
from posterity.tabular.regressions import (
    AS_POISSON,
    LEAST,
    check_levels,
    data_of,
    dispersion_of,
    model_of,
    residuals_of,
    triangle_of,
)
from posterity.tabular.rows import Design
from posterity.tabular.sites import NOTES
from posterity.tabular.tables.reader import clean
from posterity.tabular.values import DISTINCT

Columns = bool | Sequence[str | int] | Mapping[str, float] | None
"""Columns whose coefficients differ between sites: all or none, by name or number, or by name the
standard deviation that is expected between sites."""
NOISE_OF_ONE = "noise variance 1, since none was given: say --noise-variance"
"""Note on a linear model whose noise is neither known nor estimated."""


class Sites(NamedTuple):
    """Records of several sites under one recipe.

    ``tables``, ``facts`` and ``designs`` are by site; ``model`` is the library's. ``pooled`` is
    whether its noise variance or dispersion was estimated from several sites.
    """

    recipe: Recipe
    model: Any
    tables: dict[str, Table]
    facts: dict[str, dict[str, Any]]
    notes: list[str]
    pooled: bool
    designs: dict[str, Design]


def sites_of(
    paths: Mapping[str, Path],
    recipe: Recipe,
    readings: Mapping[str, Reading],
    *,
    estimate: bool,
    personal: Columns = None,
    without: Collection[str] = (),
    names: Sequence[str] = (),
) -> Sites:
    """Return the records of sites whose files are tables, as a regression's columns.

    Args:
        paths: path of each site's table.
        recipe: recipe of the model; without a target, that is the column ``y``.
        readings: by site, the reading of its table.
        estimate: whether to estimate a linear model's unknown noise from the residuals of least
            squares on all records; otherwise it is one. A dispersion is always estimated.
        personal: columns of which each site has its own coefficients in such an estimate.
        without: sites whose records are not used to estimate either.
        names: names of the coefficients that ``personal`` is about; by default the first site's.

    Raises:
        PosterityError: for tables that do not suit the recipe; it names the site and its file.
    """
    if recipe.target is None:
        recipe = dataclasses.replace(recipe, target=TARGET)
    check_recipe(recipe)
    designs, recipe, notes = _designs(paths, recipe, readings)
    apart = any(recipe.is_own(name) for name in recipe.baseline)
    known = [own for own in designs.values() if len(own.x)]
    for together in [[own] for own in known] if apart else [known]:
        check_levels(recipe, together)
    notes += _copies(designs)
    facts: dict[str, dict[str, Any]] = {}
    for site, data in designs.items():
        facts[site] = {"records": data.records}
        if data.dropped:
            facts[site]["dropped"] = data.dropped
        if data.cautions:
            facts[site][NOTES] = [*data.cautions]
    pooled = False
    if recipe.spread is not None:
        spread = getattr(recipe, recipe.spread)
        if spread == ESTIMATE:
            stay = {site: own for site, own in designs.items() if site not in without} or designs
            whose = "all sites" if len(stay) == len(designs) else "the sites that stay"
            pooled = len(stay) > 1 and (estimate or recipe.model != "linear")
            names = names or next(iter(designs.values())).names
            apart = differing(personal_of(personal, names), names)
            spread, more = _spread(recipe, stay, whose, apart, estimate)
            notes += more
        recipe = recipe.replaced(**{recipe.spread: spread})
        for fact in facts.values():
            fact[recipe.spread or ""] = spread
    recipe = recipe.replaced(strata=tuple(sorted({*paths, *without})) if recipe.own else ())
    tables = {site: _table(recipe, data) for site, data in designs.items()}
    return Sites(recipe, model_of(recipe), tables, facts, notes, pooled, designs)


def _designs(
    paths: Mapping[str, Path], recipe: Recipe, readings: Mapping[str, Reading]
) -> tuple[dict[str, Design], Recipe, list[str]]:
    """Return each site's design, the recipe with the columns of the first site, and notes.

    Labels are those of the first site that has some.
    """
    designs = {}
    filled = {}
    notes = []
    tables = {}
    for site, path in paths.items():
        with within(f"data '{path}' of site {site!r}"):
            tables[site] = records_of(path, readings[site], recipe)
    identifiers = identifiers_of(recipe, [cells for cells, _ in tables.values()])
    for site, path in paths.items():
        cells, more = tables.pop(site)
        with within(f"data '{path}' of site {site!r}"):
            reading = readings[site]
            own = with_labels(recipe, reading)
            data, own = prepared(cells, own, reading, site, identifiers, empty=True)
        designs[site] = data
        filled[site] = own
        notes += [f"{site}: {line}" for line in (*more, *data.notes)]
    _check_columns(filled)
    first, *others = filled.values()
    labelled = next((own for own in others if own.levels), None)
    if labelled and not first.levels:
        first = dataclasses.replace(first, categories=labelled.categories)
    return designs, first, notes


def _check_columns(recipes: Mapping[str, Recipe]) -> None:
    """Raise a StructureError if a site's table has a column that another's lacks."""
    sites = {site: own.columns or () for site, own in recipes.items()}
    first = next(iter(sites))
    shared = [name for name in sites[first] if all(name in own for own in sites.values())]
    for site, own in sites.items():
        try:
            order(own, sites[first], f"site {site!r}", f"site {first!r}")
        except StructureError as error:
            named = typed("--columns", ",".join(shared))
            fix = f"{error.fix} Those that all have: {named}." if shared else error.fix
            raise StructureError(found=error.found, expected=error.expected, fix=fix) from None


def _spread(
    recipe: Recipe,
    sites: Mapping[str, Design],
    whose: str,
    apart: Collection[str],
    estimate: bool,
) -> tuple[float, list[str]]:
    """Return the noise variance or dispersion that these sites' records give, and notes."""
    if recipe.model != "linear":
        value = dispersion_of(recipe, sites.values(), apart)
        notes = [f"dispersion {value:.4g}, estimated from the records of {whose}"]
        notes += [AS_POISSON] if value < LEAST else []
        return value, notes
    if not estimate:
        return 1.0, [NOISE_OF_ONE]
    left = residuals_of([triangle_of(recipe, data) for data in sites.values()], apart)
    note = (
        f"noise variance {left.variance:.4g}, estimated from the residuals of {whose} on "
        f"{left.spare:.6g} degrees of freedom"
    )
    return left.variance, [note]


def _table(recipe: Recipe, data: Design) -> Table:
    """Return a site's records; columns of other sites' own coefficients are zero."""
    x, y = data_of(recipe, data)
    if not recipe.own:
        return Table(x, y, data.names, data.x)
    names = recipe.coefficients()
    wide = np.zeros((len(x), len(names)))
    wide[:, [names.index(name) for name in data.names]] = x
    return Table(wide, y, names)


def with_labels(recipe: Recipe, reading: Reading) -> Recipe:
    """Return the recipe with the labels that this table has for a target of zeros and ones.

    If 1 is the text of the first or 0 of the second, the recipe's labels are the texts 0 and 1. A
    UsageError for levels of a column that is no category of the recipe, unless they are two, for 0
    and 1 in a column of numbers.
    """
    levels = reading.levels
    target = recipe.target or ""
    if target in levels and not recipe.levels and recipe.model == "logistic":
        own = ("0", "1") if are_texts(levels[target]) else levels[target]
        recipe = recipe.replaced(categories={**recipe.categories, target: own})
    columns = levels.keys() if recipe.columns is None else {*recipe.columns, recipe.event}
    logical = {name for name in columns if len(levels.get(name or "", ())) == 2}
    others = sorted(levels.keys() - recipe.categories.keys() - logical)
    found = f"--category {others} which are none of the model's"
    known = f"a category of its recipe, among {list(recipe.categories)}, or two texts, for 0 and 1"
    UsageError.check((others, found, known))
    return recipe


def _copies(designs: Mapping[str, Design]) -> Iterator[str]:
    """Yield notes on sites with the records of another, in any order."""
    seen: dict[object, str] = {}
    for site, data in designs.items():
        columns = [*data.x.T, np.asarray(data.y)]
        if max(len(np.unique(own)) for own in columns) < DISTINCT:
            continue
        twin = seen.setdefault(tuple(np.sort(own).tobytes() for own in columns), site)
        if twin != site:
            yield (
                f"sites {twin!r} and {site!r} have the same {data.records} records: if one table "
                "is a copy of the other, they count twice; leave the copy out"
            )


def personal_of(columns: Columns, names: Sequence[str]) -> Any:
    """Return the argument ``personal`` of :func:`posterity.federate` by the ``names`` of
    coefficients; by number, if they have none. A column of texts stands for those of its levels.

    Raises a UsageError for a column that is none of the ``names``, or that occurs twice.
    """
    if columns is None or isinstance(columns, bool):
        return bool(columns)
    chosen: dict[str | int, Any] = {}
    for given in columns:
        column = clean(str(given))
        own: list[Any] = [n for n in names if column in (n, n.partition("[")[0])]
        if not own and column.isdecimal():
            place = int(column)
            own = list(names[place : place + 1]) if names else [place]
        if not own:
            raise no_coefficient(f"a column {column!r} in model.personal", names)
        if chosen.keys() & {*own}:
            raise UsageError(
                found=f"a column twice in model.personal: {some(list(map(str, columns)))}",
                expected="each column once, by its name or its number",
            )
        chosen |= dict.fromkeys(own, given)
    if isinstance(columns, Mapping):
        return {name: columns[str(given)] for name, given in chosen.items()}
    return list(chosen)


def differing(personal: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return those of the names of coefficients that differ between sites, by ``personal``."""
    return tuple(name for name in names if personal is True or (personal and name in personal))
