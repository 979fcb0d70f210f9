"""Detection of columns that seem to have different units at different sites."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from posterity.families.names import names_of
from posterity.ledger import Ledger
from posterity.models.strata import AT
from posterity.tabular.recipe import HAZARDS, INTERCEPT, Recipe

CONVERTED, CLOSE = 3.0, 1.8
"""Minimum ratio of both means and deviations between two sites at which units seem to differ: for
any column, and for one whose deviation is small relative to its mean."""
WIDER = 10.0
"""The ratio of deviations for columns whose means are not known to be other than zero, as where
they were centred: only deviations tell their units."""
VAGUE = 3.0  # Standard errors from zero up to which a mean may be zero
EVENTS = ("poisson", "negative-binomial", "survival")
"""Models whose sites know as much of a column as they have events, at most."""
APART = 15.0
"""The distance of two sites' means, in standard deviations, from which units seem to differ."""
FALSE_ALARMS = 1e-3
"""Probability that sites of normal records in the same units give any such line by chance."""


def suspicious(
    values: Mapping[str, Any],
    common: Recipe,
    table: tuple[str, Sequence[str], np.ndarray] | None = None,
    known: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[str]:
    """Return lines on columns that seem to have another unit at one site.

    The precision of a regression's factor is ``Σ w x xᵀ``. With the columns that add up to ones it
    gives the weighted mean and deviation of every other column. Units seem to differ where mean and
    deviation differ by the same ratio: at least :data:`CONVERTED`, or :data:`CLOSE` for a column
    whose deviation is small relative to its mean. They also seem to differ where means are
    :data:`APART` deviations apart, or where means may be zero and deviations differ by the ratio
    :data:`WIDER`. Differences that few records give by chance do not count, and
    indicators, whose values are 0 and 1, have no unit.

    Args:
        values: ledgers of Gaussian factors by name; other values are ignored.
        common: the recipe of all ledgers.
        table: new records to compare: a name, the names of columns, and ``x`` (n, columns).
        known: summaries of sites by name; those without ``records`` count as large.
    """
    names = common.shared.coefficients()
    prefix = f"{common.levels[1]}:" if common.model == "multinomial" else ""
    terms = common.terms or [(("column", name),) for name in common.columns or ()]
    used = {term[0][1] for term in terms if len(term) == 1 and term[0][0] == "column"}
    apart = {*common.categories, *common.indicated}
    used = {name for name in used - apart if not common.is_own(name)}
    plain = [name for name in common.shared.inputs() if name in used]
    first = common.baseline or ((INTERCEPT,) if common.intercept else ())
    first = first[:1] if common.hazard in HAZARDS else first  # all others add up to ones
    if not (common.regression and plain and first):
        return []
    units = np.array([(common.center.get(n, 0.0), common.scale.get(n, 1.0)) for n in plain]).T
    sites: list[str] = []
    moments, weights = [], []
    for value in values.values():
        for site in value.sites if isinstance(value, Ledger) else ():
            factor: Any = value.factor(site)
            order = names_of(factor).get("", names)
            shared = [name.partition(AT)[0] for name in order]
            if not factor.gaussian or factor.diagonal or set(shared) != set(names):
                continue
            square, at = factor.precision, [order.index(f"{prefix}{name}") for name in plain]
            ones = np.array([float(name.removeprefix(prefix) in first) for name in shared])
            weight = ones @ square @ ones
            if weight > 0:
                mean = (ones @ square)[at] / weight
                variance = np.diagonal(square)[at] / weight - mean**2
                sd = np.sqrt(np.maximum(variance, 1e-9 * (mean**2 + 1)))
                sites.append(site)
                weights.append(weight)
                varies = variance > 1e-9 * (mean**2 + 1)
                moments.append((units[0] + units[1] * mean, units[1] * sd, varies))
    if table is not None and len(table[2]):
        columns = table[2][:, [list(table[1]).index(f"{prefix}{name}") for name in plain]]
        sites.append(table[0])
        spread = columns.std(0)
        moments.append((units[0] + units[1] * columns.mean(0), units[1] * spread, spread > 0))
    if len(sites) < 2:
        return []
    number = lambda site: float((known or {}).get(site, {}).get("records", np.inf))
    counts = [number(site) for site in sites]
    if common.model in EVENTS:
        counts[: len(weights)] = map(min, counts, weights)
    if table is not None and len(table[2]):
        counts[-1] = float(len(table[2]))
    rare = FALSE_ALARMS / (len(sites) * len(plain))
    lines = []
    for name, (mean, sd, varies) in zip(plain, np.transpose(moments), strict=True):
        if np.allclose(mean * (1 - mean), sd**2, rtol=0.0, atol=1e-6):  # of 0 and 1 only
            continue
        # Compare with the first of two sites, or with the most usual of more.
        usual = np.median(sd)
        with np.errstate(divide="ignore", invalid="ignore"):  # of columns that do not vary
            away = np.abs(mean - np.median(mean)) / usual + np.abs(np.log(sd / usual))
        away = np.where(np.isnan(away), np.inf, away)
        other = 0 if len(sites) == 2 else int(np.argmin(away))
        vague = np.abs(mean) * np.sqrt(counts) < VAGUE * sd
        for k, (site, m, s, count) in enumerate(zip(sites, mean, sd, counts, strict=True)):
            with np.errstate(divide="ignore", invalid="ignore"):
                factor, wide = m / mean[other], s / sd[other]
                times, off = max(factor, 1 / factor), max(factor / wide, wide / factor)
            narrow = max(s / abs(m), sd[other] / abs(mean[other])) < 0.4 if m and mean[other] else 0
            scaled = (times > CONVERTED and off < 2.5) or (narrow and times > CLOSE and off < 1.3)
            if vague[k] and vague[other]:
                factor, both = wide, varies[k] and varies[other]
                scaled = both and max(wide, 1 / wide) > WIDER
            if not (scaled or abs(m - mean[other]) > APART * max(s, sd[other])):
                continue
            pair = np.array([(m, s, count), (mean[other], sd[other], counts[other])]).T
            if _by_chance(*pair) < rare:
                about = f", which is about {1 / factor:.2g}" if scaled else ""
                lines.append(
                    f"{name!r} is {m:.3g} ± {s:.2g} at {site!r} and {mean[other]:.3g} ± "
                    f"{sd[other]:.2g} at {sites[other]!r}: is the unit the same? If not, convert "
                    f"the table of {site!r}: --convert {name}=FACTOR{about}"
                )
    return lines


def _by_chance(mean: np.ndarray, sd: np.ndarray, count: np.ndarray) -> float:
    """Return the probability that two samples of one distribution differ so much, at most.

    It is that of an F test of variances, or of a t test of means or of their logarithms, whichever
    is smallest, times three.
    """
    freedom = count.sum() - 2
    if not np.isfinite(freedom):
        return 0.0
    if freedom < 1:
        return 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.sqrt(freedom * np.sum(1 / np.maximum(count, 1.0)))
        pooled = lambda deviation: share * np.sqrt(count @ deviation**2) / freedom
        scores = [abs(mean[0] - mean[1]) / pooled(sd)]
        scores.append(abs(np.log(mean[0] / mean[1])) / pooled(sd / mean))
        odds = [scipy.special.stdtr(freedom, -score) for score in scores]
        if min(count) > 1:
            variance = sd**2 * count / (count - 1)
            wide, narrow = np.argmax(variance), np.argmin(variance)
            ratio = variance[wide] / variance[narrow]
            odds.append(scipy.special.fdtrc(count[wide] - 1, count[narrow] - 1, ratio))
    return 6 * float(np.nanmin(odds))  # three tests of two sides
