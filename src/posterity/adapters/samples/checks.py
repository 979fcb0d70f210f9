"""Diagnostics of a law's fit to its draws, and warnings with suggestions."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import norm

from posterity.adapters.samples.laws import SINGULAR, Block, gaussian_density
from posterity.arrays.chains import DISAGREE, FEW, diagnose, mean_and_error, sizes
from posterity.arrays.typing import Float

Array = np.ndarray
MOST_ROWS = 2000
"""Largest number of draws for density estimates; larger samples are thinned."""
LEAST_ROWS, MOST_CELLS = 300, 200_000
"""Smallest number of draws after thinning in many coordinates, and number of values in all."""
MOST_COLUMNS = 300
"""Largest number of coordinates for which full covariances are computed."""
DEPENDENT = ("gaussian", "low-rank", "mixture", "dirichlet")
"""Families whose coordinates are not independent."""
HINTS, EXTREMES = 4, 8
"""Numbers of axes of largest variance, and of extreme kurtosis, along which modes are searched."""
NORMAL = 0.05
"""Share of the standard normal in a density estimate, so that it is positive everywhere."""
DIP, PEAK = 0.8, 0.03
"""Two modes are separated by a valley below DIP times the lower peak, which is above PEAK times the
higher one."""
NATS, OWN_NATS = 0.1, 0.05
"""KL divergence of the law from the draws that gives a warning, overall and for one coordinate: a
tenth of a nat allows a total variation of a fifth."""
SKEWED = 0.7
"""Skewness that gives a warning; it costs about 0.04 nats."""
HEAVY = 4.0
"""Excess kurtosis, minus the squared skewness, that gives a warning of heavy tails."""
ERRORS = 4.0
"""Standard errors beyond which a deviation is significant."""
SAMPLING = 1.0
"""Expected divergence from sampling alone, in nats, that gives a warning."""


@dataclasses.dataclass(frozen=True)
class Coordinate:
    """Diagnostics of one coordinate.

    ``skewness`` and excess ``kurtosis`` are those of the normal scores under the law, which for a
    Gaussian is the standardised coordinate. They are zero up to their errors if the law is correct.
    ``kl`` is the gain in nats of a kernel density, estimated on half of each chain, over the law on
    the other half: at most the divergence of the marginals, up to its error.

    ``effective`` is the effective sample size of the mean. ``rhat`` is the larger R-hat of split
    chains, of ranks or of distances from the median; NaN for fewer than eight draws per chain.
    ``modes`` is 2 if the density has a valley and ``kl`` is significant. ``least`` and ``greatest``
    are the extreme draws of the unconstrained coordinate; ``still`` is the number of chains whose
    first or last half is constant.
    """

    name: str
    draws: int
    effective: float
    rhat: float
    skewness: float
    skewness_error: float
    kurtosis: float
    kurtosis_error: float
    kl: float
    kl_error: float
    modes: int
    least: float
    greatest: float
    still: int = 0


@dataclasses.dataclass(frozen=True)
class Checks:
    """Diagnostics by coordinate, and overall.

    ``kl`` is the gain in nats of the best of a few more flexible densities on held-out draws, and
    so at most ``KL(posterior ‖ law)``, up to ``kl_error``. ``correlation`` is the part of it due to
    correlations that the law leaves out. ``sampling`` is the expected divergence from sampling
    alone: the number of parameters over twice the number of effective draws. ``bimodal`` are
    coordinates with two modes, best separated first. ``multimodal_law`` tells whether the law has
    several components; ``notes`` are on how the draws were read.
    """

    coordinates: Mapping[str, Coordinate]
    kl: float
    kl_error: float
    correlation: float
    sampling: float
    bimodal: tuple[str, ...]
    multimodal_law: bool
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
        form = "{:{width}}  {:>6}  {:>5}  {:>13}  {:>13}  {:>15}  {:>5}".format
        heads = "", "ESS", "R-hat", "skewness", "kurtosis", "KL/nats", "modes"
        lines = [form(*heads, width=width)]
        for name, own in self.coordinates.items():
            skewness = f"{own.skewness:.2f} ± {own.skewness_error:.2f}"
            kurtosis = f"{own.kurtosis:.2f} ± {own.kurtosis_error:.2f}"
            kl = f"{max(own.kl, 0.0):.3f} ± {own.kl_error:.3f}"
            sizes = f"{own.effective:.0f}", f"{own.rhat:.2f}"
            lines.append(form(name, *sizes, skewness, kurtosis, kl, own.modes, width=width))
        lines.append(
            f"together: KL at least {max(self.kl, 0.0):.3f} ± {self.kl_error:.3f} nats; "
            f"{self.sampling:.3f} nats are to be expected of so many draws"
        )
        return "\n".join([*lines, *self.notes])


def check(blocks: Sequence[Block], several: bool, notes: Sequence[str]) -> Checks:
    """Return diagnostics of a law of independent blocks; ``several`` tells if it is a mixture."""
    scores = np.concatenate([own.fit.scores for own in blocks], axis=-1)
    labels = [label for own in blocks for label in own.labels]
    chains, draws = diagnose(scores), scores.shape[0] * scores.shape[1]
    ends = np.concatenate([own.free.ends for own in blocks], axis=-1)
    ends = ends if ends.shape[-1] == len(labels) else np.full((2, len(labels)), np.nan)
    gap = scores - scores.mean((0, 1))
    second, third, fourth = ((gap**power).mean((0, 1)) for power in (2, 3, 4))
    skewness, kurtosis = third / second**1.5, fourth / second**2 - 3
    # Their errors under a correct law follow from Hermite polynomials.
    off = (6 / sizes(scores**3 - 3 * scores)) ** 0.5, (24 / sizes(scores**4 - 6 * scores**2)) ** 0.5
    rows: dict[str, Coordinate] = {}
    for i, label in enumerate(labels):
        line = scores[:, :: _step(scores.shape), i]
        kl, error = mean_and_error(_held_out(line))
        numbers = (chains.size, chains.rhat, skewness, off[0], kurtosis, off[1])
        modes = _modes(line.ravel()) if kl > 3 * error else 1
        own: list[Any] = [label, draws, *(float(values[i]) for values in numbers)]
        own += [kl, error, modes, *map(float, ends[:, i]), int(chains.still[i])]
        rows[label] = Coordinate(*own)
    joint, correlation, pull = _jointly(blocks)
    along = [name for name, own in rows.items() if own.modes > 1]
    if pull is not None and not along:
        free_labels = [label for own in blocks for label in own.free_labels]
        order = np.argsort(-abs(pull))
        along = [free_labels[i] for i in order if abs(pull[i]) > abs(pull[order[0]]) / 2][:5]
    # A marginal's divergence is at most that of the whole.
    bounds = [*joint, *((own.kl, own.kl_error) for own in rows.values())]
    kl, error = max(bounds, key=lambda bound: bound[0] - bound[1])
    # Geometric mean: one coordinate that mixes badly has limited weight.
    # At most the draws: antithetic chains improve means, but not covariances.
    effective = float(np.exp(np.log(np.minimum(chains.size, draws)).mean()))
    sampling = sum(own.fit.parameters for own in blocks) / (2 * effective)
    return Checks(rows, kl, error, correlation, sampling, tuple(along), several, tuple(notes))


def _step(shape: tuple[int, ...]) -> int:
    """Return the thinning step, which leaves fewer draws for more coordinates."""
    chains, count, size = shape
    rows = min(MOST_ROWS, max(LEAST_ROWS, MOST_CELLS // size))
    return max(1, -(-chains * count // rows))


def _halves(count: int) -> list[tuple[slice, slice]]:
    """Return halves of every chain in time, for training and evaluation, both ways round.

    Chains that are stuck in their own modes are in both; chains of three draws have none.
    """
    first, last = slice(0, count // 2), slice(count // 2, None)
    return [(last, first), (first, last)] if count > 3 else []


def _held_out(line: Float[Array, "chains n"]) -> Float[Array, "chains n"]:
    gain = np.zeros_like(line)
    for learned, judged in _halves(line.shape[1]):
        gain[:, judged] = _gain(line[:, learned].ravel(), line[:, judged])
    return gain


def _kernels(draws: Float[Array, " m"], at: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the log of a Gaussian kernel density times ``√2π``, with Scott's rule for width."""
    width = max(float(draws.std()), 0.1) * max(len(draws), 2) ** -0.2
    heights = np.exp(-(((at[..., None] - draws) / width) ** 2) / 2).mean(-1)
    return np.log(np.maximum(heights, np.finfo(float).tiny) / width)


def _gain(draws: Float[Array, " m"], at: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the log density ratio of kernels on some draws to the standard normal, in nats.

    On held-out draws its mean is at most their divergence from the normal.
    """
    return np.logaddexp(np.log(NORMAL), np.log1p(-NORMAL) + _kernels(draws, at) + at**2 / 2)


def _modes(draws: Float[Array, " m"]) -> int:
    """Return 2 if the density has a valley between peaks, else 1."""
    heights = np.exp(_kernels(draws, np.linspace(draws.min(), draws.max(), 200)))
    before = np.maximum.accumulate(heights)
    beside = np.minimum(before, np.maximum.accumulate(heights[::-1])[::-1])
    return 2 if ((beside > PEAK * heights.max()) & (heights < DIP * beside)).any() else 1


def _jointly(blocks: Sequence[Block]) -> tuple[list[tuple[float, float]], float, Array | None]:
    """Return bounds of the law's divergence with errors, nats of correlations, and a direction.

    The bounds are gains over the law of other densities on held-out draws: a Gaussian with all
    correlations, and the same with kernels along one direction. If there are two modes along it,
    the direction is returned, in units of the unconstrained coordinates.
    """
    units = np.concatenate([own.free.units for own in blocks], axis=-1)
    density = sum((own.fit.log_density for own in blocks[1:]), start=blocks[0].fit.log_density)
    parameters = sum(own.fit.parameters for own in blocks)
    size, draws = units.shape[-1], units.shape[0] * units.shape[1]
    within, values, axes = np.eye(size), np.ones(size), np.eye(size)
    if size <= MOST_COLUMNS and draws > 3 * size:
        rows = units.reshape(-1, size)
        spectrum = np.linalg.eigh(rows.T @ rows / draws)
        if spectrum[0][0] > SINGULAR * size:  # a diagonal law's draws may be singular
            within, (values, axes) = rows.T @ rows / draws, spectrum
    correlated = np.count_nonzero(within) > size
    log_scale = sum(float(np.log(own.free.scale).sum()) for own in blocks)
    base = gaussian_density(units, within) - log_scale
    whole = size * (size + 3) // 2 if correlated else 2 * size
    bias = max(whole - parameters, 0) / (2 * float(np.median(sizes(units))))
    start = (base - density)[:, :: _step(units.shape)] - bias
    gaussian = mean_and_error(start)
    correlation = _left_out(blocks, within, gaussian[0])
    if size > MOST_COLUMNS:  # directions cost its cube: only coordinates are checked
        return [gaussian], correlation, None
    white = units[:, :: _step(units.shape)]
    white = white @ ((axes / np.sqrt(values)) @ axes.T) if correlated else white
    gain, modes, pull = np.zeros_like(start), [], np.zeros(size)
    for learned, judged in _halves(white.shape[1]):
        rows = white[:, learned].reshape(-1, size)
        lines = _directions(rows, axes[:, ::-1][:, :HINTS])
        # Half of these draws are for the kernels, and half to choose the direction.
        gains = [_gain(along[::2], along[1::2]).mean() for along in (rows @ lines).T]
        pull = lines[:, int(np.argmax(gains))]
        gain[:, judged] = _gain(rows @ pull, white[:, judged] @ pull)
        modes.append(_modes((white[:, judged] @ pull).ravel()))
    two, error = mean_and_error(start + gain)
    if min(modes, default=1) < 2 or two <= 3 * error or two <= correlation + 0.02:
        pull = None
    else:
        pull = (axes * np.sqrt(values)) @ (axes.T @ pull)
    return [gaussian, (two, error)], correlation, pull


def _directions(z: Float[Array, "n d"], hints: Float[Array, "d h"]) -> Float[Array, "d k"]:
    """Return unit vectors, including the hints, along which whitened draws may have two modes.

    Balanced modes have low kurtosis along the line between them, rare modes and heavy tails high
    kurtosis: these are extreme eigenvectors of ``E[|z|² z zᵀ]``. Skewness gives another direction.
    """
    count, size = z.shape
    radius = (z**2).sum(-1)
    _, axes = np.linalg.eigh((z.T * radius) @ z / count)
    extremes = [k // 2 if k % 2 == 0 else size - 1 - k // 2 for k in range(min(size, EXTREMES))]
    skewed = z.T @ radius / count
    skewed = skewed / (np.linalg.norm(skewed) + np.finfo(float).tiny)
    return np.column_stack([axes[:, extremes], hints, skewed])


def _left_out(blocks: Sequence[Block], within: Array, gain: float) -> float:
    """Return nats of correlations that the law leaves out, by the Gaussian formula; at least zero.

    These are between blocks, and within blocks of independent coordinates. For factor analysis it
    is the gain of a full covariance.
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


def sentences(checks: Checks, family: str | Mapping[str, str]) -> Iterator[str]:
    """Yield warnings of the draws and of the fit, each with a suggestion."""
    rows = list(checks.coordinates.values())
    if apart := [own for own in rows if own.rhat > DISAGREE]:
        worst, more = _worst(apart, lambda own: own.rhat)
        yield (
            f"Chains disagree: R-hat is {worst.rhat:.2f} for {worst.name}{more}. Run longer "
            "chains; where they are in different modes, their weights are not known."
        )
    if still := [own for own in rows if own.still]:
        worst, more = _worst(still, lambda own: own.still)
        yield (
            f"Chains stand still: {worst.still} of them keep {worst.name} at one value for half of "
            f"their draws or longer{more}. Leave them out, or mend the sampler."
        )
    if few := [own for own in rows if own.effective < FEW]:
        worst, more = _worst(few, lambda own: -own.effective)
        yield (
            f"Few effective draws: {worst.draws} draws of {worst.name} are worth "
            f"{worst.effective:.0f}{more}. Draw at least {math.ceil(FEW / worst.effective)} times "
            "as many."
        )
    if checks.sampling > SAMPLING:
        yield (
            f"More parameters than draws can tell: {checks.sampling:.1f} nats are lost by sampling "
            "alone. Draw more, or take family='low-rank' or 'diagonal'."
        )
    two = () if checks.multimodal_law else checks.bimodal
    if two:
        kind = f"{family} law" if isinstance(family, str) else "law of its kind"
        yield (
            f"Two modes, along {', '.join(two)}: one {kind} covers what lies between them. "
            "Try family='mixture'."
        )
    errors = max(ERRORS, float(norm.isf(1e-5 / max(len(rows), 1))))
    tails = lambda own: max(HEAVY + 2 * own.skewness**2, errors * own.kurtosis_error)
    sides = lambda own: max(SKEWED, errors * own.skewness_error)
    heavy = [own for own in rows if own.kurtosis > tails(own)]
    skewed = [own for own in rows if abs(own.skewness) > sides(own) and own.modes == 1]
    skewed = [own for own in skewed if own not in heavy]
    if skewed and not two:
        worst, more = _worst(skewed, lambda own: abs(own.skewness))
        remedy = "Try family='mixture'."
        if family in ("gaussian", "diagonal", "low-rank") and worst.least > 0:
            unit = worst.greatest < 1
            where, support = ("between zero and one", "unit") if unit else ("positive", "positive")
            remedy = (
                f"All its draws are {where}: try support={{{worst.name!r}: {support!r}}} if it "
                f"has to be, or family={'beta' if unit else 'gamma'!r}."
            )
        yield (
            f"Skewed: {worst.name} has skewness {worst.skewness:.2f} ± {worst.skewness_error:.2f}"
            f"{more}. {remedy}"
        )
    if heavy and not two and not skewed:
        worst, more = _worst(heavy, lambda own: own.kurtosis)
        yield (
            f"Heavy tails: {worst.name} has an excess kurtosis of {worst.kurtosis:.1f} ± "
            f"{worst.kurtosis_error:.1f}{more}. Try family='mixture'."
        )
    lost = checks.correlation
    if lost > max(NATS, errors * checks.kl_error):
        yield (
            f"Correlations are left out, of {lost:.2f} nats. Try family='gaussian' or 'low-rank' "
            "without independent=True."
        )
    off = any(own.kl > max(OWN_NATS, errors * own.kl_error) for own in rows)
    whole = checks.kl > max(NATS, errors * checks.kl_error)
    if (whole or off) and not (two or skewed or heavy) and lost <= checks.kl / 2:
        worst, _ = _worst(rows, lambda own: own.kl - own.kl_error)
        where = f", {worst.kl:.2f} ± {worst.kl_error:.2f} of them in {worst.name}" if off else ""
        other = "more components" if checks.multimodal_law else "family='mixture'"
        yield (
            f"The law is at least {checks.kl:.2f} ± {checks.kl_error:.2f} nats from the "
            f"draws{where}. Try {other}."
        )


def _worst(rows: Sequence[Coordinate], by: Callable[[Coordinate], float]) -> tuple[Coordinate, str]:
    """Return the most extreme coordinate by some measure, and a text on how many more there are."""
    return max(rows, key=by), f" (and of {len(rows) - 1} more)" if len(rows) > 1 else ""
