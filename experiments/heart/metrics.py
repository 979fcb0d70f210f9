"""How good predictive probabilities are: accuracy, log likelihood, calibration; and attacks.

Throughout, ``probabilities`` is (n,) P(y = 1) of each patient and ``labels`` (n,) in {0, 1}.

*Membership inference*: the attacker has a model's predictive probabilities and gives every patient
a score, higher for "was trained on". *Members* are a hospital's training patients, *non-members*
its held-out ones; both are drawn at random from the same hospital, so a model that never saw the
hospital gives both the same distribution of scores, an AUC of 1/2
(:func:`posterity.engine.privacy.membership.attack_auc`: it needs no threshold, and its standard
error is known). One score is each patient's log likelihood: a model fits what it saw better
(yeom2018). The other is :func:`ratio_scores`.
"""

from typing import Any

import numpy as np

Array = np.ndarray
BINS = 10


def accuracy(probabilities: Any, labels: Any) -> float:
    """Share of patients whose label is the likelier one; a probability of 1/2 predicts 1."""
    return float(np.mean((np.asarray(probabilities) >= 0.5) == np.asarray(labels)))


def log_likelihoods(probabilities: Any, labels: Any) -> Array:
    """(n,) log predictive probability of each patient's own label, in nats.

    Not clipped: a label that was given probability 0 has -inf.
    """
    p = np.asarray(probabilities, float)
    with np.errstate(divide="ignore"):
        return np.where(np.asarray(labels) == 1, np.log(p), np.log1p(-p))


def mean_log_likelihood(probabilities: Any, labels: Any) -> float:
    """Nats a patient, higher is better; always saying 1/2 scores -0.693."""
    return float(np.mean(log_likelihoods(probabilities, labels)))


def expected_calibration_error(probabilities: Any, labels: Any, *, bins: int = BINS) -> float:
    """Mean distance of the probability of y = 1 from its frequency, over bins of equal mass.

    sum_b n_b / n |mean p in b - mean y in b| (naeini2015), with ``bins`` bins cut at the
    quantiles of the probabilities; equal ones share a bin, so the order of patients does not
    matter. Biased upwards on few patients: perfect calibration scores about
    0.8 sqrt(p (1 - p) bins / n), which is 0.06 for 313 patients with p around 0.8.
    """
    p, y = np.asarray(probabilities, float), np.asarray(labels, float)
    inner = np.quantile(p, np.linspace(0, 1, bins + 1)[1:-1])
    gaps = np.bincount(np.searchsorted(inner, p, side="right"), weights=p - y)
    return float(np.abs(gaps).sum() / len(p))


def ratio_scores(probabilities: Any, reference: Any, labels: Any) -> Array:
    """(n,) log likelihood ratio of the model to a reference that saw none of these patients.

    The reference takes out how hard each patient is to predict for any model (watson2022; the
    one-reference case of carlini2022).
    """
    with np.errstate(invalid="ignore"):  # -inf - -inf: refused where scores are compared
        return log_likelihoods(probabilities, labels) - log_likelihoods(reference, labels)
