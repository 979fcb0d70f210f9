"""Recipes of regressions, and readings of tables, from the options of commands."""

import csv
import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from posterity.cli import files
from posterity.cli.options import Settings, unknown, unwanted
from posterity.cli.schema import options_of, places_of
from posterity.errors import StructureError, UsageError, within
from posterity.families.names import names_of
from posterity.runtime.text import typed
from posterity.tabular.formula import with_formula
from posterity.tabular.multicentre import Sites, sites_of, with_labels
from posterity.tabular.options import INTERCEPT
from posterity.tabular.reading import Reading
from posterity.tabular.recipe import Recipe, recipe_in
from posterity.tabular.tables.reader import as_level, clean

OF_RECIPE = places_of("recipe") - {"data.unit", "data.like", "model.formula"}
OF_RECIPE |= {"model.target", "model.noise_variance", "model.family"}
"""Options that a recipe has too; but units also describe a table."""
SHARED = OF_RECIPE | {"model.formula", "model.kind", "model.intercept"}
"""Options that a recipe determines, and that exclude ``--like``."""
OF_FORMULA = ("model.target", "model.intercept", "data.columns", "data.without")
"""Options that a formula replaces."""


def in_form(value: Any) -> Any:
    """Return a name, or each of several, in the form that tables have; other values as they are."""
    if isinstance(value, list):
        return tuple(map(in_form, value))
    return clean(value) if isinstance(value, str) else value


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
                expected = "none of it: the formula has target, columns and intercept"
                raise unwanted(settings.flag(given[0]), "beside --formula", expected)
            recipe = with_formula(recipe, formula)
        return recipe, dataclasses.replace(reading, levels={})
    given = [place for place in SHARED if place in settings.values]
    if given:
        expected = "flags of this table alone: the file has model, columns and units"
        otherwise = ", or fit every site with it, the first one without --like"
        raise unwanted(settings.flag(given[0]), f"beside --like {like}", expected, otherwise)
    recipe = with_labels(recipe_of(like), reading)
    _check_units(settings["data.unit"] or {}, recipe, reading, f"'{like}'")
    return recipe, reading


def recipe_of(path: Path) -> Recipe:
    """Return the recipe in a file; a StructureError if it has none."""
    recipe = recipe_in(files.read_any(path)[1].provenance)
    if recipe is None:
        raise StructureError(
            found=f"no recipe in '{path}'",
            expected="a file that posterity fit wrote, or one made from such files",
        )
    return recipe


def reading_of(settings: Settings) -> Reading:
    """Return the reading of a table by a recipe, from the option group ``reading``."""
    return Reading(**_fields(settings.table("data")))


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a reading that are among options, in the form that tables have."""
    alike = ("convert", "drop_missing", "decimal")
    fields = {key: given[key] for key in alike if key in given}
    if "rename" in given:
        fields["rename"] = {clean(name): clean(own) for name, own in given["rename"].items()}
    if "category" in given:
        fields["levels"] = texts_by_column(given["category"])
    if "missing" in given:
        fields["missing"] = tuple(given["missing"])
    return fields


def records_of_sites(
    settings: Settings, paths: Mapping[str, Path], *, without: Collection[str] = (), **options: Any
) -> Sites:
    """Return the records of sites whose files are tables, as of
    :func:`posterity.tabular.multicentre.sites_of`. The option ``tables`` sets sites' differences.
    """
    recipe, common = requested(settings)
    tables = settings.values.get("tables", {})
    strange = [site for site in tables if site not in {*paths, *without}]
    if strange:
        raise UsageError(
            found=f"a table of site {strange[0]!r}", expected=f"one of the sites {list(paths)}"
        )
    readings = {}
    for site, path in paths.items():
        with within(f"data '{path}' of site {site!r}"):
            own = tables.get(site, {})
            readings[site] = _with(common, own, site)
            _check_units(own.get("unit", {}), recipe, readings[site], "the model")
    if settings.has("model.personal"):
        options["personal"] = settings["model.personal"]
    return sites_of(paths, recipe, readings, without=without, **options)


def _with(common: Reading, own: dict[str, Any], site: str) -> Reading:
    """Return the reading of a site's table, with its own differences."""
    known = {option.key: option for option in options_of("table")}
    checked = {}
    for key, value in own.items():
        if key not in known:
            raise unknown(f"tables.{site}.{key}", known)
        checked[key] = known[key].kind.check(f"tables.{site}.{key}", value)
    fields = _fields(checked)
    levels = {**common.levels, **fields.pop("levels", {})}
    return dataclasses.replace(common, levels=levels, **fields)


def _check_units(units: Mapping[str, str], recipe: Recipe, reading: Reading, of: str) -> None:
    """Raise a UsageError for a column in another unit than the recipe's without a factor."""
    for name, unit in units.items():
        common = recipe.unit.get(name)
        if unit != common and name not in reading.convert:
            raise UsageError(
                found=f"--unit {name}={unit}, and "
                + (f"{common} in {of}" if common else f"no unit of it in {of}"),
                expected="the factor between the two units",
                fix=f"Pass {typed('--convert', f'{name}=FACTOR')} (38.67 from mmol/L to "
                "mg/dL of cholesterol; 1 if they are the same).",
            )


def _options(settings: Settings) -> dict[str, Any]:
    """Return the options on which the files of all sites must agree, by the recipe's names."""
    model = settings.need("model.kind").removesuffix("-regression")
    asked = settings["model.intercept"]
    given = {"model": model, "intercept": _of_prior(settings) if asked is None else bool(asked)}
    for place in (*OF_RECIPE, "data.unit"):
        value = settings[place] if settings.has(place) else None
        if value is not None:
            key = "prior_sd" if place == "prior.sd" else place.partition(".")[2]
            given[key] = in_form(value)
    return given


def _of_prior(settings: Settings) -> bool:
    """Return whether the given prior has an intercept, as all have by default, and those of one
    variance (of commands without prior files) do; of priors by their parameters only those of a
    file say so.
    """
    if not settings.has("prior.file") or not settings.table("prior", "sd"):
        return True
    path = settings.path("prior.file")
    return path is not None and INTERCEPT in names_of(files.read_prior(path)[0]).get("", ())


def texts_by_column(values: Mapping[str, str | list[str]]) -> dict[str, tuple[str, ...]]:
    """Return texts by column, from lists or texts with commas; quoted ones may contain commas."""
    by_column = {}
    for name, value in values.items():
        rows = [value] if isinstance(value, list) else list(csv.reader([value]))
        by_column[clean(name)] = tuple(as_level(text) for row in rows for text in row)
    return by_column
