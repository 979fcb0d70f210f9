"""What becomes of components that were matched: an average, or a product."""

import enum
from typing import Literal

import numpy as np

from posterity.arrays.canonical import canonical_mean, canonical_sums
from posterity.arrays.typing import Float, Int
from posterity.families import ExponentialFamily
from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.divergences.names import Name, divergence_of
from posterity.fusion.geometry import Divergence, moved, of_places, opposite

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
    reverse = divergence is Divergence.REVERSE
    # Squared means cancel in moments: they are averaged about a point amid the members.
    origin = None if reverse else of_places(canonical_mean, members.location())
    members = moved(members, origin)
    coordinates = members.natural_parameters if reverse else members.mean_parameters
    weights = np.ones(len(coordinates)) if weights is None else np.asarray(weights, float)
    averages = _of_labels if plan.ndim == 1 else _of_shares
    mean = averages(coordinates, plan, weights)
    template = members[:1]
    if reverse:
        return template.with_natural_parameters(mean)
    return moved(template.with_mean_parameters(mean), opposite(origin))


def _of_labels(
    coordinates: Float[Array, "n dim"], labels: Int[Array, " n"], weights: Float[Array, " n"]
) -> Float[Array, "g dim"]:
    size = int(labels.max()) + 1
    if (weights == 1).all():
        return canonical_sums(coordinates, labels, size) / np.bincount(labels)[:, None]
    total = canonical_sums(coordinates * weights[:, None], labels, size)
    return total / canonical_sums(weights[:, None], labels, size)


def _of_shares(
    coordinates: Float[Array, "n dim"], plan: Float[Array, "n g"], weights: Float[Array, " n"]
) -> Float[Array, "g dim"]:
    share = plan * weights[:, None]
    return share.T @ coordinates / share.sum(0)[:, None]
