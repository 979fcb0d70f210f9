"""Probabilities of classes as logarithms, their entropies, divergences, and laws of values."""

from typing import Any

import numpy as np
from jaxtyping import Float

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Real


def kl_of_classes(log_p: Float[Real, "*#n k"], log_q: Float[Real, "*#n k"]) -> Float[Real, "*n"]:
    """Return ``Σ_c p_c log(p_c / q_c)`` in nats, accurate also where the two nearly agree: it sums
    ``p log(p / q) - p + q``, whose terms are nonnegative.
    """
    np_ = namespace(log_p, log_q).np
    p = np_.exp(log_p)
    ratio = np_.where(p > 0, log_p - log_q, 0)
    near = np_.abs(ratio) < 1
    close = p * _above_tangent(-np_.where(near, ratio, 0))
    return np_.where(near & (p > 0), close, np_.exp(log_q) - p + p * ratio).sum(-1)


def law_of_values(mean: Real, variance: Real, degrees: Real | float = np.inf) -> Any:
    """Return the law of values of this mean and variance, a distribution of SciPy's: the t law of
    so many ``degrees`` of freedom, more than two; the normal law where they are infinite.

    >>> round(float(law_of_values(0.0, 1.0, 4.0).var()), 9)
    1.0
    """
    import scipy.stats

    scale = np.sqrt(variance * (1 - 2 / degrees))
    if np.isinf(degrees).all():
        return scipy.stats.norm(mean, scale)
    return scipy.stats.t(degrees, mean, scale)


def kl_of_values(
    away: Float[Real, "n k"], log_variance: Float[Real, "n k"], log_other: Float[Real, "n k"]
) -> Float[Real, " n"]:
    """Return the KL divergence, in nats, of independent Gaussians; ``away`` is between means."""
    np_ = namespace(away, log_variance, log_other).np
    squares = away**2 * np_.exp(-log_other)
    return (_above_tangent(log_variance - log_other) + squares).sum(-1) / 2


def _above_tangent(x: Any) -> Any:
    """Return ``exp(x) - 1 - x``, accurate near zero."""
    np_ = namespace(x).np
    series = x * x * (0.5 + x / 6 * (1 + x / 4 * (1 + x / 5)))
    with np.errstate(over="ignore"):
        return np_.where(np_.abs(x) < 0.05, series, np_.expm1(x) - x)


def log_softmax(logits: Float[Real, "*n k"]) -> Float[Real, "*n k"]:
    """Return log probabilities of classes from logits, bounded below by about -1e30."""
    np_ = namespace(logits).np
    # The bound makes ``p log p`` zero for ``p = 0``, also if logits overflow.
    away = np_.maximum(logits - logits.max(-1, keepdims=True), -1e30)
    return away - np_.log(np_.exp(away).sum(-1, keepdims=True))


def log_coin(logits: Float[Real, "*n 1"]) -> Float[Real, "*n 2"]:
    """Return log probabilities of an event with these log odds, and of its complement."""
    np_ = namespace(logits).np
    return -np_.concatenate([np_.logaddexp(0, -logits), np_.logaddexp(0, logits)], -1)


def log_label(logits: Any) -> Any:
    """Return log probabilities of the labels 0 and 1, given the log odds of 1."""
    return log_coin(logits)[..., ::-1]


def entropy(log_chances: Float[Real, "*n k"]) -> Float[Real, "*n"]:
    """Return the entropy ``-Σ p log p`` in nats; terms with ``p = 0`` are zero."""
    np_ = namespace(log_chances).np
    chances = np_.exp(log_chances)
    return -(chances * np_.where(chances > 0, log_chances, 0.0)).sum(-1)
