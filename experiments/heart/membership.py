"""Membership inference: can an attacker tell a hospital's training patients from others?

The attacker has a model's predictive probabilities and gives every patient a score, higher for
"was trained on". *Members* are a hospital's training patients, *non-members* its held-out ones;
both are drawn at random from the same hospital, so a model that never saw the hospital gives
both the same distribution of scores, an AUC of 1/2 and an advantage of 0.

The main statistic is the AUC (:func:`posterity.engine.privacy.membership.attack_auc`): it needs no
threshold, and its standard error is known. The
largest TPR - FPR over all thresholds is positive even for scores of pure noise (about 0.08 with
200 members and 100 others, 0.11 with 81 and 42); `advantage` therefore tries each threshold on
patients that did not choose it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from experiments.heart.metrics import log_likelihoods
from posterity.engine.privacy.membership import checked_scores

Array = NDArray[np.float64]


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


def advantage(
    members: ArrayLike, nonmembers: ArrayLike, *, splits: int = 200, seed: int = 0
) -> float:
    """TPR - FPR (yeom2018) at a threshold that other patients chose: 0 for noise on average.

    Members and non-members are halved at random; the threshold with the largest TPR - FPR on
    one half is tried on the other, both ways, averaged over ``splits`` halvings. It estimates
    without bias what an attacker gains who knows half of the patients, and may be negative.
    """
    (a, b), rng = checked_scores(members, nonmembers), np.random.default_rng(seed)
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
