"""Diagnostics of a law's fit to its draws, and warnings with suggestions."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from scipy.stats import norm

from posterity.adapters.samples.laws import Block
from posterity.arrays.chains import Limits, diagnose, sizes

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class FitLimits(Limits):
    """Bounds beyond which draws or the fit give a warning.

    ``skewness`` of 0.7 costs about 0.04 nats. ``kurtosis`` is the excess, minus twice the squared
    skewness, of heavy tails. Below the excess kurtosis ``flat`` there may be two modes; that of a
    uniform law is -1.2. A deviation is significant beyond ``errors`` standard errors.
    ``sampling`` is the expected divergence from sampling alone, in nats.
    """

    skewness: float = 0.7
    kurtosis: float = 4.0
    flat: float = -1.0
    errors: float = 4.0
    sampling: float = 1.0


@dataclasses.dataclass(frozen=True)
class Coordinate:
    """Diagnostics of one coordinate.

    ``skewness`` and excess ``kurtosis`` are those of the normal scores under the law, which for a
    Gaussian is the standardised coordinate. They are zero up to their errors if the law is correct.

    ``effective`` is the effective sample size of the mean. ``rhat`` is the larger R-hat of split
    chains, of ranks or of distances from the median; NaN for fewer than eight draws per chain.
    """

    name: str
    draws: int
    effective: float
    rhat: float
    skewness: float
    skewness_error: float
    kurtosis: float
    kurtosis_error: float


@dataclasses.dataclass(frozen=True)
class Checks:
    """Diagnostics by coordinate, and overall.

    ``sampling`` is the expected divergence, in nats, from sampling alone: the number of parameters
    over twice the number of effective draws. ``notes`` are on how the draws were read.
    """

    coordinates: Mapping[str, Coordinate]
    sampling: float
    notes: tuple[str, ...] = ()

    @property
    def effective(self) -> float:
        """The smallest effective sample size."""
        return min(own.effective for own in self.coordinates.values())

    @property
    def rhat(self) -> float:
        """The largest R-hat; NaN if none is known."""
        known = [own.rhat for own in self.coordinates.values() if not np.isnan(own.rhat)]
        return max(known, default=float("nan"))

    def __str__(self) -> str:
        width = max(10, *(len(name) for name in self.coordinates))
        form = "{:{width}}  {:>6}  {:>5}  {:>13}  {:>13}".format
        heads = "", "ESS", "R-hat", "skewness", "kurtosis"
        lines = [form(*heads, width=width)]
        for name, own in self.coordinates.items():
            skewness = f"{own.skewness:.2f} ± {own.skewness_error:.2f}"
            kurtosis = f"{own.kurtosis:.2f} ± {own.kurtosis_error:.2f}"
            sizes = f"{own.effective:.0f}", f"{own.rhat:.2f}"
            lines.append(form(name, *sizes, skewness, kurtosis, width=width))
        lines.append(f"{self.sampling:.3f} nats are to be expected of so many draws")
        return "\n".join([*lines, *self.notes])


def diagnostics_of(blocks: Sequence[Block], notes: Sequence[str]) -> Checks:
    """Return diagnostics of a law of independent blocks."""
    scores = np.concatenate([own.fit.scores for own in blocks], axis=-1)
    labels = [label for own in blocks for label in own.labels]
    chains = diagnose(scores)
    draws = scores.shape[0] * scores.shape[1]
    gap = scores - scores.mean((0, 1))
    second, third, fourth = ((gap**power).mean((0, 1)) for power in (2, 3, 4))
    skewness = third / second**1.5
    kurtosis = fourth / second**2 - 3
    # Their errors under a correct law follow from Hermite polynomials.
    off = (6 / sizes(scores**3 - 3 * scores)) ** 0.5, (24 / sizes(scores**4 - 6 * scores**2)) ** 0.5
    rows: dict[str, Coordinate] = {}
    for i, label in enumerate(labels):
        numbers = (chains.size, chains.rhat, skewness, off[0], kurtosis, off[1])
        rows[label] = Coordinate(label, draws, *(float(values[i]) for values in numbers))
    # Geometric mean: one coordinate that mixes badly has limited weight.
    # At most the draws: antithetic chains improve means, but not covariances.
    effective = float(np.exp(np.log(np.minimum(chains.size, draws)).mean()))
    sampling = sum(own.fit.parameters for own in blocks) / (2 * effective)
    return Checks(rows, sampling, tuple(notes))


def sentences(checks: Checks, limits: FitLimits) -> Iterator[str]:
    """Yield warnings of the draws and of the fit, each with a suggestion."""
    rows = list(checks.coordinates.values())
    apart = [own for own in rows if own.rhat > limits.rhat]
    if apart:
        worst, more = _worst(apart, lambda own: own.rhat)
        yield (
            f"Chains disagree: R-hat is {worst.rhat:.2f} for {worst.name}{more}. Run longer "
            "chains; where they are in different modes, their weights are not known."
        )
    few = [own for own in rows if own.effective < limits.size]
    if few:
        worst, more = _worst(few, lambda own: -own.effective)
        yield (
            f"Few effective draws: {worst.draws} draws of {worst.name} are worth "
            f"{worst.effective:.0f}{more}. Draw at least "
            f"{math.ceil(limits.size / worst.effective)} times as many."
        )
    if checks.sampling > limits.sampling:
        yield (
            f"More parameters than draws can tell: {checks.sampling:.1f} nats are lost by sampling "
            "alone. Draw more, or take family='diagonal'."
        )
    errors = max(limits.errors, float(norm.isf(1e-5 / max(len(rows), 1))))

    def tails(own):
        return max(limits.kurtosis + 2 * own.skewness**2, errors * own.kurtosis_error)

    def sides(own):
        return max(limits.skewness, errors * own.skewness_error)

    heavy = [own for own in rows if own.kurtosis > tails(own)]
    skewed = [own for own in rows if abs(own.skewness) > sides(own) and own not in heavy]
    flat = [own for own in rows if own.kurtosis < limits.flat - own.kurtosis_error]
    if flat:
        worst, more = _worst(flat, lambda own: -own.kurtosis)
        yield (
            f"Two modes, or sharp ends: {worst.name} has an excess kurtosis of "
            f"{worst.kurtosis:.1f} ± {worst.kurtosis_error:.1f}{more}. Try family='mixture'."
        )
    if skewed:
        worst, more = _worst(skewed, lambda own: abs(own.skewness))
        yield (
            f"Skewed: {worst.name} has skewness {worst.skewness:.2f} ± {worst.skewness_error:.2f}"
            f"{more}. If it has to be positive, or within (0, 1), say so by support="
            f"{{{worst.name!r}: 'positive'}}, or 'unit'; else try family='mixture'."
        )
    if heavy and not skewed:
        worst, more = _worst(heavy, lambda own: own.kurtosis)
        yield (
            f"Heavy tails: {worst.name} has an excess kurtosis of {worst.kurtosis:.1f} ± "
            f"{worst.kurtosis_error:.1f}{more}. Try family='mixture'."
        )


def _worst(rows: Sequence[Coordinate], by: Callable[[Coordinate], float]) -> tuple[Coordinate, str]:
    """Return the most extreme coordinate by some measure, and a text on how many more there are."""
    return max(rows, key=by), f" (and of {len(rows) - 1} more)" if len(rows) > 1 else ""
