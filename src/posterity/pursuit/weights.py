"""The weight step: how much of a mixture each component is to be.

``Σ_j w_j E_j[log L - log Σ_i w_i h_i]`` is concave in the weights. At draws that are kept with all
densities it costs neither a log density nor a gradient.
"""

import numpy as np
import scipy.optimize
import scipy.special
from jaxtyping import Float

from posterity.arguments import one_of
from posterity.arrays.search import lbfgs
from posterity.pursuit.sample_cache import SampleCache

RULE = one_of("corrective", "line", "harmonic")
DEAD = 1e-4
"""A weight below which a component is taken out."""
STEPS = 300
"""Of the search for all weights, at the most."""
SURE = 15.0
"""Log odds beyond which α is as good as zero or one."""


def line(
    cache: SampleCache, weights: Float[np.ndarray, " k"], slot: int
) -> Float[np.ndarray, " k"]:
    """All weights times ``1 - α``, and α for one slot, where the ELBO is most.

    By bracketing its expected slope ``E_h[log L/q] - E_q_t[log L/q]``, which falls in α. Where it
    is negative from the beginning on, α is 0.
    """
    # Two laws alone: the mixture as it is, and the one at the slot.
    log_q, log_h = cache.log_q(weights), cache.densities[slot]
    used = np.append(np.flatnonzero(weights > 0), slot)
    log_l, log_q, log_h = (array[used] for array in (cache.log_l, log_q, log_h))

    def slope(odds: float) -> float:
        less, more = -np.logaddexp(0, odds), -np.logaddexp(0, -odds)  # log(1 - α), log α
        means = (log_l - np.logaddexp(less + log_q, more + log_h)).mean(1)
        return float(means[-1] - weights[used[:-1]] @ means[:-1])

    if slope(-SURE) <= 0:
        alpha = 0.0
    elif slope(SURE) >= 0:
        alpha = 1.0
    else:
        alpha = scipy.special.expit(scipy.optimize.brentq(slope, -SURE, SURE, xtol=1e-6))
    changed = (1 - alpha) * weights
    changed[slot] = alpha
    return changed


def harmonic(weights: Float[np.ndarray, " k"], slot: int, t: int) -> Float[np.ndarray, " k"]:
    """The classic step ``α = 2/(t + 2)`` of Frank and Wolfe, which looks at nothing."""
    alpha = 2 / (t + 2)
    changed = (1 - alpha) * weights
    changed[slot] = alpha
    return changed


def corrective(cache: SampleCache, weights: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """All weights anew, from these; slots of weight zero stay empty."""
    used = np.flatnonzero(weights > 0)
    if len(used) == 1:
        return weights
    densities, log_l = cache.densities[np.ix_(used, used)], cache.log_l[used]

    def least(logits: np.ndarray) -> tuple[float, np.ndarray]:
        own = scipy.special.softmax(logits)
        log_q = scipy.special.logsumexp(densities + np.log(own)[:, None, None], axis=0)
        gaps = log_l - log_q
        # Of w_j its draws' gaps, and what it adds to the density at everybody's draws.
        spread = (np.exp(densities - log_q) * own[:, None]).mean(2).sum(1)
        slope = gaps.mean(1) - spread
        return -float(own @ gaps.mean(1)), -own * (slope - own @ slope)

    begin = np.log(weights[used])
    logits, _, _ = lbfgs(least, begin - begin.mean(), most=STEPS)
    changed = np.zeros_like(weights)
    changed[used] = scipy.special.softmax(logits)
    return changed


def pruned(weights: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """Without components of hardly any weight."""
    kept = np.where(weights >= DEAD, weights, 0.0)
    return kept / kept.sum()
