"""The records of each site that a file is made of, as JSON in its provenance, beside the recipe.

Of each site it is how many records it had, how much they vary, and derivatives of its log
likelihood: those of the third order show how far that is from a Gaussian, and those of its gradient
and curvature by the log dispersion what another dispersion than the site's own would change.
"""

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.artifact.container import altered, parsed
from posterity.artifact.recipe import RECIPE, Recipe, recipe_in

SITES = "sites"
"""The key of the provenance."""
LISTS = ("third", "dispersed")
"""Lists of numbers about a site: the derivatives of its log likelihood."""
NUMBERS = ("records", "dropped", "noise_variance", "dispersion", "spare", "sites")
"""Numbers about a site."""
MOST_SITES, MOST_NUMBERS = 10_000, 200_000
"""Sites of which a file says one by one how many records they had, and third derivatives of all of
them that it holds at most."""


def as_provenance(
    recipe: Recipe | None, sites: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, str]:
    """The provenance to save with what was made by a recipe, of these sites."""
    if recipe is None:
        return {}
    sites = sites or {}
    if len(sites) > MOST_SITES:  # a header has no room for them: their sum alone
        sites = {"": together(sites.values()) | {"sites": len(sites)}}
    if sum(len(own.get("third", ())) for own in sites.values()) > MOST_NUMBERS:
        sites = without_lists(sites)
    text = json.dumps(sites, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return {RECIPE: recipe.canonical(), **({SITES: text} if sites else {})}


def sites_in(provenance: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return by site what its records were: ``records``, ``dropped``, ``noise_variance``, and
    versions; an ArtifactError for what is no such table.
    """
    if SITES not in provenance:
        return {}
    sites = parsed(provenance[SITES], "table of sites")
    number = lambda value: type(value) in (int, float) and math.isfinite(value)
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
    """Records of several sites in all, and their noise variance, each weighed by its records.

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
    """Return what is known of sites' records, without derivatives of their likelihoods."""
    plain = lambda own: {key: value for key, value in own.items() if key not in LISTS}
    return {site: plain(own) for site, own in sites.items()}


def kept(provenance: Mapping[str, str], sites: Iterable[str] | None = None) -> dict[str, str]:
    """The recipe of a file and what it says of ``sites``, for what is made of it.

    Of all sites, for what is no ledger, without the derivatives by which ledgers are fused.
    """
    recipe, known = recipe_in(provenance), sites_in(provenance)
    if sites is None:
        return as_provenance(recipe, without_lists(known))
    if "" in known:  # their sum alone is known, and some of them have left
        known = {}
    known = {site: own for site, own in known.items() if site in set(sites)}
    return as_provenance(recipe, known)


# --- derivatives ---------------------------------------------------------------------------------


class Dispersed(NamedTuple):
    """The change of a log likelihood, and of its maximum, with the log of the dispersion.

    ``bend`` is minus the second derivative of the adjusted profile likelihood at its maximum;
    ``slope`` (d,) and ``precision`` (d, d) are the derivatives of the expected gradient and of
    minus the expected Hessian.
    """

    bend: float
    slope: np.ndarray
    precision: np.ndarray

    def listed(self, names: Sequence[str]) -> list[float]:
        """The numbers that :meth:`of` takes apart again."""
        return [self.bend, *listed(self.slope, names), *listed(self.precision, names)]

    @classmethod
    def of(cls, numbers: Sequence[float], size: int) -> "Dispersed | None":
        """Return what :meth:`listed` wrote of ``size`` coefficients; None of another number."""
        bend, slope, rest = numbers[:1], numbers[1 : size + 1], numbers[size + 1 :]
        precision = tensor(rest, size, 2)
        return None if precision is None else cls(bend[0], np.array(slope), precision)


def turned(derivatives: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Derivatives of any order in ``u``, where ``z = matrix @ u``."""
    for axis in range(derivatives.ndim):
        derivatives = np.moveaxis(np.tensordot(derivatives, matrix, (axis, 0)), -1, axis)
    return derivatives


def listed(derivatives: np.ndarray, names: Sequence[str]) -> list[float]:
    """The distinct entries, of coefficients in the order of their sorted names, to twelve digits.

    Those of raw columns all but cancel: of one that lies ``r`` deviations from 0 up to ``r³`` fold.
    """
    order = [np.argsort(names)] * derivatives.ndim
    places = _places(len(names), derivatives.ndim)
    return [float(f"{own:.12g}") for own in derivatives[np.ix_(*order)][places]]


def tensor(numbers: Sequence[float], size: int, order: int = 3) -> np.ndarray | None:
    """The derivatives that :func:`listed` made these numbers of; None of another size."""
    places = _places(size, order)
    if len(numbers) != len(places[0]):
        return None
    derivatives = np.zeros((size,) * order)
    for own in itertools.permutations(places):
        derivatives[own] = numbers
    return derivatives


def moved(numbers: Sequence[float], matrix: np.ndarray, mine: Any, names: Any) -> list[float]:
    """Third derivatives of a site's coefficients ``mine``, in others: ``z_site = b + matrix z``."""
    third = tensor(numbers, len(mine))
    if third is None:
        return []
    return listed(turned(third, matrix[np.argsort(mine)]), names)


def moved_dispersed(
    numbers: Sequence[float], matrix: np.ndarray, mine: Any, names: Any
) -> list[float]:
    """The same of :class:`Dispersed`."""
    own = Dispersed.of(numbers, len(mine))
    if own is None:
        return []
    slope, precision = (turned(each, matrix[np.argsort(mine)]) for each in own[1:])
    return Dispersed(own.bend, slope, precision).listed(names)


def _places(size: int, order: int) -> tuple[Any, ...]:
    places = list(itertools.combinations_with_replacement(range(size), order))
    return tuple(np.array(places, int).reshape(-1, order).T)
