"""Membership inference: can an attacker tell a hospital's training patients from others?

The attacker has a model's predictive probabilities and gives every patient a score, higher for
"was trained on". *Members* are a hospital's training patients, *non-members* its held-out ones;
both are drawn at random from the same hospital, so a model that never saw the hospital gives
both the same distribution of scores, an AUC of 1/2 and an advantage of 0.

The main statistic is the AUC: it needs no threshold, and its standard error is known. The
largest TPR - FPR over all thresholds is positive even for scores of pure noise (about 0.08 with
200 members and 100 others, 0.11 with 81 and 42); `advantage` therefore tries each threshold on
patients that did not choose it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from experiments.heart.metrics import log_likelihoods
from posterity.errors import ParameterError

Array = NDArray[np.float64]


class Estimate(NamedTuple):
    """A number and its standard error over patients."""

    value: float
    standard_error: float


# --- scores ----------------------------------------------------------------------------------


def loss_scores(probabilities: ArrayLike, labels: ArrayLike) -> Array:
    """(n,) log likelihood of each patient: a model fits what it saw better (yeom2018)."""
    return log_likelihoods(probabilities, labels)


def ratio_scores(probabilities: ArrayLike, reference: ArrayLike, labels: ArrayLike) -> Array:
    """(n,) log likelihood ratio of the model to a reference that saw none of these patients.

    The reference takes out how hard each patient is to predict for any model (watson2022; the
    one-reference case of carlini2022).
    """
    ours, others = log_likelihoods(probabilities, labels), log_likelihoods(reference, labels)
    with np.errstate(invalid="ignore"):  # -inf - -inf: refused where scores are compared
        return ours - others


# --- statistics of scores ----------------------------------------------------------------------


def attack_auc(members: ArrayLike, nonmembers: ArrayLike) -> Estimate:
    """P(a member's score > a non-member's), ties counting half: Mann-Whitney, 1/2 is chance.

    ``members`` (m,) and ``nonmembers`` (n,) are scores, m, n >= 2. The standard error is
    DeLong's (delong1988): from how often each patient wins. Perfect separation has 0, which
    says that it is not to be trusted there.

    >>> attack_auc([3.0, 2.0], [1.0, 2.0]).value  # wins: 1 + 1 + 1 + 1/2, of 4
    0.875
    """
    wins = _wins(members, nonmembers)
    m, n = wins.shape
    variance = wins.mean(axis=1).var(ddof=1) / m + wins.mean(axis=0).var(ddof=1) / n
    return Estimate(float(wins.mean()), float(np.sqrt(variance)))


def auc_difference(
    first: tuple[ArrayLike, ArrayLike],
    second: tuple[ArrayLike, ArrayLike],
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """AUC of the first attack minus that of the second, on the same patients.

    Each attack is (member scores, non-member scores), patients in the same order in both. The
    standard error is a bootstrap's that draws members and non-members anew, each patient with
    both its scores, so what is hard about a patient cancels.

    Raises:
        ParameterError: also if the two attacks have different numbers of patients.
    """
    a, b = _wins(*first), _wins(*second)
    if a.shape != b.shape:
        raise _misfit(f"attacks on {a.shape} and {b.shape} members and non-members")
    rng, (m, n) = np.random.default_rng(seed), a.shape
    drawn = rng.multinomial(m, np.full(m, 1 / m), size=resamples) / m
    others = rng.multinomial(n, np.full(n, 1 / n), size=resamples) / n
    differences = np.sum((drawn @ (a - b)) * others, axis=1)
    return Estimate(float(np.mean(a - b)), float(differences.std(ddof=1)))


def advantage(
    members: ArrayLike, nonmembers: ArrayLike, *, splits: int = 200, seed: int = 0
) -> float:
    """TPR - FPR (yeom2018) at a threshold that other patients chose: 0 for noise on average.

    Members and non-members are halved at random; the threshold with the largest TPR - FPR on
    one half is tried on the other, both ways, averaged over ``splits`` halvings. It estimates
    without bias what an attacker gains who knows half of the patients, and may be negative.
    """
    (a, b), rng = _checked(members, nonmembers), np.random.default_rng(seed)
    gains = []
    for _ in range(splits):
        half_a, half_b = (np.array_split(rng.permutation(s), 2) for s in (a, b))
        for known, tried in ((0, 1), (1, 0)):
            threshold = best_threshold(half_a[known], half_b[known])
            gains.append(_gain(half_a[tried], half_b[tried], threshold))
    return float(np.mean(gains))


def best_threshold(members: Array, nonmembers: Array) -> float:
    """The score t with the largest TPR - FPR of "score >= t is a member"; inf if none gains."""
    thresholds = np.append(np.unique(np.concatenate([members, nonmembers])), np.inf)
    gains = _share_above(members, thresholds) - _share_above(nonmembers, thresholds)
    # of equally good ones the highest, so that scores without information say "nobody"
    return float(thresholds[::-1][np.argmax(gains[::-1])])


def _gain(members: Array, nonmembers: Array, threshold: float) -> float:
    return float(_share_above(members, threshold) - _share_above(nonmembers, threshold))


def _share_above(scores: Array, thresholds: ArrayLike) -> Array:
    """Share of ``scores`` that are at least each threshold."""
    return 1 - np.searchsorted(np.sort(scores), thresholds, side="left") / len(scores)


def _wins(members: ArrayLike, nonmembers: ArrayLike) -> Array:
    """(m, n) 1 where the member's score is higher, 1/2 where equal, else 0."""
    a, b = _checked(members, nonmembers)
    return (1 + np.sign(a[:, None] - b[None, :])) / 2


def _checked(members: ArrayLike, nonmembers: ArrayLike) -> tuple[Array, Array]:
    a, b = np.asarray(members, np.float64), np.asarray(nonmembers, np.float64)
    if not (a.ndim == b.ndim == 1 and min(len(a), len(b)) >= 2):
        raise _misfit(f"scores of shapes {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise _misfit("scores that are NaN or infinite")
    return a, b


def _misfit(found: str) -> ParameterError:
    return ParameterError(
        found=found,
        expected="one finite score of each of at least two members and two non-members, the "
        "same patients in every attack",
        fix="Score the same hospital's training and held-out patients; a model that gives a "
        "label probability 0 has no finite score.",
    )
