"""How well a law fits the draws that it was made of, and warnings with what to try."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from posterity.adapters.samples import reference
from posterity.adapters.samples.chains import mean_and_error, sizes, worth
from posterity.adapters.samples.laws import SINGULAR, Block, Standard, gaussian_density
from posterity.arrays.typing import Float

Array = np.ndarray
MOST_ROWS = 2000
"""Draws that references are learned on and judged by; of more, every so many-th."""
LEAST_ROWS, MOST_CELLS = 300, 200_000
"""Draws that are left where there are many coordinates, and numbers in all."""
MOST_COLUMNS = 300
"""Coordinates up to which whole covariances are looked at."""
CHUNK = 64
"""Coordinates that references are learned for at once."""
DEPENDENT = ("gaussian", "low-rank", "mixture", "dirichlet")
"""Families whose coordinates are not independent."""
HINTS = 4
"""Axes of the largest variance along which modes are looked for."""
USEFUL = 0.005
"""Nats on the draws it was learned on, below which a coordinate's pair is noise."""
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
"""Standard errors that are no chance."""
SAMPLING = 1.0
"""Nats to be expected of sampling alone."""


@dataclasses.dataclass(frozen=True)
class Coordinate:
    """What is known of one coordinate.

    ``skewness`` and ``kurtosis`` (in excess of three) are those of its normal scores under the law,
    which for a Gaussian is the coordinate itself in standard units: zero if the law is right.
    Their errors are what they are off by then, given the effective sample sizes of cubes and fourth
    powers. ``kl`` is in nats, and no more than the divergence of the marginals, but for its error.
    """

    name: str
    draws: int
    effective: float
    """Effective sample size of the mean."""
    rhat: float
    """R-hat of split chains, of ranks and of distances from the median, whichever is larger; NaN
    for fewer than eight draws a chain."""
    skewness: float
    skewness_error: float
    kurtosis: float
    kurtosis_error: float
    kl: float
    kl_error: float
    modes: int
    """Of the reference: 2 if there is a valley, and it is more than noise."""
    least: float
    """The smallest draw, of the unconstrained coordinate."""
    greatest: float
    still: int = 0
    """Chains of which the first or the last half is one value."""


@dataclasses.dataclass(frozen=True)
class Checks:
    """A report by coordinate, and of the whole.

    ``kl`` is what a more flexible density gains on draws that it was not learned on, in nats, and
    so at most ``KL(posterior ‖ law)``, but for ``kl_error``; ``correlation`` is the part of it that
    correlations make which the law leaves out. ``sampling`` is what to expect from the number of
    effective draws alone: the number of parameters over twice that number.
    """

    coordinates: Mapping[str, Coordinate]
    kl: float
    kl_error: float
    correlation: float
    sampling: float
    bimodal: tuple[str, ...]
    """Coordinates along which there are two modes, those that tell them apart best first."""
    multimodal_law: bool
    """Whether the law itself has several components."""
    notes: tuple[str, ...] = ()
    """What else is to be said of how the draws were read."""

    @property
    def effective(self) -> float:
        """The smallest effective sample size."""
        return min(own.effective for own in self.coordinates.values())

    @property
    def rhat(self) -> float:
        """The largest R-hat; NaN where none is known."""
        known = [own.rhat for own in self.coordinates.values() if not np.isnan(own.rhat)]
        return max(known, default=float("nan"))

    def __str__(self) -> str:
        width = max(10, *(len(name) for name in self.coordinates))
        head = f"{'':{width}}  {'ESS':>6}  {'R-hat':>5}  {'skewness':>13}  {'kurtosis':>13}  "
        lines = [f"{head}{'KL/nats':>15}  modes"]
        for name, own in self.coordinates.items():
            skewness = f"{own.skewness:.2f} ± {own.skewness_error:.2f}"
            kurtosis = f"{own.kurtosis:.2f} ± {own.kurtosis_error:.2f}"
            kl = f"{max(own.kl, 0.0):.3f} ± {own.kl_error:.3f}"
            lines.append(
                f"{name:{width}}  {own.effective:6.0f}  {own.rhat:5.2f}  {skewness:>13}  "
                f"{kurtosis:>13}  {kl:>15}  {own.modes:5d}"
            )
        lines.append(
            f"together: KL at least {max(self.kl, 0.0):.3f} ± {self.kl_error:.3f} nats; "
            f"{self.sampling:.3f} nats are to be expected of so many draws"
        )
        return "\n".join([*lines, *self.notes])


def check(blocks: Sequence[Block], several: bool, notes: Sequence[str]) -> Checks:
    """The report on a law of independent blocks; ``several`` says that it is a mixture."""
    scores = np.concatenate([own.fit.scores for own in blocks], axis=-1)
    known = worth(scores)
    draws = scores.shape[0] * scores.shape[1]
    gains, modes = _marginals(_thinned(scores))
    third, fourth = sizes(scores**3 - 3 * scores), sizes(scores**4 - 6 * scores**2)
    ends = np.concatenate([own.free.ends for own in blocks], axis=-1)
    labels = [label for own in blocks for label in own.labels]
    if ends.shape[-1] != len(labels):
        ends = np.full((2, len(labels)), np.nan)
    rows: dict[str, Coordinate] = {}
    for i, label in enumerate(labels):
        gap = scores[..., i] - scores[..., i].mean()
        variance = float((gap**2).mean())
        kl, error = mean_and_error(gains[..., i])
        rows[label] = Coordinate(
            name=label,
            draws=draws,
            effective=float(known.size[i]),
            rhat=float(known.rhat[i]),
            skewness=float((gap**3).mean() / variance**1.5),
            skewness_error=float((6 / third[i]) ** 0.5),
            kurtosis=float((gap**4).mean() / variance**2 - 3),
            kurtosis_error=float((24 / fourth[i]) ** 0.5),
            kl=kl,
            kl_error=error,
            modes=int(modes[i]) if kl > 3 * error else 1,
            least=float(ends[0, i]),
            greatest=float(ends[1, i]),
            still=int(known.still[i]),
        )
    whole = _whole(blocks)
    along = [name for name, own in rows.items() if own.modes > 1]
    if whole.pull is not None and not along:
        free_labels = [label for own in blocks for label in own.free_labels]
        order = np.argsort(-abs(whole.pull))
        biggest = abs(whole.pull[order[0]])
        along = [free_labels[i] for i in order if abs(whole.pull[i]) > biggest / 2][:5]
    # Geometric: one coordinate that mixes badly is not all.
    # At most the draws: means of chains that alternate are known better, covariances are not.
    effective = float(np.exp(np.log(np.minimum(known.size, draws)).mean()))
    parameters = sum(own.fit.parameters for own in blocks)
    sampling = parameters / (2 * effective)
    return Checks(
        rows,
        whole.kl,
        whole.error,
        whole.correlation,
        sampling,
        tuple(along),
        several,
        tuple(notes),
    )


def _thinned(values: Array) -> Array:
    """Every so many-th draw of each chain, the fewer the more coordinates there are."""
    return values[:, :: _step(values.shape)]


def _step(shape: tuple[int, ...]) -> int:
    chains, count, size = shape
    rows = min(MOST_ROWS, max(LEAST_ROWS, MOST_CELLS // size))
    return max(1, -(-chains * count // rows))


def _halves(values: Array) -> list[tuple[Array, Array, slice]]:
    """To learn on (m, d), to judge on (chains, n, d), and where the latter lie: both ways round.

    Halves in time, of every chain: chains that are stuck in modes of their own are in both.
    """
    middle = values.shape[1] // 2
    first, last = slice(0, middle), slice(middle, None)
    rows = lambda part: values[:, part].reshape(-1, values.shape[-1])
    if middle < 2:  # chains too short: half of them
        return []
    return [(rows(last), values[:, first], first), (rows(first), values[:, last], last)]


def _marginals(scores: Float[Array, "chains n d"]) -> tuple[Array, Array]:
    """What two Gaussians gain over a standard normal, draw by draw, and their numbers of modes."""
    gain, modes = np.zeros_like(scores), np.ones(scores.shape[-1])
    for begin in range(0, scores.shape[-1], CHUNK):
        own = (..., slice(begin, begin + CHUNK))
        part = scores[own]
        for learned, judged, where in _halves(part):
            flat = judged.reshape(-1, part.shape[-1])
            gain[:, where, own[1]] = reference.pairs(learned).gain(flat).reshape(judged.shape)
        modes[own[1]] = reference.pairs(part.reshape(-1, part.shape[-1])).modes()
    return gain, modes


def _correlations(units: Float[Array, "chains n d"]) -> tuple[Array, Array, Array]:
    """With eigenvalues and axes; none where draws are too few for them, or they are singular."""
    size, draws = units.shape[-1], units.shape[0] * units.shape[1]
    if size <= MOST_COLUMNS and draws > 3 * size:
        rows = units.reshape(-1, size)
        within = rows.T @ rows / draws
        values, axes = np.linalg.eigh(within)
        if values[0] > SINGULAR * size:  # a diagonal law may well have singular ones
            return within, values, axes
    return np.eye(size), np.ones(size), np.eye(size)


def _left_out(blocks: Sequence[Block], within: Array, gain: float) -> float:
    """Nats of correlations that the law has none of, as Gaussians have them; at least zero.

    Those between blocks, and within blocks of independent coordinates. Of factors it is what a
    whole covariance gains.
    """
    if len(blocks) == 1 and blocks[0].family == "low-rank":
        return max(gain, 0.0)
    lost, begin = -float(np.linalg.slogdet(within)[1]) / 2, 0
    left = within.shape[0] * (within.shape[0] - 1) // 2
    for own in blocks:
        size = own.free.units.shape[-1]
        if own.family in DEPENDENT:
            part = within[begin : begin + size, begin : begin + size]
            lost += float(np.linalg.slogdet(part)[1]) / 2
            left -= size * (size - 1) // 2
        begin += size
    effective = min(float(np.median(sizes(own.free.units))) for own in blocks)
    return max(lost - left / (2 * effective), 0.0)


class _Whole(NamedTuple):
    kl: float
    error: float
    correlation: float
    pull: Float[Array, " d"] | None = None
    """In units of the free coordinates, along two modes, where there are two."""


def _whole(blocks: Sequence[Block]) -> _Whole:
    """What the best of a few references gains over the law, on draws it was not learned on."""
    units = np.concatenate([own.free.units for own in blocks], axis=-1)
    density = sum((own.fit.log_density for own in blocks[1:]), start=blocks[0].fit.log_density)
    parameters = sum(own.fit.parameters for own in blocks)
    size = units.shape[-1]
    within, values, axes = _correlations(units)
    hints = axes[:, ::-1][:, :HINTS]  # modes far apart make a direction of much variance
    white = _thinned(units)
    if np.count_nonzero(within) > size:
        white = white @ ((axes / np.sqrt(values)) @ axes.T)
    log_scale = sum(float(np.log(own.free.scale).sum()) for own in blocks)
    joined = Standard(np.zeros(size), np.ones(size), units)
    base = gaussian_density(joined, within) - log_scale
    whole = size * (size + 3) // 2 if np.count_nonzero(within) > size else 2 * size
    bias = max(whole - parameters, 0) / (2 * float(np.median(sizes(units))))
    start = (base - density)[:, :: _step(units.shape)] - bias
    gaussian = mean_and_error(start)
    correlation = _left_out(blocks, within, gaussian[0])
    if size > MOST_COLUMNS:  # directions take the cube of it: coordinates alone are looked at
        return _Whole(*gaussian, correlation)
    each, direction = np.zeros_like(start), np.zeros_like(start)
    for learned, judged, where in _halves(white):
        flat, shape = judged.reshape(-1, size), judged.shape[:2]
        lines = reference.directions(learned, hints)
        along = reference.pairs(learned @ lines)
        best = int(np.argmax(along.gain(learned @ lines).mean(0)))
        direction[:, where] = along.gain(flat @ lines)[:, best].reshape(shape)
        for begin in range(0, size, CHUNK):
            own = slice(begin, begin + CHUNK)
            pairs = reference.pairs(learned[:, own])
            # A coordinate that gains nothing where the pair was learned is left as it is.
            useful = pairs.gain(learned[:, own]).mean(0) > USEFUL
            each[:, where] += (pairs.gain(flat[:, own]) * useful).sum(-1).reshape(shape)
    two, two_error = mean_and_error(start + direction)
    found = [gaussian, mean_and_error(start + each), (two, two_error)]
    kl, error = max(found, key=lambda own: own[0] - own[1])
    pull = None
    if two > 3 * two_error and two > correlation + 0.02:
        rows = white.reshape(-1, size)
        lines = reference.directions(rows, hints)
        along = reference.pairs(rows @ lines)
        best = int(np.argmax(along.gain(rows @ lines).mean(0)))
        if along.modes()[best] > 1:
            pull = (axes * np.sqrt(values)) @ (axes.T @ lines[:, best])
    return _Whole(kl, error, correlation, pull)


# --- warnings ------------------------------------------------------------------------------------


def warnings_of(checks: Checks, family: str | Mapping[str, str]) -> tuple[str, ...]:
    """What is to be said against the draws and against the fit: sentences with what to try."""
    return (*_of_draws(checks), *_of_fit(checks, family))


def _of_draws(checks: Checks) -> Iterator[str]:
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


def _of_fit(checks: Checks, family: str | Mapping[str, str]) -> Iterator[str]:
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


def _remedy(own: Coordinate, family: str | Mapping[str, str]) -> str:
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
