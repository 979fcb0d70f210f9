"""How good class probabilities are, and how well their entropy tells strange inputs apart."""

from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from experiments.data import Array, Integers

BINS = 15


class Scores(NamedTuple):
    """Of predictions on labelled images."""

    accuracy: float  # share that is right, in %
    log_likelihood: float  # mean log probability of the label, in nats
    entropy: float  # mean predictive entropy, in nats
    calibration: float  # expected calibration error over 15 bins of equal width, in %


def scores(probabilities: Array, labels: Integers) -> Scores:
    """Of class probabilities (n, classes) for labels (n,)."""
    right = probabilities.argmax(1) == labels
    own = np.maximum(probabilities[np.arange(len(labels)), labels], np.finfo(float).tiny)
    calibration = 100 * calibration_error(probabilities, labels)
    spread = float(entropy(probabilities).mean())
    return Scores(100 * float(right.mean()), float(np.log(own).mean()), spread, calibration)


def entropy(probabilities: Array) -> Array:
    """(n,) predictive entropy in nats."""
    p = np.maximum(probabilities, np.finfo(float).tiny)
    return -(p * np.log(p)).sum(1)


def calibration_error(probabilities: Array, labels: Integers, bins: int = BINS) -> float:
    """|share that is right - mean confidence|, averaged over bins of confidence."""
    confidence = probabilities.max(1)
    gap = (probabilities.argmax(1) == labels) - confidence
    bin_of = np.minimum((bins * confidence).astype(int), bins - 1)
    return float(np.abs(np.bincount(bin_of, weights=gap, minlength=bins)).sum() / len(labels))


class Ranking(NamedTuple):
    """The chance that a strange input has the higher entropy, and its standard error."""

    area: float
    standard_error: float


def auroc(usual: Array, strange: Array) -> Ranking:
    """The area under the curve of receiver operation, and DeLong's standard error [delong1988].

    Of entropies of ``usual`` (n,) and ``strange`` (m,) inputs; ties count one half.
    """
    n, m = len(usual), len(strange)
    ranks = rankdata(np.concatenate([usual, strange]))
    below = (ranks[n:] - rankdata(strange)) / n  # for each strange one the share of usual below
    above = 1 - (ranks[:n] - rankdata(usual)) / m
    variance = below.var(ddof=1) / m + above.var(ddof=1) / n
    return Ranking(float(below.mean()), float(np.sqrt(variance)))
