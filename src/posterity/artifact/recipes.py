"""What was asked of the fit that a file holds, and whether it was the same at every site."""

import json
from collections.abc import Mapping
from typing import Any

from posterity.errors import StructureError
from posterity.families.names import some

KEY = "recipe"
"""Of the provenance, under which a file holds it: an object in JSON, its keys sorted."""
_FLAGS = {"categories": "--category", "version": "the version of posterity fit"}
"""Of those keys that are not called as their flag is."""


def recipe_in(provenance: Mapping[str, str]) -> dict[str, Any] | None:
    """What a file says that was asked; None if it says nothing.

    >>> recipe_in({"recipe": '{"model":"linear"}'})
    {'model': 'linear'}
    """
    try:
        found = json.loads(provenance.get(KEY, "null"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def check_same(provenances: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The recipe of all files that have one, as provenance; empty if none has.

    Args:
        provenances: by site, what its file says beside the posterior.

    Raises:
        StructureError: if two of them differ; it names the sites and the flags.

    >>> check_same({"north": {"recipe": '{"model":"linear"}'}, "south": {}})
    {'recipe': '{"model":"linear"}'}
    """
    told = {site: found for site, about in provenances.items() if (found := recipe_in(about))}
    if not told:
        return {}
    first = next(iter(told))
    for site, found in told.items():
        odd = [key for key in sorted({*found, *told[first]}) if _differ(key, found, told[first])]
        if odd:
            raise StructureError(
                found=f"sites {first!r} and {site!r} fitted by different flags: "
                + "; ".join(_difference(key, told[first], found) for key in odd),
                expected="the same flags of posterity fit at every site",
                fix="Fit again with one set of flags, and fuse these files.",
            )
    return {KEY: provenances[first][KEY]}


def _differ(key: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.get(key) != other.get(key)


def _difference(key: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    flag = _FLAGS.get(key, f"--{key.replace('_', '-')}")
    return (
        f"{flag} {_short(one.get(key), other.get(key))} and {_short(other.get(key), one.get(key))}"
    )


def _short(value: Any, beside: Any) -> str:
    """What the other has not."""
    if isinstance(value, dict) and isinstance(beside, dict):
        value = {key: own for key, own in value.items() if own != beside.get(key)}
    if isinstance(value, list) and isinstance(beside, list):
        return some([str(own) for own in value if own not in beside])
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 200 else f"{text[:200]}…"
