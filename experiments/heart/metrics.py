"""How good predictive probabilities are: accuracy, log likelihood, calibration.

Throughout, ``probabilities`` is (n,) P(y = 1) of each patient and ``labels`` (n,) in {0, 1}.
Every function raises a ParameterError for anything else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from posterity.errors import ParameterError

Array = NDArray[np.float64]

BINS = 10


def accuracy(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Share of patients whose label is the likelier one; a probability of 1/2 predicts 1."""
    p, y = checked(probabilities, labels)
    return float(np.mean((p >= 0.5) == y))


def log_likelihoods(probabilities: ArrayLike, labels: ArrayLike) -> Array:
    """(n,) log predictive probability of each patient's own label, in nats.

    Not clipped: a label that was given probability 0 has -inf.
    """
    p, y = checked(probabilities, labels)
    with np.errstate(divide="ignore"):
        return np.where(y == 1, np.log(p), np.log1p(-p))


def mean_log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Nats a patient, higher is better; always saying 1/2 scores -0.693."""
    return float(np.mean(log_likelihoods(probabilities, labels)))


def expected_calibration_error(
    probabilities: ArrayLike, labels: ArrayLike, *, bins: int = BINS
) -> float:
    """Mean distance of the probability of y = 1 from its frequency, over bins of equal mass.

    sum_b n_b / n |mean p in b - mean y in b| (naeini2015), with ``bins`` bins cut at the
    quantiles of the probabilities; equal ones share a bin, so the order of patients does not
    matter. Biased upwards on few patients: perfect calibration scores about
    0.8 sqrt(p (1 - p) bins / n), which is 0.06 for 313 patients with p around 0.8.
    """
    p, y = checked(probabilities, labels)
    inner = np.quantile(p, np.linspace(0, 1, bins + 1)[1:-1])
    gaps = np.bincount(np.searchsorted(inner, p, side="right"), weights=p - y)
    return float(np.abs(gaps).sum() / len(p))


def checked(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
    """Both as float64 arrays, once they are what the module says."""
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels, np.float64)
    fits = p.ndim == 1 and p.shape == y.shape and len(p) > 0
    if not (fits and np.all((p >= 0) & (p <= 1)) and np.all((y == 0) | (y == 1))):
        raise ParameterError(
            found=f"probabilities of shape {p.shape} in {_range(p)}, "
            f"labels of shape {y.shape} in {_range(y)}",
            expected="(n,) probabilities in [0, 1] and (n,) labels that are 0 or 1, n > 0",
            fix="Give P(y = 1) of each patient, not logits or both classes' columns.",
        )
    return p, y


def _range(values: Array) -> str:
    return f"[{values.min():g}, {values.max():g}]" if values.size else "[]"
