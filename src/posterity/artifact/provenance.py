"""The columns and the fit in a file's provenance, each as JSON under a key of its own.

A law's own coordinates have names themselves (:mod:`posterity.families.names`); the inputs of a
network are no coordinates of the law over its weights, so the file names them here. What was asked
of ``posterity fit`` is kept too, and must be the same at every site.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from posterity.artifact.container import altered
from posterity.errors import StructureError
from posterity.families.names import MOST_CHARACTERS, some, unfit

COLUMNS = "columns"
"""The key of the names of columns: a list in JSON."""
RECIPE = "recipe"
"""The key of what was asked of a fit: an object in JSON, its keys sorted."""
_FLAGS = {"categories": "--category", "version": "the version of posterity fit"}
"""Those keys of a recipe that are not called as their flag is."""


def as_provenance(names: Sequence[str]) -> dict[str, str]:
    """The provenance of a network that takes these columns; empty if they have no names.

    >>> as_provenance(["age", "dose"])
    {'columns': '["age","dose"]'}
    """
    return {COLUMNS: json.dumps(list(names), separators=(",", ":"))} if names else {}


def inputs_of(provenance: Mapping[str, str], count: int) -> tuple[str, ...]:
    """The names of the columns of a network's inputs; empty if its file names none.

    Raises:
        ArtifactError: if they are no distinct names, or not as many as there are inputs.
    """
    if COLUMNS not in provenance:
        return ()
    try:
        names = json.loads(provenance[COLUMNS])
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not names or unfit(names):
        text = provenance[COLUMNS][:MOST_CHARACTERS]
        raise altered(f"{COLUMNS} {text}, which are no distinct names")
    if len(names) != count:
        raise altered(f"{len(names)} names of columns beside a network of {count} inputs")
    return tuple(names)


def unnamed(columns: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[str]:
    """A line on those that name no columns, whose order had to be taken for that of the others."""
    nameless = [place for place in columns if not columns[place]]
    if not nameless or len(names) < 2:
        return []
    return [f"no names of columns at {some(nameless)}: theirs are taken to be {some(names)}"]


def recipe_in(provenance: Mapping[str, str]) -> dict[str, Any] | None:
    """The options of the fit in a file's provenance; None if it has none.

    >>> recipe_in({"recipe": '{"model":"linear"}'})
    {'model': 'linear'}
    """
    try:
        recipe = json.loads(provenance.get(RECIPE, "null"))
    except (ValueError, RecursionError):
        return None
    return recipe if isinstance(recipe, dict) else None


def check_same(provenances: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The recipe of all files that have one, as provenance; empty if none has.

    Args:
        provenances: by site, what its file says beside the posterior.

    Raises:
        StructureError: if two of them differ; it names the sites and the flags.

    >>> check_same({"north": {"recipe": '{"model":"linear"}'}, "south": {}})
    {'recipe': '{"model":"linear"}'}
    """
    recipes = {site: recipe for site, own in provenances.items() if (recipe := recipe_in(own))}
    if not recipes:
        return {}
    first = next(iter(recipes))
    for site, recipe in recipes.items():
        pairs = {key: (recipes[first].get(key), recipe.get(key)) for key in recipes[first] | recipe}
        if odd := [key for key in sorted(pairs) if pairs[key][0] != pairs[key][1]]:
            apart = (
                f"{_FLAGS.get(key, '--' + key.replace('_', '-'))} "
                f"{_own(*pairs[key])} and {_own(*pairs[key][::-1])}"
                for key in odd
            )
            raise StructureError(
                found=f"sites {first!r} and {site!r} fitted by different flags: {'; '.join(apart)}",
                expected="the same flags of posterity fit at every site",
                fix="Fit again with one set of flags, and fuse these files.",
            )
    return {RECIPE: provenances[first][RECIPE]}


def _own(value: object, other: object) -> str:
    """The part of a value that the other has not, in short."""
    if isinstance(value, dict) and isinstance(other, dict):
        value = {key: part for key, part in value.items() if part != other.get(key)}
    if isinstance(value, list) and isinstance(other, list):
        return some([str(part) for part in value if part not in other])
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 200 else f"{text[:200]}…"
