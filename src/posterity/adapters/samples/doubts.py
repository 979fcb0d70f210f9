"""What is to be said against a fit: sentences with what to try."""

import math
from collections.abc import Iterator
from typing import Any

from scipy.stats import norm

from posterity.adapters.samples.checks import Checks, Coordinate

FEW = 50
"""Effective draws below which moments are guesses."""
DISAGREE = 1.1
"""R-hat of chains that have not found the same."""
NATS = 0.1
"""Of the law from the draws, at least: a total variation of a fifth is then possible."""
OWN_NATS = 0.05
"""Of one coordinate."""
SKEWED = 0.8
"""Of a skewness, which then costs some 0.05 nats."""
HEAVY = 4.0
"""Of a kurtosis in excess of three beside a square of the skewness: tails, and not sides."""
ERRORS = 4.0
SAMPLING = 1.0
"""Nats to be expected of sampling alone."""


def doubts(checks: Checks, family: Any) -> tuple[str, ...]:
    """All of them, the draws' first."""
    return tuple(_draws(checks)) + tuple(_fit(checks, family))


def _draws(checks: Checks) -> Iterator[str]:
    rows = checks.coordinates.values()
    if apart := [own for own in rows if own.rhat > DISAGREE]:
        worst = max(apart, key=lambda own: own.rhat)
        yield (
            f"Chains disagree: R-hat is {worst.rhat:.2f} for {worst.name}{_more(apart)}. "
            "Run longer chains; where they are in different modes, their weights are not known."
        )
    if still := [own for own in rows if own.still]:
        worst = max(still, key=lambda own: own.still)
        yield (
            f"Chains stand still: {worst.still} of them keep {worst.name} at one value for half of "
            f"their draws or longer{_more(still)}. Leave them out, or mend the sampler."
        )
    if few := [own for own in rows if own.effective < FEW]:
        worst = min(few, key=lambda own: own.effective)
        yield (
            f"Few effective draws: {worst.draws} draws of {worst.name} are worth "
            f"{worst.effective:.0f}{_more(few)}. Draw at least "
            f"{math.ceil(FEW / worst.effective)} times as many."
        )
    if checks.sampling > SAMPLING:
        yield (
            f"More parameters than draws can tell: {checks.sampling:.1f} nats are lost by sampling "
            "alone. Draw more, or take family='low-rank' or 'diagonal'."
        )


def _fit(checks: Checks, family: Any) -> Iterator[str]:
    two = () if checks.multimodal_law else checks.bimodal
    if two:
        kind = f"{family} law" if isinstance(family, str) else "law of its kind"
        yield (
            f"Two modes, along {', '.join(two)}: one {kind} covers what lies between them. "
            "Try family='mixture'."
        )
    rows = list(checks.coordinates.values())
    errors = max(ERRORS, float(norm.isf(1e-5 / max(len(rows), 1))))
    heavy = [
        own for own in rows if own.kurtosis > HEAVY + 2 * own.skewness**2 and own.kl > OWN_NATS
    ]
    skewed = [
        own
        for own in rows
        if abs(own.skewness) > max(SKEWED, errors * own.skewness_error)
        and own.modes == 1
        and own not in heavy
    ]
    off = [own for own in rows if own.kl > max(OWN_NATS, errors * own.kl_error)]
    if skewed and not two:
        worst = max(skewed, key=lambda own: abs(own.skewness))
        yield (
            f"Skewed: {worst.name} has skewness {worst.skewness:.2f} ± {worst.skewness_error:.2f}"
            f"{_more(skewed)}. {_remedy(worst, family)}"
        )
    if heavy and not two and not skewed:
        worst = max(heavy, key=lambda own: own.kurtosis)
        yield (
            f"Heavy tails: {worst.name} has an excess kurtosis of {worst.kurtosis:.1f} ± "
            f"{worst.kurtosis_error:.1f}{_more(heavy)}. Try family='mixture'."
        )
    lost = checks.correlation
    if lost > max(NATS, errors * checks.kl_error):
        yield (
            f"Correlations are left out, of {lost:.2f} nats. Try family='gaussian' or 'low-rank' "
            "without independent=True."
        )
    whole = checks.kl > max(NATS, errors * checks.kl_error)
    if (whole or off) and not (two or skewed or heavy) and lost <= checks.kl / 2:
        worst = max(rows, key=lambda own: own.kl - own.kl_error)
        where = f", {worst.kl:.2f} ± {worst.kl_error:.2f} of them in {worst.name}" if off else ""
        yield (
            f"The law is at least {max(checks.kl, worst.kl):.2f} ± {checks.kl_error:.2f} nats from "
            f"the draws{where}. Try "
            + ("more components." if checks.multimodal_law else "family='mixture'.")
        )


def _remedy(own: Coordinate, family: Any) -> str:
    if family in ("gaussian", "diagonal", "low-rank") and own.least > 0:
        if own.greatest < 1:
            return (
                f"All its draws are between zero and one: try support={{{own.name!r}: 'unit'}} if "
                "it has to be, or family='beta'."
            )
        return (
            f"All its draws are positive: try support={{{own.name!r}: 'positive'}} if it has to "
            "be, or family='gamma'."
        )
    return "Try family='mixture'."


def _more(rows: list[Coordinate]) -> str:
    return f" (and of {len(rows) - 1} more)" if len(rows) > 1 else ""
