"""What becomes of components that were matched: an average, or a product."""

import enum
from typing import Literal

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.families import ExponentialFamily
from posterity.fusion.clustering import sums
from posterity.fusion.geometry import Divergence, DivergenceName, middle, moved, opposite

Array = np.ndarray


class Rule(enum.StrEnum):
    """How matched posteriors become one."""

    BARYCENTER = "barycenter"
    """The member closest to all in summed KL: as sure as one site is on average."""
    PRODUCT = "product"
    """The prior once, and every site's contribution: as sure as the pooled data would be."""


RuleName = Literal["barycenter", "product"]


def barycenter(
    members: ExponentialFamily,
    plan: Float[Array, "n g"] | Int[Array, " n"],
    divergence: Divergence | DivergenceName = "reverse",
    weights: Float[Array, " n"] | None = None,
) -> ExponentialFamily:
    """The ``G`` members that minimise ``Σ_lg w_l P_lg D(g, l)`` for assigned components.

    ``D`` is ``KL(g || l)`` for ``"reverse"``, whose minimiser is the weighted average of
    natural parameters, and ``KL(l || g)`` for ``"forward"``, the average of mean parameters
    (claici2020, proposition 1; banerjee2005, proposition 1).

    Args:
        members: batch (N,) of local components.
        plan: relaxed assignment (N, G) with non-negative entries, or labels (N,).
        divergence: the side on which the average is taken.
        weights: of each component; equal if None.

    >>> from posterity.families import Gamma
    >>> q = Gamma.from_standard(shape=[2.0, 4.0], rate=[1.0, 3.0])
    >>> barycenter(q, np.array([0, 0])).rate
    array([2.])
    """
    reverse = Divergence(divergence) is Divergence.REVERSE
    # Squared means cancel in moments: they are averaged about a point amid the members.
    origin = None if reverse else middle(members)
    members = moved(members, origin)
    coordinates = members.natural_parameters if reverse else members.mean_parameters
    weights = np.ones(len(coordinates)) if weights is None else np.asarray(weights, float)
    if plan.ndim == 1:
        total = sums(coordinates * weights[:, None], plan)
        mean = total / np.bincount(plan, weights)[:, None]
    else:
        share = plan * weights[:, None]
        mean = share.T @ coordinates / share.sum(0)[:, None]
    template = members[:1]
    if reverse:
        return template.with_natural_parameters(mean)
    return moved(template.with_mean_parameters(mean), opposite(origin))
