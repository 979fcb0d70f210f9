"""Effective sample sizes and R-hat of chains of draws, coordinate by coordinate.

Source: vehtari2021.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import scipy.special
import scipy.stats

from posterity.arrays.typing import Float

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of diagnostics, beyond which draws are not to be relied on.

    ``size`` is the least effective sample size for moments, ``tails`` that of a tail of 5 % for
    intervals: its share then has a relative standard error of 31 %. ``variance_error`` is the
    largest relative standard error of a variance. ``rhat`` is the R-hat above which chains are
    taken to have different distributions.
    """

    size: float = 50
    tails: float = 200
    variance_error: float = 1 / 8
    rhat: float = 1.1


class Diagnostics(NamedTuple):
    """Convergence diagnostics of each coordinate, (d,).

    ``size`` is the effective sample size of the mean, and ``rhat`` is R-hat.
    """

    size: Float[Array, " d"]
    rhat: Float[Array, " d"]


def is_short(draws: Float[Array, "chains n ..."], least: int = 8) -> bool:
    """Return whether chains have fewer than ``least`` draws, which show no autocorrelation."""
    return draws.shape[1] < least


def diagnose(draws: Float[Array, "chains n d"]) -> Diagnostics:
    """Return the effective sample size and R-hat of each coordinate, from halves of chains.

    R-hat is the larger of two values: that of the rank-normalised draws, which detects chains in
    different places, and that of their rank-normalised distances from the median, which detects
    chains of different widths. If a chain has fewer than eight draws, or a coordinate does not
    vary, the size is the number of draws and R-hat is NaN; if draws are not finite, both are NaN.
    The effective size of antithetic chains can exceed the number of draws, up to ``n log10 n``.
    """
    if is_short(draws):
        return Diagnostics(_effective(draws), np.full(draws.shape[2], np.nan))
    split = _split(draws)
    apart = np.abs(split - np.median(split, axis=(0, 1)))
    rhat = np.fmax(_rhat(_ranked(split)), _rhat(_ranked(apart)))
    return Diagnostics(_sizes(split), rhat)


def tails(draws: Float[Array, "chains n d"]) -> Float[Array, " d"]:
    """Return the smaller effective sample size, of each coordinate, of the shares of draws up to
    their 5 % and 95 % quantiles; the number of draws for chains of fewer than eight.
    """
    ends = np.quantile(draws, (0.05, 0.95), axis=(0, 1))
    low, high = (_effective((draws <= end) * 1.0) for end in ends)
    return np.minimum(low, high)


def error_of_variance(draws: Float[Array, "chains n d"]) -> Float[Array, " d"]:
    """Return the relative standard error of each coordinate's variance, by the effective sample
    size of the squared distances from its mean. It is large for tails so heavy that the variance is
    infinite, or nearly, also in chains that mix well. Zero where a coordinate does not vary.
    """
    squares = (draws - draws.mean((0, 1))) ** 2
    variance = squares.mean((0, 1))
    errors = squares.std((0, 1)) / sizes(squares) ** 0.5
    return np.divide(errors, variance, out=np.zeros_like(errors), where=variance > 0)


def apart(draws: Float[Array, "chains n d"], by_chance: float = 1e-3) -> np.ndarray:
    """Return of each coordinate (d,) whether two chains differ by more than slow mixing explains.

    R-hat grows with the autocorrelation of chains and, at its largest, with the number of
    coordinates, also where chains agree. Here the means of two chains differ by more
    standard errors, from the autocorrelation within chains, than all pairs of chains in all
    coordinates do but for a probability of ``by_chance``. Squared errors are doubled, as short
    chains underestimate their autocorrelation. False for one chain or fewer than eight draws.
    """
    chains, _, size = draws.shape
    if chains == 1 or is_short(draws):
        return np.zeros(size, bool)
    means = draws.mean(1)
    own = draws - means[:, None]
    errors = (own.var((0, 1)) * chains * 4 / sizes(own)) ** 0.5
    most = scipy.special.ndtri(by_chance / (size * chains * (chains - 1)))
    return np.ptp(means, axis=0) > -most * errors


def _split(draws: Float[Array, "chains n d"]) -> Float[Array, "m half d"]:
    """Return the first halves of all chains, then the last ones; a middle draw is left out."""
    count = draws.shape[1]
    half = count // 2
    return np.concatenate([draws[:, :half], draws[:, count - half :]])


def _ranked(split: Float[Array, "m half d"]) -> Float[Array, "m half d"]:
    """Return the normal scores (Blom) of the ranks among all draws of a coordinate."""
    flat = split.reshape(-1, split.shape[-1])
    ranks = scipy.stats.rankdata(flat, axis=0)
    return scipy.special.ndtri((ranks - 0.375) / (len(flat) + 0.25)).reshape(split.shape)


def _rhat(split: Float[Array, "m half d"]) -> Float[Array, " d"]:
    """Return the root of the ratio of the total variance to the variance within chains."""
    half = split.shape[1]
    within = split.var(1, ddof=1).mean(0)
    between = split.mean(1).var(0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt((half - 1) / half + between / within)


def _sizes(split: Float[Array, "m half d"]) -> Float[Array, " d"]:
    """Return effective sample sizes by Geyer's initial monotone sequence."""
    half = split.shape[1]
    draws = split.shape[0] * split.shape[1]
    finite = np.isfinite(split).all((0, 1))
    split = np.where(finite, split, 0.0)
    padded = 1 << (2 * half - 1).bit_length()  # autocovariances by the fast Fourier transform
    spectrum = np.fft.rfft(split - split.mean(1, keepdims=True), padded, axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    covariances = np.fft.irfft(power, padded, axis=1)[:, :half] / half
    within = covariances[:, 0].mean(0) * half / (half - 1)
    total = within * (half - 1) / half + split.mean(1).var(0, ddof=1)
    varies = total > 0
    correlations = 1 - (within - covariances.mean(0)) / np.where(varies, total, 1.0)
    correlations[0] = 1.0
    times = np.maximum(_times(correlations), 1 / np.log10(draws))
    return np.where(finite, np.where(varies, draws / times, draws), np.nan)


def sizes(series: Float[Array, "chains n d"]) -> Float[Array, " d"]:
    """Return the effective sample size of each coordinate, at most the number of draws.

    Standard errors use this bound, since a short series may alternate by chance.
    """
    return np.minimum(_effective(series), math.prod(series.shape[:2]))


def _effective(draws: Float[Array, "chains n d"]) -> Float[Array, " d"]:
    """Return the effective sample size of each coordinate; the number of draws of short chains."""
    if is_short(draws):
        return np.full(draws.shape[2], float(math.prod(draws.shape[:2])))
    return _sizes(_split(draws))


def mean_and_error(series: Float[Array, "chains n"]) -> tuple[float, float]:
    """Return the mean and its standard error, by the effective sample size of the series."""
    size = float(sizes(series[..., None])[0])
    spread = float(series.std(ddof=1)) if series.size > 1 else np.inf
    return float(series.mean()), spread / max(size, 1.0) ** 0.5


def _times(correlations: Float[Array, "n d"]) -> Float[Array, " d"]:
    """Return integrated autocorrelation times: sums over pairs of lags while these are positive.

    Pairs are made to decrease. Of the first pair that is not positive, or of the last pair, the
    even lag is added once if it is positive.
    """
    count = (len(correlations) - 1) // 2  # the last lags are sums of hardly any products
    even = correlations[: 2 * count : 2]
    odd = correlations[1 : 2 * count : 2]
    pairs = even + odd
    going = np.logical_and.accumulate(pairs > 0, axis=0)
    going[-1] = False
    falling = np.minimum.accumulate(np.where(going, pairs, np.inf), axis=0)
    last = np.take_along_axis(even, np.argmin(going, axis=0)[None], axis=0)[0]
    return 2 * np.where(going, falling, 0.0).sum(0) - 1 + np.maximum(last, 0.0)
