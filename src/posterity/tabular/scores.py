"""Scores of predictions against observations, and their calibration."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from posterity.networks.chances import law_of_values


def scores(
    y: np.ndarray,
    parts: dict[str, np.ndarray],
    log_score: np.ndarray | None = None,
    level: float | None = None,
    times: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return scores of predictions by name; all are averages over records.

    ``log_score`` is the log predictive density or probability, in nats: higher is better. For
    labels ``brier`` is the mean squared error of the probability of label 1 (for K classes summed
    over them, brier1950). ``auroc`` is the probability that a record with label 1 is ranked above
    one with label 0, None if either is missing. ``calibration_error`` is the mean distance of
    predicted from observed frequencies over ten groups. For values ``rmse`` is in their
    unit, and ``coverage`` is the share within the interval of a new record, ideally ``level``. For
    survival ``concordance`` is the share of comparable pairs in the right order.

    Args:
        y: observations (n,): labels, classes from 0, values or counts.
        parts: predictions by name, as ``posterity predict`` writes them.
        log_score: log predictive (n,), if known; by default computed from ``parts``.
        level: probability of the intervals in ``parts``.
        times: for survival, time, event and entry of each record (n, 3).
    """
    result: dict[str, Any] = {"records": len(y)}
    if log_score is None:
        log_score = _log_scores(y, parts)
    if log_score is not None:
        result["log_score"] = float(log_score.mean())
        spread = log_score.std(ddof=1) if len(y) > 1 else math.nan
        result["log_score_se"] = float(spread / math.sqrt(len(y)))
    if "p" in parts:
        p = parts["p"]
        bins = calibration(y, p)
        away = sum(one["records"] * abs(one["predicted"] - one["observed"]) for one in bins)
        return result | {
            "brier": float(((p - y) ** 2).mean()),
            "accuracy": float(((p > 0.5) == (y > 0.5)).mean()),
            "auroc": auroc(y, p),
            "calibration_error": away / len(y),
            "calibration": bins,
        }
    chances = _classes(parts)
    if chances is not None:
        one = np.eye(chances.shape[1])[y.astype(int)]
        return result | {
            "brier": float(((chances - one) ** 2).sum(1).mean()),
            "accuracy": float((chances.argmax(1) == y).mean()),
        }
    if times is not None:
        time, event, entry = times.T
        return result | {"concordance": concordance(time, event, entry, parts["log_hazard_ratio"])}
    if "mean" in parts:
        result["rmse"] = float(np.sqrt(((y - parts["mean"]) ** 2).mean()))
    if "target_low" in parts:
        inside = (parts["target_low"] <= y) & (y <= parts["target_high"])
        result |= {"coverage": float(inside.mean()), "level": level}
    return result


def _classes(parts: dict[str, np.ndarray]) -> np.ndarray | None:
    columns = [parts[f"p{k}"] for k in range(len(parts)) if f"p{k}" in parts]
    return np.stack(columns, 1) if columns else None


def _log_scores(y: np.ndarray, parts: dict[str, np.ndarray]) -> np.ndarray | None:
    """Return log scores from the predictions alone; None if they do not determine them, as where
    a new value has no interval.
    """
    with np.errstate(divide="ignore"):
        if "p" in parts:
            return np.log(np.where(y > 0.5, parts["p"], 1 - parts["p"]))
        chances = _classes(parts)
        if chances is not None:
            return np.log(chances[np.arange(len(y)), y.astype(int)])
    law = _law(parts) if "target_low" in parts else None
    return None if law is None else law.logpdf(y)


def _law(parts: Mapping[str, np.ndarray]) -> Any:
    """Return the law of new values by a student's predictions, one of SciPy's; None if their noise
    is not known.
    """
    if "noise_variance" not in parts:
        return None
    variance = parts.get("variance", 0.0) + parts["noise_variance"]
    return law_of_values(parts["mean"], variance, parts.get("degrees", np.inf))


def with_interval(parts: Mapping[str, np.ndarray], level: float) -> dict[str, np.ndarray]:
    """Return a student's predictions with the central interval of a new value, of probability
    ``level``, where their noise is known.
    """
    law = _law(parts)
    if law is None:
        return dict(parts)
    low, high = law.interval(level)
    return {**parts, "target_low": low, "target_high": high}


def auroc(y: np.ndarray, p: np.ndarray) -> float | None:
    """Return the area under the receiver operating characteristic; ties count half (hanley1982).

    >>> auroc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8]))
    0.75
    """
    from scipy.stats import mannwhitneyu

    ones = p[y > 0.5]
    zeros = p[y <= 0.5]
    if not len(ones) or not len(zeros):
        return None
    above = mannwhitneyu(ones, zeros, method="asymptotic").statistic
    return float(above / (len(ones) * len(zeros)))


def calibration(y: np.ndarray, p: np.ndarray) -> list[dict[str, Any]]:
    """Return groups of records by predicted probability: its mean and observed frequency."""
    return [
        {"predicted": float(p[own].mean()), "observed": float(y[own].mean()), "records": len(own)}
        for own in groups(p)
    ]


def groups(made: np.ndarray, *, most: int = 10, least: int = 5) -> list[np.ndarray]:
    """Return the records in groups of about equal size by their predictions, in ascending order.

    There are at most ``most`` groups, and about ``least`` records in each at least. Records whose
    predictions are equal in single precision are in one, in whatever order a table has them.
    """
    count = min(most, max(len(made) // least, 1))
    alike = np.asarray(made, dtype=np.float32)
    order = np.argsort(alike, kind="stable")
    starts = [part[0] for part in np.array_split(order, count)[1:]]
    first = np.searchsorted(alike, alike[starts], sorter=order)
    return np.split(order, np.unique(first[first > 0]))


def concordance(
    time: np.ndarray, event: np.ndarray, entry: np.ndarray, risk: np.ndarray
) -> float | None:
    """Return the share of pairs, one with its event while the other was at risk and survived it, in
    which the first had the higher risk; ties count half (harrell1996). Who is censored at the time
    of the event survived it. None without such pairs.

    >>> ones = np.ones(3)
    >>> concordance(np.array([1.0, 2.0, 3.0]), ones, 0 * ones, np.array([3.0, 1.0, 2.0]))
    0.6666666666666666
    """
    right = pairs = 0.0
    for own, when in zip(risk[event > 0], time[event > 0], strict=True):
        survived = (time > when) | ((time == when) & (event <= 0))
        others = risk[survived & (entry < when)]
        right += (own > others).sum() + (own == others).sum() / 2
        pairs += len(others)
    return float(right / pairs) if pairs else None
