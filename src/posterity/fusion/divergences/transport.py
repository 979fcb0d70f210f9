"""Optimal transport of whole mixtures: components carry mass, and a plan says where it goes."""

import dataclasses

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.errors import MissingExtraError
from posterity.fusion.divergences.wasserstein import Wasserstein

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class OptimalTransport(Wasserstein):
    """``MW₂²``: a site's mixture is carried to the fused one at the least cost (delon2020).

    The cost of a unit of mass from a component to another is :class:`Wasserstein`'s. All of a
    site's mass has to arrive, in the proportions of the fused mixture: it serves sites that have
    the same components in much the same proportions. What a site lacks is carried there all the
    same. A plan may cut a component in pieces; it becomes the assignment, a site's own components
    apart, that keeps the most of its mass in place.

    Plans are POT's, exact, by network simplex (flamary2021); it is imported where there are any.

    Raises:
        MissingExtraError: POT is not installed.
    """

    @property
    def value(self) -> str:
        """``"optimal-transport"``."""
        return "optimal-transport"

    def assign(
        self,
        costs: Float[Array, "n g"],
        starts: Int[Array, " bounds"],
        labels: Int[Array, " n"],
        masses: Float[Array, " n"],
    ) -> Int[Array, " n"]:
        """The assignment that keeps most of the transported mass; ties go to what is near."""
        from posterity.fusion.clustering import assign

        sizes = np.diff(starts)
        total = np.add.reduceat(masses, starts[:-1])
        share = masses / np.repeat(total, sizes)
        fused = np.bincount(labels, share, costs.shape[1]) / len(sizes)
        blocks = zip(np.split(share, starts[1:-1]), np.split(costs, starts[1:-1]), strict=True)
        plan = np.concatenate([transport_plan(own, fused, part) for own, part in blocks])
        near = costs / max(float(costs.max()), np.finfo(float).tiny)
        return assign(1 - plan + 1e-9 * near, starts)


def transport_plan(
    source: Float[Array, " k"], target: Float[Array, " g"], costs: Float[Array, "k g"]
) -> Float[Array, "k g"]:
    """The cheapest way to carry ``source`` to ``target``, both of mass one.

    Raises:
        MissingExtraError: POT is not installed.
    """
    try:
        from ot import emd
    except ImportError as error:
        raise MissingExtraError.of("pot", "transport") from error
    return np.asarray(emd(source / source.sum(), target / target.sum(), costs))
