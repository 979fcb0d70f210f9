"""Joint Newton steps of posteriors with independent means, from the curvatures that sites report.

With a diagonal Gaussian, or a Product of Gaussians, a site moves each part with the others fixed.
If columns are collinear, means must move jointly by far more than any can move separately. The
matrix of derivatives of all sites' slopes in all means gives that joint step.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.search import step_by_curvature
from posterity.families import ExponentialFamily
from posterity.federation.agreement import Agreement
from posterity.federation.messages import Report
from posterity.federation.state import distance
from posterity.inference.joint import (
    is_joint,
    joint_mean,
    moved_to,
    precision_matrix,
    slope_in_mean,
)

MOST = 1024
"""Largest number of parameters for which sites report a full matrix (8 MiB)."""


class Newton(NamedTuple):
    """The joint Newton step of the posterior for the free energy of all sites: the posterior after
    it, None if that is improper; its KL divergence from that before in nats, infinite if it is
    unknown; and twice the nats that the step gains.
    """

    there: Any
    change: float
    squared: float


def applies(agreed: Agreement) -> bool:
    """Return whether the posterior has independent means and sites can report joint curvatures.
    False for models with several optima, such as networks, where the nearest optimum is not worth
    minutes of computation.
    """
    q = agreed.prior
    update = agreed.update
    several = agreed.model.known_optima == "several"
    if update.trains or update.pools or update.conjugate or several:
        return False
    few = is_joint(q) and q.event_size <= MOST
    return few and agreed.line_search is not None


def newton_of(constant: Any, q: ExponentialFamily, reports: Sequence[Report]) -> Newton:
    """Return the joint Newton step from reports that include curvatures; ``constant`` is the prior
    with the factors of all others. Pure.
    """
    answers: Any = reports
    if any(own is None for a in answers for own in (a.fixed_point, a.slope, a.curvature)):
        return Newton(None, math.inf, math.inf)
    slope = slope_in_mean(q, constant)
    curvature = precision_matrix(constant)
    there: Any = constant
    for answer in answers:
        slope = slope + answer.slope
        curvature = curvature + answer.curvature
        there = there + answer.fixed_point
    step, squared = step_by_curvature(slope, curvature)
    if not (np.isfinite(step).all() and there.is_proper()):
        return Newton(None, math.inf, math.inf)
    # The mean moves by Newton's step, the precision to the sum of the sites' fixed points.
    here = joint_mean(q)
    wider = float(q.squared_length(moved_to(there, here) - moved_to(q, here)))
    there = moved_to(there, here + step)
    return Newton(there, distance(q, there), squared + wider)
