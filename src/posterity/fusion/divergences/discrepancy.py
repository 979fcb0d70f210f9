"""The interface of divergences other than the two directions of KL."""

import abc
from typing import Any

import numpy as np

from posterity.arrays.canonical import canonical_mean, canonical_sums
from posterity.arrays.typing import Float, Int, Real
from posterity.families import ExponentialFamily
from posterity.fusion.clustering import assign
from posterity.fusion.geometry import chunks, moved, of_places, opposite

Array = np.ndarray


class Discrepancy(abc.ABC):
    """A divergence of two members of a family, with the barycentre of several.

    KL's two directions, which fusion takes by default, are none: what they have
    beside, a Bregman geometry, is in :mod:`posterity.fusion.geometry`.
    """

    @property
    @abc.abstractmethod
    def value(self) -> str:
        """Its name, by which ``fuse`` finds it again."""

    @abc.abstractmethod
    def between(self, p: ExponentialFamily, q: ExponentialFamily) -> Float[Real, "*batch"]:
        """From ``p``, the global one where that matters, to ``q``; batches broadcast.

        Raises:
            StructureError: if the two do not fit together, or the family has no such thing.
        """

    @abc.abstractmethod
    def _middle(
        self, members: ExponentialFamily, labels: Int[Array, " n"], weights: Float[Array, " n"]
    ) -> ExponentialFamily:
        """The barycentres of members about the origin, as :meth:`barycenter` has them."""

    def check(self, member: ExponentialFamily) -> None:
        """Raise a StructureError for a family for which this is not defined."""
        del member

    def costs(
        self, members: ExponentialFamily, centroids: ExponentialFamily
    ) -> Float[Array, "n g"]:
        """``between(centroid, member)`` of all pairs of batches (N,) and (G,), a part at a time."""
        out = np.empty((*members.batch_shape, *centroids.batch_shape))
        one = centroids[None]
        for rows in chunks(len(out), 32 * out.shape[1] * members.dimension):
            out[rows] = self.between(one, members[rows][:, None])
        return out

    def barycenter(
        self,
        members: ExponentialFamily,
        plan: Float[Array, "n g"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None = None,
    ) -> ExponentialFamily:
        """The ``G`` members that minimise ``Σ_lg w_l P_lg D(g, l)``, ``D`` being :meth:`between`.

        With labels it does not depend on the order of members, to the last bit.

        Args:
            members: batch (N,).
            plan: labels (N,) of which none below the largest is left out, or a relaxed assignment
                (N, G) with non-negative entries.
            weights: (N,) of each member; equal if None.

        Warns:
            ConvergenceWarning: if an iteration stopped before it settled.
        """
        self.check(members)
        weights = np.ones(len(plan)) if weights is None else np.asarray(weights, float)
        if plan.ndim == 2:
            rows, labels = np.nonzero(plan)
            weights = weights[rows] * plan[rows, labels]
            members = members[rows]
        else:
            labels = plan
        # Squared means cancel in moments: they are averaged about a point amid the members.
        origin = of_places(canonical_mean, members.location())
        middle = self._middle(moved(members, origin), labels, weights)
        return moved(middle, opposite(origin))

    def assign(
        self,
        costs: Float[Array, "n g"],
        starts: Int[Array, " bounds"],
        labels: Int[Array, " n"],
        masses: Float[Array, " n"],
    ) -> Int[Array, " n"]:
        """New labels of all sites' components, a site's own apart: its cheapest assignment.

        Args:
            costs: of every component (N,) and every centroid (G,).
            starts: the first component of each site, and the end.
            labels: the last ones.
            masses: how much each component weighs in its site.
        """
        del labels, masses
        return assign(costs, starts)


def shares(labels: Int[Array, " n"], weights: Float[Array, " n"]) -> Float[Array, " n"]:
    """Weights that add up to one within each label."""
    total = canonical_sums(weights[:, None], labels, int(labels.max()) + 1)[:, 0]
    return weights / total[labels]


def sums(values: Any, labels: Int[Array, " n"]) -> Any:
    """Sums (G, ...) of the values (N, ...) of each label, whatever their order."""
    size = int(labels.max()) + 1
    total = canonical_sums(values.reshape(len(values), -1), labels, size)
    return total.reshape(size, *values.shape[1:])
