"""Summaries of each site's records, as JSON in a file's provenance, next to the recipe.

For each site they are the number of its records, their variation, and derivatives of its log
likelihood, which show how far that is from a Gaussian.
"""

import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from posterity.artifact import Inspection, open_artifact
from posterity.artifact.container import altered, parsed
from posterity.errors import UsageError
from posterity.ledger import Ledger
from posterity.runtime import text as words
from posterity.runtime.files import named
from posterity.tabular.recipe import RECIPE, Recipe, recipe_in

SITES = "sites"
"""The key of the provenance."""
LISTS = ("third",)
"""Lists of numbers about a site: the third derivatives of its log likelihood."""
NOTES = "notes"
"""Notes in words on what its fit knows less well than its numbers say."""
NUMBERS = ("records", "rounded", "dropped", "noise_variance", "dispersion", "spare", "sites")
"""Numbers about a site."""
MOST_NOTES = 100
"""Maximum number of notes in the sum of many sites."""
MOST_SITES = 10_000
"""Maximum number of sites that a file describes one by one, in its header."""
MOST_NUMBERS = 200_000
"""Maximum number of third derivatives of all sites that a file holds, in its header."""


def as_provenance(
    recipe: Recipe | None, sites: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, str]:
    """Return the provenance of a file made by a recipe from these sites."""
    if recipe is None:
        return {}
    sites = sites or {}
    if len(sites) > MOST_SITES:  # too many for a header: store only their sum
        sites = {"": together(sites.values()) | {"sites": len(sites)}}
    if sum(len(own.get("third", ())) for own in sites.values()) > MOST_NUMBERS:
        sites = without_lists(sites)
    text = json.dumps(sites, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return {RECIPE: recipe.canonical(), **({SITES: text} if sites else {})}


def sites_in(provenance: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the summaries by site: ``records``, ``dropped``, ``noise_variance``, and others.
    Raises an ArtifactError if they are no such table.
    """
    if SITES not in provenance:
        return {}
    sites = parsed(provenance[SITES], "table of sites")

    def number(value):
        return type(value) in (int, float) and abs(value) <= sys.float_info.max

    for own in sites.values():
        if not (
            isinstance(own, dict)
            and all(number(own.get(key, 0)) for key in NUMBERS)
            and own.get("rounded", 1) >= 1
            and all(isinstance(own.get(key, []), list) for key in (*LISTS, NOTES))
            and all(isinstance(line, str) for line in own.get(NOTES, []))
            and all(number(value) for key in LISTS for value in own.get(key, []))
        ):
            raise altered("a table of sites that is no JSON object of numbers by site")
    return sites


def together(sites: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the total records of several sites, and their mean noise variance by records.

    >>> together([{"records": 10, "noise_variance": 2.0}, {"records": 30, "noise_variance": 4.0}])
    {'records': 40, 'noise_variance': 3.5}
    """
    sites = list(sites)
    total = {}
    for key in ("records", "dropped"):
        known = [own[key] for own in sites if key in own]
        if known:
            total[key] = sum(known)
    notes = dict.fromkeys(line for own in sites for line in own.get(NOTES, ()))
    if notes:
        total[NOTES] = [*notes][:MOST_NOTES]
    for key in ("noise_variance", "dispersion"):
        # Numbers of records may be rounded to 0.
        noisy = [(max(own["records"], 1), own[key]) for own in sites if {key, "records"} <= {*own}]
        if noisy:
            count = sum(records for records, _ in noisy)
            total[key] = sum(records * value for records, value in noisy) / count
    return total


def law_of(value: Any) -> Any:
    """Return the posterior of a ledger, or a law as it is."""
    return value.posterior if isinstance(value, Ledger) else value


def twice(what: str, site: str) -> UsageError:
    """Return the error for two tables, or files, of one site."""
    fix = "Leave one out, or name them, as in north=FILE south=FILE."
    return UsageError(found=f"two {what} of site {site!r}", expected="each site once", fix=fix)


def in_words(names: Iterable[str], most: int = 10, longest: int = 200) -> str:
    """Return the first names of sites or coefficients in words, long enough to tell them apart."""
    return words.listed(names, most, longest)


def said(sites: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the notes on sites' fits in words, each with the sites that it is about, unless all.

    >>> said({"north": {"notes": ["few events"]}, "south": {}})
    ['north: few events']
    """
    about: dict[str, list[str]] = {}
    for site, own in sites.items():
        for line in own.get(NOTES, ()):
            about.setdefault(line, []).append(site)
    every = len(sites)
    return [
        line if len(whose) == every else f"{in_words(whose)}: {line}"
        for line, whose in about.items()
    ]


def under(provenance: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the provenance of a file of one site with its summary under another name."""
    own = list(sites_in(provenance).values())
    renamed = {} if len(own) != 1 else as_provenance(recipe_in(provenance), {name: own[0]})
    return {**provenance, **renamed}


def read_any(path: str | os.PathLike[str]) -> tuple[Any, Inspection]:
    """Return the value in a file and its inspection; errors as of :func:`posterity.load`.

    Of ``NAME=FILE`` the only site of a ledger has that name.
    """
    name, file = named(path)
    value, about = open_artifact(file)
    if name is None or not isinstance(value, Ledger):
        return value, about
    return value.renamed(name), dataclasses.replace(about, provenance=under(about.provenance, name))


def without_lists(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the summaries of sites without the derivatives of their likelihoods."""

    def plain(own):
        return {key: value for key, value in own.items() if key not in LISTS}

    return {site: plain(own) for site, own in sites.items()}


def kept(provenance: Mapping[str, str], sites: Iterable[str] | None = None) -> dict[str, str]:
    """Return the provenance for a result of a file: its recipe, and summaries of ``sites``.

    None, for a result that is no ledger, keeps all sites, without their derivatives.
    """
    recipe = recipe_in(provenance)
    known = sites_in(provenance)
    if sites is None:
        return as_provenance(recipe, without_lists(known))
    if "" in known:  # only their sum is known, and some of them have left
        known = {}
    known = {site: own for site, own in known.items() if site in set(sites)}
    return as_provenance(recipe, known)


# --- derivatives ---------------------------------------------------------------------------------


def turned(derivatives: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Transform third derivatives in ``z`` to those in ``u``, where ``z = matrix @ u``."""
    for axis in range(derivatives.ndim):
        derivatives = np.moveaxis(np.tensordot(derivatives, matrix, (axis, 0)), -1, axis)
    return derivatives


def listed(derivatives: np.ndarray, names: Sequence[str]) -> list[float]:
    """Return the distinct entries, with coefficients sorted by name, to twelve digits.

    For raw columns they nearly cancel: by up to ``r³`` for one that lies ``r`` deviations from 0.
    """
    order = np.argsort(names)
    sorted_ = derivatives[np.ix_(order, order, order)]
    return [float(f"{own:.12g}") for own in sorted_[_places(len(names))]]


def tensor(numbers: Sequence[float], size: int) -> np.ndarray | None:
    """Return the derivatives from the numbers of :func:`listed`; None if their count differs."""
    places = _places(size)
    if len(numbers) != len(places[0]):
        return None
    derivatives = np.zeros((size, size, size))
    for own in itertools.permutations(places):
        derivatives[own] = numbers
    return derivatives


def moved(numbers: Sequence[float], matrix: np.ndarray, mine: Any, names: Any) -> list[float]:
    """Transform third derivatives in ``mine`` to other coefficients: ``z_site = b + matrix z``."""
    third = tensor(numbers, len(mine))
    if third is None:
        return []
    return listed(turned(third, matrix[np.argsort(mine)]), names)


def _places(size: int) -> tuple[Any, ...]:
    places = list(itertools.combinations_with_replacement(range(size), 3))
    return tuple(np.array(places, int).reshape(-1, 3).T)
