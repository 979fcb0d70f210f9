"""Spreads between sites of greatest restricted likelihood (harville1977)."""

import operator
from collections.abc import Sequence

import numpy as np
import scipy

from posterity.arrays.linear_algebra import one_thread
from posterity.arrays.typing import Float, Int
from posterity.inference.expectation_propagation import Normal
from posterity.inference.population import Messages, integrated

Spread = Float[np.ndarray, " p"]


def restricted(
    messages: Messages,
    before: Normal,
    own: Int[np.ndarray, " p"],
    typical: Spread,
    scatter: Spread,
    *,
    starts: Sequence[float] = (0.1, 1.0, 10.0),
    rounds: int = 1000,
    precise: float = 1e-12,
) -> Spread:
    """Return the spreads of greatest restricted likelihood, in units of the coefficients.

    Args:
        messages: the Gaussians of the sites' own coefficients.
        before: prior of the population's coefficients.
        own: places of the coefficients that differ between sites, among all.
        typical: a standard error of each.
        scatter: standard deviation of the sites' estimates of each, which may be many thousand
            standard errors: the first start of the ascent.
        starts: further starts, in units of standard errors. Each takes itself as the unit of its
            steps, as does a last ascent from the best.
        rounds: largest number of steps of an ascent.
        precise: share of a spread that the last step gains.
    """
    bounds = [(0, None)] * len(own)
    how = {"ftol": precise**1.5, "gtol": precise, "maxiter": rounds, "maxfun": 2 * rounds}

    def loss(ratio, unit):
        variance = np.zeros((1, messages.linear.shape[1]))
        variance[0, own] = ratio * unit
        found = integrated(messages, before, variance)
        return -found.log[0], -found.slope[0, own] * unit

    def ascent(start):
        unit = np.where(start > 0, start, typical) ** 2
        found = scipy.optimize.minimize(
            loss, start**2 / unit, (unit,), jac=True, bounds=bounds, options=how
        )
        return found.fun, np.sqrt(found.x * unit)

    places = [scatter, *(start * typical for start in starts)]
    with one_thread():
        best = min(map(ascent, places), key=operator.itemgetter(0))[1]
        return ascent(best)[1]
