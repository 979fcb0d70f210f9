"""What a teacher says on average, as a prediction; and how far two averages are apart."""

import numpy as np
from jaxtyping import Float

from posterity.distillation.heads import Expectations
from posterity.distillation.predictive import Predictive
from posterity.networks.predictive import Prediction


def prediction(predictive: Predictive, expectations: Expectations) -> Prediction:
    """The predictive of a posterior, from expectations over its draws (NumPy, float64)."""
    if predictive.likelihood == "gaussian":
        return Prediction(
            expectations["mean"],
            variance=expectations["variance"],
            noise_variance=expectations["noise"],
        )
    logs = expectations["log_chances"]
    logs = logs - np.logaddexp.reduce(logs, axis=-1, keepdims=True)
    chances = np.exp(logs)
    entropy = -(chances * logs).sum(-1)
    known = np.maximum(entropy - expectations["entropy"], 0)
    mean = chances if predictive.likelihood == "categorical" else chances[:, 1]
    return Prediction(mean, entropy, known, logs)


def divergence(one: Expectations, other: Expectations) -> Float[np.ndarray, " n"]:
    """``KL`` of the predictives of two averages, in nats, at each input; of values by moments."""
    if "log_chances" in one:
        p, q = one["log_chances"], other["log_chances"]
        terms = np.exp(p) * (p - q) - np.exp(p) + np.exp(q)
        return np.maximum(terms.sum(-1), 0)
    total, theirs = (e["variance"] + e["noise"] for e in (one, other))
    ratio = total / theirs
    away = (one["mean"] - other["mean"]) ** 2 / theirs
    return (ratio - 1 - np.log(ratio) + away).sum(-1) / 2
