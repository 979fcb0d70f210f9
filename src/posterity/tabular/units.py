"""Detection of columns that seem to have different units at different sites."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import fdtrc, stdtr

from posterity.families.names import names_of
from posterity.ledger import Ledger
from posterity.models.strata import AT
from posterity.tabular.options import HAZARDS, INTERCEPT
from posterity.tabular.recipe import Recipe

EVENTS = ("poisson", "negative-binomial", "survival")
"""Models whose sites know as much of a column as they have events, at most."""


class _Moments(NamedTuple):
    """Means and deviations (k,) of a site's columns, and the number of records they are of."""

    mean: np.ndarray
    sd: np.ndarray
    count: float


def suspicious(
    values: Mapping[str, Any],
    common: Recipe,
    table: tuple[str, Sequence[str], np.ndarray] | None = None,
    known: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    factor: float = 3.0,
    apart: float = 8.0,
    chance: float = 1e-3,
) -> list[str]:
    """Return lines on columns that seem to have another unit at one site.

    Another unit multiplies a column's mean and its deviation by one number. So units seem to differ
    where both differ between two sites in one direction by ``factor`` or more, and less from each
    other; where means may be zero, as of centred columns, deviations decide alone. Or means are
    ``apart``, as inches and centimetres, or °F and °C, of columns that vary little.

    The precision of a regression's factor, ``Σ w x xᵀ``, has the weighted moments of all columns
    relative to those that add up to ones. Indicators, whose values are 0 and 1, have no unit.

    Args:
        values: ledgers of Gaussian factors by name; other values are ignored.
        common: the recipe of all ledgers.
        table: new records to compare: a name, the names of columns, and ``x`` (n, columns).
        known: summaries of sites by name; those without ``records`` count as large.
        factor: least ratio that counts; sites in one unit often differ by two.
        apart: least number of the larger deviation between means that counts; children and adults
            are five apart.
        chance: probability that sites of normal records in the same units give any such line.
    """
    columns = _measured(common)
    found: dict[str, _Moments] = {}
    for value in values.values():
        for site in value.sites if columns and isinstance(value, Ledger) else ():
            records = float((known or {}).get(site, {}).get("records", 1e9))
            moments = _of_factor(value.factor(site), common, columns, records)
            if moments is not None:
                found[site] = moments
    if columns and table is not None and len(table[2]):
        name, header, x = table
        prefix = _prefix(common)
        x = x[:, [list(header).index(f"{prefix}{column}") for column in columns]]
        found[name] = _in_units(common, columns, _Moments(x.mean(0), x.std(0), len(x)))
    if len(found) < 2:
        return []
    sites = list(found)
    mean, sd = (np.array([getattr(own, key) for own in found.values()]) for key in ("mean", "sd"))
    counts = np.array([own.count for own in found.values()])
    vague = np.abs(mean) * np.sqrt(counts)[:, None] < 3.0 * sd  # zero is within three errors
    indicators = np.isclose(mean * (1 - mean), sd**2, rtol=0.0, atol=1e-6).all(0)
    rare = chance / mean.size
    lines = []
    for place in np.flatnonzero(~indicators & (sd > 0).all(0)):
        # Compare with the first of two sites, or with the most usual of more.
        usual = 0 if len(sites) == 2 else int(np.argsort(sd[:, place])[len(sites) // 2])
        ratios = sd[:, place] / sd[usual, place]
        with np.errstate(divide="ignore", invalid="ignore"):
            means = np.abs(mean[:, place] / mean[usual, place])
        means = np.where(vague[:, place] & vague[usual, place], ratios, means)
        for k, ratio in enumerate(ratios):
            low, high = sorted([ratio, means[k]])
            both = counts[k], counts[usual]
            scaled = (low >= factor or high <= 1 / factor) and high < factor * low
            scaled = scaled and _by_chance(ratio, *both) < rare
            pair = [k, usual]
            gap = np.ptp(mean[pair, place]) / sd[pair, place].max()
            shift = 2 * stdtr(max(min(both) - 1, 1), -gap * np.sqrt(min(both) / 2))
            if scaled or (gap > apart and shift < rare):
                column = columns[place]
                line = (
                    f"{column!r} is {mean[k, place]:.3g} ± {sd[k, place]:.2g} at {sites[k]!r} and "
                    f"{mean[usual, place]:.3g} ± {sd[usual, place]:.2g} at {sites[usual]!r}: is "
                    f"the unit the same? If not, convert the table of {sites[k]!r}"
                )
                if scaled or _by_chance(ratio / means[k], *both) >= rare:  # one factor makes both
                    line += f": --convert {column}=FACTOR, which is about {1 / means[k]:.2g}"
                lines.append(line)
    return lines


def _prefix(common: Recipe) -> str:
    """Return the beginning of the names of coefficients of the first class that has them."""
    return f"{common.levels[1]}:" if common.model == "multinomial" else ""


def _measured(common: Recipe) -> list[str]:
    """Return the columns with a unit that are inputs themselves; none without a column of ones."""
    terms = common.terms or [(("column", name),) for name in common.columns or ()]
    used = {term[0][1] for term in terms if len(term) == 1 and term[0][0] == "column"}
    used -= {*common.categories, *common.indicated}
    plain = [name for name in common.shared.inputs() if name in used and not common.is_own(name)]
    return plain if common.baseline or common.intercept else []


def _in_units(common: Recipe, columns: Sequence[str], moments: _Moments) -> _Moments:
    """Return moments of columns in their own units, before ``center`` and ``scale``."""
    center = np.array([common.center.get(name, 0.0) for name in columns])
    scale = np.array([common.scale.get(name, 1.0) for name in columns])
    return _Moments(center + scale * moments.mean, scale * moments.sd, moments.count)


def _of_factor(
    factor: Any, common: Recipe, columns: Sequence[str], records: float
) -> _Moments | None:
    """Return the moments of a site's columns by its factor; None if it does not tell them."""
    names = common.shared.coefficients()
    order = names_of(factor).get("", names)
    shared = [name.partition(AT)[0] for name in order]
    if not factor.gaussian or factor.diagonal or set(shared) != set(names):
        return None
    prefix = _prefix(common)
    first = common.baseline or (INTERCEPT,)
    first = first[:1] if common.hazard in HAZARDS else first  # all others add up to ones
    ones = np.array([float(name.removeprefix(prefix) in first) for name in shared])
    at = [order.index(f"{prefix}{name}") for name in columns]
    weight = ones @ factor.precision @ ones
    if not weight > 0:
        return None
    mean = (ones @ factor.precision)[at] / weight
    variance = np.diagonal(factor.precision)[at] / weight - mean**2
    rounding = 1e-9 * (mean**2 + 1)
    sd = np.sqrt(np.where(variance > rounding, variance, 0.0))
    count = min(records, float(weight)) if common.model in EVENTS else records
    return _in_units(common, columns, _Moments(mean, sd, count))


def _by_chance(ratio: float, count: float, other: float) -> float:
    """Return the probability that two samples' deviations differ by this ratio, by an F test."""
    freedom = np.array([count, other]) - 1
    if ratio < 1:
        ratio = 1 / ratio
        freedom = freedom[::-1]
    return 2 * float(fdtrc(*freedom, ratio**2)) if freedom.min() > 0 else 1.0
