"""Recipes of regressions, and readings of tables, from the options of commands."""

import csv
import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.cli import files
from posterity.cli.options import Settings, conflict, unknown, unwanted
from posterity.cli.records import TARGET, Table, as_cells, read_inputs
from posterity.cli.schema import options_of, places_of
from posterity.errors import CHOOSE, PosterityError, StructureError, UsageError
from posterity.families.names import some
from posterity.tabular.design import Design, design
from posterity.tabular.fitting import records_of
from posterity.tabular.formula import with_formula
from posterity.tabular.reading import ALONE, DISTINCT, Reading, columns_of, columns_to_predict
from posterity.tabular.recipe import ESTIMATE, Recipe, check_recipe, recipe_in
from posterity.tabular.reconcile import are_texts
from posterity.tabular.regressions import (
    AS_POISSON,
    LEAST,
    Triangle,
    data_of,
    dispersion_of,
    model_of,
    residuals_of,
    triangle_of,
)
from posterity.tabular.tables.reader import clean

OF_FIT = ("family",)
"""Parts of a recipe that only posterity fit has options for."""
SHARED = {
    *(places_of("recipe") - {"data.unit", "data.like"}),
    *(f"model.{key}" for key in ("kind", "target", "intercept", "noise_variance", *OF_FIT)),
}
"""Options that a recipe determines, and that exclude ``--like``."""
NOISE_OF_ONE = "noise variance 1, since none was given: say --noise-variance"
"""Note on a linear model whose noise is neither known nor estimated."""
UNALIKE = 1e-6, 4.0
"""Level and factor at which the noise variances of sites are taken to differ."""
OF_FORMULA = ("model.target", "model.intercept", "data.columns", "data.without")
"""Options that a formula replaces."""


def clean_or_none(name: str | None) -> str | None:
    """Return a name in the form that tables have."""
    return None if name is None else clean(name)


def requested(settings: Settings) -> tuple[Recipe, Reading]:
    """Return the recipe of flags or of the file after ``--like``, and the reading of a table."""
    reading = reading_of(settings)
    levels = reading.levels
    like = settings.path("data.like")
    if like is None:
        recipe = Recipe(**_options(settings), categories=levels)
        formula = settings["model.formula"]
        if formula is not None:
            given = [place for place in OF_FORMULA if place in settings.values]
            if given:
                raise conflict(settings.flag(given[0]), "--formula, which says it")
            recipe = with_formula(recipe, formula)
        return recipe, dataclasses.replace(reading, levels={})
    given = [place for place in SHARED if place in settings.values]
    if given:
        raise conflict(settings.flag(given[0]), f"--like {like}, which says it")
    recipe = labelled(recipe_of(like), reading)
    _check_units(settings["data.unit"] or {}, recipe, reading, like)
    return recipe, reading


def labelled(recipe: Recipe, reading: Reading) -> Recipe:
    """Return the recipe with the labels that this table has for a target of zeros and ones.

    If 1 is the text of the first or 0 of the second, the recipe's labels are the texts 0 and 1.
    """
    levels = reading.levels
    target = recipe.target or ""
    if target in levels and not recipe.levels and recipe.model == "logistic":
        own = ("0", "1") if are_texts(levels[target]) else levels[target]
        recipe = recipe.replaced(categories={**recipe.categories, target: own})
    other = [name for name in levels if name not in recipe.categories]
    if other:
        expected = f"a category of its recipe, among {list(recipe.categories)}"
        raise unwanted(f"--category {other[0]}", "which is none of the model's", expected)
    return recipe


def recipe_of(path: Path) -> Recipe:
    """Return the recipe in a file; a StructureError if it has none."""
    recipe = recipe_in(files.read_any(path)[1].provenance)
    if recipe is None:
        raise StructureError(
            found=f"no recipe in {str(path)!r}",
            expected="a file that posterity fit wrote, or one made from such files",
            fix="Name another site's file, or pass flags instead of --like.",
        )
    return recipe


def reading_of(settings: Settings) -> Reading:
    """Return the reading of a table by a recipe, from the option group ``reading``."""
    given = settings.table("data")
    return Reading(
        rename={clean(name): clean(own) for name, own in given.get("rename", {}).items()},
        convert=given.get("convert", {}),
        levels=_levels(given.get("category", {})),
        drop_missing=given.get("drop_missing", False),
        decimal=given.get("decimal"),
    )


class Sites(NamedTuple):
    """Records of several sites under one recipe.

    ``tables`` and ``facts`` are by site; ``model`` is the library's. ``pooled`` is whether its
    noise variance or dispersion was estimated from several sites.
    """

    recipe: Recipe
    model: Any
    tables: dict[str, Table]
    facts: dict[str, dict[str, Any]]
    notes: list[str]
    pooled: bool


def sites_of(
    settings: Settings,
    paths: Mapping[str, Path],
    *,
    estimate: bool,
    without: Collection[str] = (),
    names: tuple[str, ...] = (),
) -> Sites:
    """Return the records of sites whose files are tables, as a regression's columns.

    The option ``tables`` sets each site's differences. ``estimate`` is whether to estimate a linear
    model's unknown noise from the residuals of least squares on all records; otherwise it is one.
    For that and for a dispersion each site has its own personal coefficients. Records of the sites
    ``without`` are not used to estimate either. ``names`` are the ledger's columns, if any.
    """
    recipe, common = requested(settings)
    if recipe.target is None:
        recipe = dataclasses.replace(recipe, target=TARGET)
    check_recipe(recipe)
    tables = settings.values.get("tables", {})
    strange = [site for site in tables if site not in {*paths, *without}]
    if strange:
        raise UsageError(
            found=f"a table of site {strange[0]!r}",
            expected=f"one of the sites {list(paths)}",
            fix="Use the site's name under [sites] or --site.",
        )
    designs = dict[str, Design]()
    notes = list[str]()
    first = None
    for site, path in paths.items():
        reading = _with(common, tables.get(site, {}), site)
        try:
            cells, more = records_of(path, reading)
            own = recipe.filled(columns_of(recipe, cells.header, path))
            own = labelled(own.replaced(strata=(site,) if recipe.own else ()), reading)
            data = designs[site] = design(cells, own, reading, empty=True)
        except PosterityError as error:
            raise error.at(f"data {str(path)!r} of site {site!r}") from error
        first = first or own
        if own.levels and not first.levels:
            first = dataclasses.replace(first, categories=own.categories)
        notes += [f"{site}: {line}" for line in (*more, *data.notes)]
    assert first is not None, "settings need a site"
    notes += _copies(designs)
    facts = {
        site: {"records": data.records} | ({"dropped": data.dropped} if data.dropped else {})
        for site, data in designs.items()
    }
    pooled = False
    if first.spread is not None:
        value = getattr(first, first.spread)
        stay = {site: data for site, data in designs.items() if site not in without} or designs
        whose = "all sites" if len(stay) == len(designs) else "the sites that stay"
        pooled = value == ESTIMATE and len(stay) > 1 and (estimate or first.model != "linear")
        names = names or next(iter(designs.values())).names
        apart = set[str]()
        if value == ESTIMATE and settings.has("model.personal"):
            personal = personal_of(settings["model.personal"], names)
            places = range(len(names) * personal) if isinstance(personal, bool) else personal
            apart = {names[place] for place in places if place < len(names)}
        if value == ESTIMATE and first.model != "linear":
            value = dispersion_of(first, [*stay.values()], apart)
            notes.append(f"dispersion {value:.4g}, estimated from the records of {whose}")
            if value < LEAST:
                notes.append(AS_POISSON)
        elif value == ESTIMATE and estimate:
            triangles = {site: triangle_of(first, data) for site, data in stay.items()}
            left = residuals_of(triangles.values(), apart)
            value = left.variance
            notes.append(
                f"noise variance {value:.4g}, estimated from the residuals of {whose} on "
                f"{left.spare:.6g} degrees of freedom"
            )
            notes += _noises(triangles)
        elif value == ESTIMATE:
            value = 1.0
            notes.append(NOISE_OF_ONE)
        facts = {site: fact | {first.spread: value} for site, fact in facts.items()}
        first = first.replaced(**{first.spread: value})
    first = first.replaced(strata=tuple(sorted({*paths, *without})) if first.own else ())
    made = {}
    for site, data in designs.items():
        x, y = data_of(first, data)
        if first.own:  # columns of other sites' coefficients are zero here
            names = first.coefficients()
            wide = np.zeros((len(x), len(names)))
            wide[:, [names.index(name) for name in data.names]] = x
            made[site] = Table(wide, y, names)
        else:
            made[site] = Table(x, y, data.names, data.x)
    return Sites(first, model_of(first), made, facts, notes, pooled)


def _noises(sites: Mapping[str, Triangle]) -> Iterator[str]:
    """Yield a note on the site whose noise variance differs most from that of the others, by least
    squares within sites, if an F test at the level ``UNALIKE[0]`` and a factor ``UNALIKE[1]`` do.
    """
    import scipy.special  # not above: few commands need it

    left = {site: residuals_of([own]) for site, own in sites.items() if own.records}
    total = sum(own.sum for own in left.values())
    spare = sum(own.spare for own in left.values())
    most = UNALIKE[1]
    line = ""
    for site, own in left.items():
        rest = total - own.sum
        more = spare - own.spare
        if min(own.spare, more) < 1 or not min(own.sum, rest) > 0:
            continue
        ratio = own.sum / own.spare * more / rest
        tail = scipy.special.fdtrc if ratio > 1 else scipy.special.fdtr
        if max(ratio, 1 / ratio) > most and tail(own.spare, more, ratio) < UNALIKE[0]:
            most = max(ratio, 1 / ratio)
            line = (
                f"the noise variance of site {site!r} is {ratio:.2g} times that of the others, but "
                "one is used for all, so that deviations are wrong: look there for outliers and "
                f"other units, or weigh records (--record-weights){CHOOSE}"
            )
    if line:
        yield line


def _copies(designs: Mapping[str, Design]) -> Iterator[str]:
    """Yield notes on sites with the records of another, in any order."""
    shapes = Counter(data.x.shape for data in designs.values())
    seen: dict[object, str] = {}
    for site, data in designs.items():
        columns = [*data.x.T, np.asarray(data.y)]
        if shapes[data.x.shape] < 2 or max(len(np.unique(own)) for own in columns) < DISTINCT:
            continue
        twin = seen.setdefault(tuple(np.sort(own).tobytes() for own in columns), site)
        if twin != site:
            yield (
                f"sites {twin!r} and {site!r} have the same {data.records} records: if one table "
                "is a copy of the other, they count twice; leave the copy out"
            )


def personal_of(
    columns: bool | list[str | int] | dict[str, float] | None, names: tuple[str, ...]
) -> bool | list[int] | dict[int, float]:
    """Return the argument of :func:`posterity.federate`, with columns' numbers instead of names.

    A column of texts stands for the columns of all its levels.
    """
    if columns is None or isinstance(columns, bool):
        return bool(columns)
    places: dict[int, str | int] = {}
    for given in columns:
        column = clean(str(given))
        own = [place for place, n in enumerate(names) if column in (n, n.partition("[")[0])]
        if not own and not column.isdecimal():
            raise UsageError(
                found=f"a column {column!r} in model.personal",
                expected=f"columns among {some(names)}, or their numbers, from 0",
                fix="Name columns whose coefficients differ between sites; for an intercept pass "
                "--intercept too.",
            )
        own = own or [int(column)]
        if places.keys() & set(own):
            raise UsageError(
                found=f"a column twice in model.personal: {some(list(map(str, columns)))}",
                expected="each column once, by its name or its number",
                fix="Leave one out.",
            )
        places |= dict.fromkeys(own, given)
    if isinstance(columns, dict):
        return {place: columns[str(given)] for place, given in places.items()}
    return list(places)


def _with(common: Reading, own: dict[str, Any], site: str) -> Reading:
    """Return the reading of a site's table, with its own differences."""
    known = {option.key: option for option in options_of("table")}
    for key, value in own.items():
        if key not in known:
            raise unknown(f"tables.{site}.{key}", known)
        known[key].kind.check(f"tables.{site}.{key}", value)
    changes = dict(own)
    if "category" in changes:
        changes["levels"] = {**common.levels, **_levels(changes.pop("category"))}
    return dataclasses.replace(common, **changes)


def table_of(
    settings: Settings, recipe: Recipe, inputs: Path, *, scored: bool, empty: bool = False
) -> tuple[Design, list[str]]:
    """Return a table's records in a recipe's columns and units, for prediction; and notes.

    Records with a missing value are dropped, all of them only if the result may be ``empty``. The
    target is read if it is to be ``scored``.
    """
    reading = reading_of(settings)
    recipe = labelled(recipe.shared, reading)
    if inputs.suffix in (".npz", ".npy"):
        table = read_inputs(inputs, settings["inputs.array"])
        cells = reading.renamed(as_cells(inputs, table))
        notes = []
    else:
        cells, notes = records_of(inputs, reading)
    columns_to_predict(recipe, cells)
    target = settings.values.get("model.target")
    if target not in (None, recipe.target):
        raise UsageError(
            found=f"--target {target} for a model that predicts {recipe.target!r}",
            expected="the model's target",
            fix=f"Leave it out, or pass --rename {recipe.target}={target}.",
        )
    data = design(cells, recipe, reading, predicting=True, scored=scored, empty=empty)
    notes += data.notes[: len(data.notes) - bool(data.dropped)]
    return data, notes


def _check_units(units: dict[str, str], recipe: Recipe, reading: Reading, like: Path) -> None:
    """Raise a UsageError for a column in another unit than the recipe's without a factor."""
    for name, unit in units.items():
        common = recipe.unit.get(name)
        if unit != common and name not in reading.convert:
            raise UsageError(
                found=f"--unit {name}={unit}, and "
                + (f"{common} in {str(like)!r}" if common else f"no unit of it in {str(like)!r}"),
                expected="the factor between the two units",
                fix=f"Pass --convert {name}=FACTOR (38.67 from mmol/L to mg/dL of cholesterol; "
                "1 if they are the same).",
            )


def _options(settings: Settings) -> dict[str, Any]:
    """Return the options on which the files of all sites must agree."""
    columns = settings["data.columns"]
    without = settings["data.without"]
    return {
        "model": settings.need("model.kind").removesuffix("-regression"),
        **{key: clean_or_none(settings[f"model.{key}"]) for key in ALONE},
        "columns": None if columns is None else tuple(map(clean, columns)),
        "without": tuple(map(clean, without or ())),
        **{key: settings[f"data.{key}"] or {} for key in ("center", "scale", "unit")},
        "intercept": bool(settings["model.intercept"]),
        "cuts": tuple(settings["model.cuts"] or ()),
        "own": tuple(map(clean, settings["model.own"] or ())),
        **{key: settings[f"model.{key}"] for key in ("hazard", "dispersion")},
        "prior_sd": settings["prior.sd"] or {},
        "noise_variance": settings["model.noise_variance"],
        **{key: settings[f"model.{key}"] for key in OF_FIT if settings.has(f"model.{key}")},
    }


def _levels(categories: dict[str, str | list[str]]) -> dict[str, tuple[str, ...]]:
    """Return levels by column, from lists or texts with commas; quoted ones may contain commas."""
    by_column = {}
    for name, value in categories.items():
        rows = [value] if isinstance(value, list) else list(csv.reader([value]))
        levels = tuple(clean(level) for row in rows for level in row)
        if len(levels) < 2 or len(set(levels)) < len(levels):
            raise UsageError(
                found=f"--category {name}={value}",
                expected="--category NAME=A,B with at least two different levels, once a column",
                fix="Name the reference level first.",
            )
        by_column[clean(name)] = levels
    return by_column
