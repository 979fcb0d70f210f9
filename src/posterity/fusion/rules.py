"""The rules by which matched components become one: an average, or a product."""

import enum
from typing import Literal, NamedTuple

import numpy as np

from posterity.arrays.canonical import canonical_mean, canonical_sums
from posterity.arrays.typing import Float, Int
from posterity.families import ExponentialFamily
from posterity.fusion.divergences import Discrepancy, Name, divergence_of
from posterity.fusion.geometry import Divergence, moved, of_places, opposite

Array = np.ndarray


class Rule(enum.StrEnum):
    """The rules by which matched posteriors become one."""

    BARYCENTER = "barycenter"
    """The member closest to all in summed KL: as sure as one site is on average."""
    PRODUCT = "product"
    """The prior once, and every site's contribution: as sure as the pooled data would be."""


RuleName = Literal["barycenter", "product"]


class Choice(NamedTuple):
    """A rule, why it is that one, and what is to be warned of data that may count twice."""

    rule: Rule
    why: str
    twice: str = ""


def barycenter(
    members: ExponentialFamily,
    plan: Float[Array, "n g"] | Int[Array, " n"],
    divergence: Divergence | Discrepancy | Name | str = "reverse",
    weights: Float[Array, " n"] | None = None,
) -> ExponentialFamily:
    """The ``G`` members that minimise ``Σ_lg w_l P_lg D(g, l)`` for assigned components.

    ``D`` is ``KL(g || l)`` for ``"reverse"``, whose minimiser is the weighted average of
    natural parameters, and ``KL(l || g)`` for ``"forward"``, the average of mean parameters
    (claici2020, proposition 1; banerjee2005, proposition 1). With labels it does not depend on
    the order of components, to the last bit.

    Args:
        members: batch (N,) of local components.
        plan: relaxed assignment (N, G) with non-negative entries, or labels (N,).
        divergence: the side on which the average is taken: ``"reverse"`` is that of natural, and
            ``"forward"`` that of mean parameters; or another divergence, see
            :mod:`posterity.fusion.divergences`.
        weights: of each component; equal if None.

    >>> from posterity.families import Gamma
    >>> q = Gamma.from_standard(shape=[2.0, 4.0], rate=[1.0, 3.0])
    >>> barycenter(q, np.array([0, 0])).rate
    array([2.])
    """
    divergence = divergence_of(divergence)
    if isinstance(divergence, Discrepancy):
        return divergence.barycenter(members, plan, weights)
    # Squared means cancel in moments: they are averaged about a point amid the members.
    reverse = divergence is Divergence.REVERSE
    origin = None if reverse else of_places(canonical_mean, members.location())
    members = moved(members, origin)
    coordinates = divergence.coordinates(members)
    weights = np.ones(len(coordinates)) if weights is None else np.asarray(weights, float)
    if plan.ndim == 2:
        share = plan * weights[:, None]
        mean = share.T @ coordinates / share.sum(0)[:, None]
    else:
        size, alike = int(plan.max()) + 1, (weights == 1).all()
        total = canonical_sums(coordinates if alike else coordinates * weights[:, None], plan, size)
        counts = np.bincount(plan) if alike else canonical_sums(weights[:, None], plan, size)[:, 0]
        mean = total / counts[:, None]
    return moved(divergence.family(members[:1], mean), opposite(origin))
