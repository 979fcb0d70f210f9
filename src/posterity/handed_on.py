"""Whether what left a ledger came back to it within the change of another site's factor."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from posterity.arrays import tree_sums
from posterity.ledger import Ledger


@dataclasses.dataclass(frozen=True)
class Likeness:
    """When the change of a factor counts as ``±`` a factor that left.

    Beside an honest refinement its relative residual is at most ``beside``, and the multiple is one
    to within ``multiple``. Where directions are often similar, with fewer than ``dimensions`` and
    for sites that join, both are at most ``exact``. A factor up to the length ``least``, in
    sqrt(nats), is ignored.
    """

    beside: float = 0.1
    multiple: float = 0.05
    exact: float = 1e-3
    dimensions: int = 4
    least: float = 1e-9


def handed_on(leavers: Sequence[str], before: Ledger, after: Ledger, likeness: Likeness) -> bool:
    """Return whether the change of a site, or of all together, is the factor of a forgotten site,
    or of all of them: alone, or beside an honest refinement.

    Lengths and angles are those of the Fisher metric at the posterior before. The direction of a
    site's own earlier factor is taken out first, since factors of similar sites are similar.
    """
    total = before.total
    zero = before.prior.zero()
    at: Any = total if np.all(total.is_proper()) else before.prior

    def of(ledger, site):
        return ledger.factor(site) if site in ledger.sites else zero

    lost = [of(before, site) for site in leavers]
    lost.append(tree_sums.total(lost))
    old = [of(before, site) for site in after.sites]
    new = [of(after, site) for site in after.sites]
    changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    if not changed:
        return False
    both = tuple(tree_sums.total(laws) for laws in zip(*changed, strict=True))
    pairs = itertools.product([*changed, both], lost)
    return any(_is_multiple(at, own, gained - own, gone, likeness) for (own, gained), gone in pairs)


def _is_multiple(at: Any, own: Any, gain: Any, lost: Any, likeness: Likeness) -> bool:
    """Return whether the gain of a site with the factor ``own`` is about ``± lost``."""
    beside = gain.dimension >= likeness.dimensions and bool(np.any(own.natural_parameters))
    if beside:
        gain = _apart(at, gain, own)
        lost = _apart(at, lost, own)
    size = _length(at, lost)
    length = _length(at, gain)
    if not min(size, length) > likeness.least:
        return False
    multiple = _inner(at, gain, lost) / size**2
    rest = _length(at, gain - lost * multiple) / length
    off = abs(abs(multiple) - 1)
    if beside:
        return rest <= likeness.beside and off <= likeness.multiple
    return max(rest, off) <= likeness.exact


def _apart(at: Any, factor: Any, own: Any) -> Any:
    """Return the factor without its part along another one."""
    return factor - own * (_inner(at, own, factor) / _length(at, own) ** 2)


def _length(at: Any, step: Any) -> float:
    with np.errstate(all="ignore"):
        return float(np.sqrt(at.squared_length(step)))


def _inner(at: Any, one: Any, other: Any) -> float:
    """Return the inner product, by polarization."""
    return (_length(at, one + other) ** 2 - _length(at, one - other) ** 2) / 4
