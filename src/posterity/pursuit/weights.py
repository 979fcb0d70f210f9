"""The weight step: how much of a mixture each component is to be.

``Σ_j w_j E_j[log L - log Σ_i w_i h_i]`` is concave in the weights. At draws that are kept with all
densities it costs neither a log density nor a gradient.
"""

import numpy as np
import scipy.optimize
import scipy.special
from jaxtyping import Float

from posterity.arguments import one_of
from posterity.pursuit.bank import Bank

RULE = one_of("corrective", "line", "harmonic")
DEAD = 1e-4
"""A weight below which a component is taken out."""
SURE = 15.0
"""Log odds beyond which α is as good as zero or one."""


def line(bank: Bank, weights: Float[np.ndarray, " k"], place: int) -> Float[np.ndarray, " k"]:
    """All weights times ``1 - α``, and α for one place, where the ELBO is most.

    By bracketing its expected slope ``E_h[log L/q] - E_q_t[log L/q]``, which falls in α. Where it
    is negative from the beginning on, α is 0.
    """
    # Two laws alone: the mixture as it is, and the one at the place.
    log_q, log_h = bank.log_q(weights), bank.densities[place]
    used = np.append(np.flatnonzero(weights > 0), place)
    log_l, log_q, log_h = (array[used] for array in (bank.log_l, log_q, log_h))

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
    found = (1 - alpha) * weights
    found[place] = alpha
    return found


def harmonic(weights: Float[np.ndarray, " k"], place: int, t: int) -> Float[np.ndarray, " k"]:
    """The classic step ``α = 2/(t + 2)`` of Frank and Wolfe, which looks at nothing."""
    alpha = 2 / (t + 2)
    found = (1 - alpha) * weights
    found[place] = alpha
    return found


def corrective(bank: Bank, weights: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """All weights anew, from these; places of weight zero stay empty."""
    used = np.flatnonzero(weights > 0)
    if len(used) == 1:
        return weights
    densities, log_l = bank.densities[np.ix_(used, used)], bank.log_l[used]

    def least(logits: np.ndarray) -> tuple[float, np.ndarray]:
        own = scipy.special.softmax(logits)
        log_q = scipy.special.logsumexp(densities + np.log(own)[:, None, None], axis=0)
        gaps = log_l - log_q
        # Of w_j its draws' gaps, and what it adds to the density at everybody's draws.
        spread = (np.exp(densities - log_q) * own[:, None]).mean(2).sum(1)
        slope = gaps.mean(1) - spread
        return -float(own @ gaps.mean(1)), -own * (slope - own @ slope)

    begin = np.log(weights[used])
    found = scipy.optimize.minimize(
        least, begin - begin.mean(), jac=True, method="L-BFGS-B",
        bounds=[(-2 * SURE, 2 * SURE)] * len(used),
    )  # fmt: skip
    made = np.zeros_like(weights)
    made[used] = scipy.special.softmax(found.x)
    return made


def pruned(weights: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """Without components of hardly any weight."""
    kept = np.where(weights >= DEAD, weights, 0.0)
    return kept / kept.sum()
