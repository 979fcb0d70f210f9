"""What chains of draws are worth: effective sample sizes and split R-hat, coordinate by coordinate.

Source: vehtari2021.
"""

from typing import NamedTuple

import numpy as np

from posterity.arrays.typing import Float

Array = np.ndarray
LEAST = 8
"""Draws of a chain below which nothing is said of its autocorrelation."""


class Worth(NamedTuple):
    """Effective sample size, at most the number of draws, and split R-hat; both (d,)."""

    size: Float[Array, " d"]
    rhat: Float[Array, " d"]


def worth(draws: Float[Array, "chains n d"]) -> Worth:
    """Of each coordinate's mean, from halves of chains, by Geyer's initial monotone sequence.

    Of fewer than eight draws a chain, and of what does not vary, the size is the number of draws
    and R-hat NaN.
    """
    chains, count, size = draws.shape
    if count < LEAST:
        return Worth(np.full(size, float(chains * count)), np.full(size, np.nan))
    half = count // 2
    split = np.concatenate([draws[:, :half], draws[:, count - half :]])
    centred = split - split.mean(1, keepdims=True)
    covariances = _autocovariances(centred)
    within = covariances[:, 0].mean(0) * half / (half - 1)
    between = split.mean(1).var(0, ddof=1)
    total = within * (half - 1) / half + between
    varies = (within > 0) & (total > 0)
    safe = np.where(varies, total, 1.0)
    rhat = np.where(varies, np.sqrt(safe / np.where(varies, within, 1.0)), np.nan)
    rhat = np.where(~varies & (between > 0), np.inf, rhat)
    correlations = 1 - (within - covariances.mean(0)) / safe
    correlations[0] = 1.0
    times = _times(correlations)
    found = len(split) * half / times
    return Worth(np.where(varies, np.minimum(found, chains * count), chains * count), rhat)


def sizes(series: Float[Array, "chains n d"]) -> Float[Array, " d"]:
    """Effective sample sizes alone."""
    return worth(series).size


def mean_and_error(series: Float[Array, "chains n"]) -> tuple[float, float]:
    """The mean, and its standard error by the effective sample size of this very series."""
    size = float(sizes(series[..., None])[0])
    spread = float(series.std(ddof=1)) if series.size > 1 else np.inf
    return float(series.mean()), spread / max(size, 1.0) ** 0.5


def _autocovariances(centred: Float[Array, "m n d"]) -> Float[Array, "m n d"]:
    """By the fast Fourier transform, divided by ``n``."""
    count = centred.shape[1]
    padded = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(centred, padded, axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    return np.fft.irfft(power, padded, axis=1)[:, :count] / count


def _times(correlations: Float[Array, "n d"]) -> Float[Array, " d"]:
    """Integrated autocorrelation times: pairs as long as they are positive, and falling."""
    whole = len(correlations) // 2 * 2
    pairs = correlations[:whole:2] + correlations[1:whole:2]
    going = np.logical_and.accumulate(pairs > 0, axis=0)
    falling = np.minimum.accumulate(np.where(going, pairs, 0.0), axis=0)
    return np.maximum(2 * falling.sum(0) - 1, 1e-3)
