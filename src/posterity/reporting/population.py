"""The population that sites vary about, as data, in sentences and as a section of a page."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from posterity.families.marginals import Table
from posterity.inference.federated_effects import caveats_of, effects_of, with_random_effects
from posterity.inference.population import BLOCKS
from posterity.inference.random_effects import Effects, RandomEffects
from posterity.ledger import Ledger
from posterity.reporting.markup import Markup, table
from posterity.runtime.text import count, natural
from posterity.tabular.one_shot import silent_in


def population_of(
    value: Any,
    level: float,
    facts: Mapping[str, Mapping[str, Any]],
    effects: Effects | None = None,
) -> dict[str, Any] | None:
    """Return :func:`described` of a ledger whose sites differ; None for anything else.

    It has no Q, p and I² if a federation's factors tell these only roughly, or if a site has no
    estimate of its own, as where its records are of one class.

    Args:
        value: the ledger, or another value.
        level: probability of intervals.
        facts: facts about the sites' records, as in the file's provenance.
        effects: the ledger's population, if it is known already.
    """
    ledger = with_random_effects(value)
    if not isinstance(ledger, Ledger) or not isinstance(ledger.prior, RandomEffects):
        return None
    if not ledger.sites:
        return None
    found = described(effects or effects_of(ledger), level)
    if caveats_of(value) or silent_in(ledger, facts):
        found |= {"q": None, "p": None}
        for one in found["coefficients"]:
            one["i2"] = None
    return found


def tables_of(value: Any, tables: Sequence[Table]) -> tuple[Table, ...]:
    """Return tables of the numbers of a posterior. Of a ledger whose sites differ there is one, of
    the exact laws of the population's coefficients: its spreads are :func:`described` as such.
    """
    population = isinstance(value, Ledger) and isinstance(value.prior, RandomEffects)
    if not population or not value.sites:
        return tuple(tables)
    law = effects_of(value).nodes.marginals()
    return tuple(dataclasses.replace(own, law=law) for own in tables if own.block == BLOCKS[0])


def described(effects: Effects, level: float) -> dict[str, Any]:
    """Return a population as data.

    ``q``, ``degrees`` and ``p`` are Cochran's; ``coefficients`` has a row for each, with its mean,
    interval and, if it differs between sites, spread ``tau`` (REML), the spread's interval, ``i2``
    and the interval of a new site; ``sites`` has each site's own estimate and its shrunken one.
    Numbers that do not exist are None.
    """
    rows = zip(
        effects.names,
        effects.mean.tolist(),
        effects.interval(level).tolist(),
        effects.prediction_interval(level).tolist(),
        strict=True,
    )
    spreads = zip(
        effects.spread.tolist(),
        effects.spread_interval(level).tolist(),
        effects.i2.tolist(),
        strict=True,
    )
    differ = dict(zip(effects.personal, spreads, strict=True))
    coefficients = []
    for name, mean, (low, high), (new_low, new_high) in rows:
        one = {"name": name, "mean": mean, "low": low, "high": high}
        tau, (tau_low, tau_high), i2 = differ.get(name, (None, (None, None), None))
        one |= {"tau": _known(tau), "tau_low": tau_low, "tau_high": tau_high, "i2": _known(i2)}
        coefficients.append(one | {"new_low": new_low, "new_high": new_high})
    return {
        "q": effects.q,
        "degrees": effects.degrees,
        "p": _known(effects.p),
        "level": level,
        "coefficients": coefficients,
        "sites": [*_sites(effects)],
    }


def _sites(effects: Effects) -> Iterator[dict[str, Any]]:
    for site in sorted(effects.sites, key=natural):
        own = zip(effects.names, *effects.alone(site), *effects.shrunken(site), strict=True)
        for name, estimate, error, mean, sd in own:
            known = {"estimate": _known(estimate), "error": _known(error)}
            yield {"site": site, "name": name, **known, "mean": mean, "sd": sd}


def _known(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def in_words(population: Mapping[str, Any]) -> list[str]:
    """Return a sentence on Q, if known, and one on each coefficient: mean, spread, a new site."""
    share = f"{100 * population['level']:g} %"
    lines = []
    if not population["degrees"]:
        lines.append("No two sites know a common coefficient, so none tells how far sites differ.")
    elif population["q"] is not None:
        lines.append(
            f"Sites' estimates differ by Q = {population['q']:.4g} on "
            f"{count(population['degrees'], 'degree')} of freedom "
            f"(p = {population['p']:.2g} if sites were alike)."
        )
    for row in population["coefficients"]:
        line = (
            f"{row['name']} is {row['mean']:.4g} in the population ({share} from "
            f"{row['low']:.4g} to {row['high']:.4g})"
        )
        if row["tau_low"] is not None:
            known = row["tau"] is not None
            tau = "is unknown, as fewer than two sites tell it"
            if known:
                tau = f"is {row['tau']:.3g} where its likelihood is greatest"
            i2 = f", I² {row['i2']:.0%}" if row["i2"] is not None else ""
            line += (
                f"; between sites its spread τ {tau} (by its posterior from "
                f"{row['tau_low']:.3g} to {row['tau_high']:.3g}){i2}; a new site's is "
                f"from {row['new_low']:.4g} to {row['new_high']:.4g}"
            )
        lines.append(f"{line}.")
    return lines


def section(population: Mapping[str, Any]) -> list[Markup]:
    """Return a page's section: a table of sites' own and shrunken estimates."""
    rows = map(itemgetter("site", "name", "estimate", "error", "mean", "sd"), population["sites"])
    headers = ["Site", "Coefficient", "Own estimate", "Its error", "Shrunken", "Its sd"]
    title = "Each site's own estimate, and what it is in the light of the others"
    return [table(title, headers, rows)]
