"""Summaries of each site's records, as JSON in a file's provenance, next to the recipe.

For each site they are the number of its records, their variation, and derivatives of its log
likelihood. The third derivatives show how far that is from a Gaussian. Derivatives of gradient and
curvature by the log dispersion show the effect of another dispersion than the site's own.
"""

import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.artifact.container import altered, parsed
from posterity.tabular.recipe import RECIPE, Recipe, recipe_in

SITES = "sites"
"""The key of the provenance."""
LISTS = ("third", "dispersed")
"""Lists of numbers about a site: the derivatives of its log likelihood."""
NUMBERS = ("records", "dropped", "noise_variance", "dispersion", "spare", "sites")
"""Numbers about a site."""
MOST_SITES, MOST_NUMBERS = 10_000, 200_000
"""Maximum number of sites that a file describes one by one, and of third derivatives of all sites
that it holds."""


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
    number = lambda value: type(value) in (int, float) and abs(value) <= sys.float_info.max
    for own in sites.values():
        if not (
            isinstance(own, dict)
            and all(number(own.get(key, 0)) for key in NUMBERS)
            and all(isinstance(own.get(key, []), list) for key in LISTS)
            and all(number(value) for key in LISTS for value in own.get(key, []))
        ):
            raise altered("a table of sites that is no JSON object of numbers by site")
    return sites


def together(sites: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the total records of several sites, and their mean noise variance by records.

    >>> together([{"records": 10, "noise_variance": 2.0}, {"records": 30, "noise_variance": 4.0}])
    {'records': 40, 'noise_variance': 3.5}
    """
    sites, total = list(sites), {}
    for key in ("records", "dropped"):
        if known := [own[key] for own in sites if key in own]:
            total[key] = sum(known)
    for key in ("noise_variance", "dispersion"):
        # Numbers of records may be rounded to 0.
        noisy = [(max(own["records"], 1), own[key]) for own in sites if {key, "records"} <= {*own}]
        if noisy:
            count = sum(records for records, _ in noisy)
            total[key] = sum(records * value for records, value in noisy) / count
    return total


def without_lists(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the summaries of sites without the derivatives of their likelihoods."""
    plain = lambda own: {key: value for key, value in own.items() if key not in LISTS}
    return {site: plain(own) for site, own in sites.items()}


def kept(provenance: Mapping[str, str], sites: Iterable[str] | None = None) -> dict[str, str]:
    """Return the provenance for a result of a file: its recipe, and summaries of ``sites``.

    None, for a result that is no ledger, keeps all sites, without their derivatives.
    """
    recipe, known = recipe_in(provenance), sites_in(provenance)
    if sites is None:
        return as_provenance(recipe, without_lists(known))
    if "" in known:  # only their sum is known, and some of them have left
        known = {}
    known = {site: own for site, own in known.items() if site in set(sites)}
    return as_provenance(recipe, known)


# --- derivatives ---------------------------------------------------------------------------------


class Dispersed(NamedTuple):
    """The change of a log likelihood, and of its maximum, with the log of the dispersion.

    ``bend`` is minus the second derivative of the adjusted profile likelihood at its maximum.
    ``slope`` (d,) and ``precision`` (d, d) are the derivatives of the expected gradient and of
    minus the expected Hessian.
    """

    bend: float
    slope: np.ndarray
    precision: np.ndarray

    def listed(self, names: Sequence[str]) -> list[float]:
        """Return the numbers as one list, which :meth:`of` reads."""
        return [self.bend, *listed(self.slope, names), *listed(self.precision, names)]

    @classmethod
    def of(cls, numbers: Sequence[float], size: int) -> "Dispersed | None":
        """Read the list of :meth:`listed` for ``size`` coefficients; None if its length differs."""
        bend, slope, rest = numbers[:1], numbers[1 : size + 1], numbers[size + 1 :]
        precision = tensor(rest, size, 2)
        return None if precision is None else cls(bend[0], np.array(slope), precision)


def turned(derivatives: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Transform derivatives of any order in ``z`` to those in ``u``, where ``z = matrix @ u``."""
    for axis in range(derivatives.ndim):
        derivatives = np.moveaxis(np.tensordot(derivatives, matrix, (axis, 0)), -1, axis)
    return derivatives


def listed(derivatives: np.ndarray, names: Sequence[str]) -> list[float]:
    """Return the distinct entries, with coefficients sorted by name, to twelve digits.

    For raw columns they nearly cancel: by up to ``r³`` for one that lies ``r`` deviations from 0.
    """
    order = [np.argsort(names)] * derivatives.ndim
    places = _places(len(names), derivatives.ndim)
    return [float(f"{own:.12g}") for own in derivatives[np.ix_(*order)][places]]


def tensor(numbers: Sequence[float], size: int, order: int = 3) -> np.ndarray | None:
    """Return the derivatives from the numbers of :func:`listed`; None if their count differs."""
    places = _places(size, order)
    if len(numbers) != len(places[0]):
        return None
    derivatives = np.zeros((size,) * order)
    for own in itertools.permutations(places):
        derivatives[own] = numbers
    return derivatives


def moved(numbers: Sequence[float], matrix: np.ndarray, mine: Any, names: Any) -> list[float]:
    """Transform third derivatives in ``mine`` to other coefficients: ``z_site = b + matrix z``."""
    third = tensor(numbers, len(mine))
    if third is None:
        return []
    return listed(turned(third, matrix[np.argsort(mine)]), names)


def moved_dispersed(
    numbers: Sequence[float], matrix: np.ndarray, mine: Any, names: Any
) -> list[float]:
    """Transform a list of :class:`Dispersed` as :func:`moved` does."""
    own = Dispersed.of(numbers, len(mine))
    if own is None:
        return []
    slope, precision = (turned(each, matrix[np.argsort(mine)]) for each in own[1:])
    return Dispersed(own.bend, slope, precision).listed(names)


def _places(size: int, order: int) -> tuple[Any, ...]:
    places = list(itertools.combinations_with_replacement(range(size), order))
    return tuple(np.array(places, int).reshape(-1, order).T)
