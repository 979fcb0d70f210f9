"""KL-fusion in the setting of its paper: equation (9), solved as it stands (claici2020).

Kept for comparison. Its number of components depends on the regularisation, and its literal
setting finds too many when sites differ (``docs/decisions.md``).
"""

import dataclasses

import numpy as np

from posterity.fusion.clustering import Clustering, LocalComponents
from posterity.fusion.costs import finite
from posterity.fusion.geometry import Centroids
from posterity.fusion.kl_fusion.descent import assign_descent
from posterity.fusion.kl_fusion.relaxation import relax, round_plan
from posterity.fusion.search import Found, search

Array = np.ndarray
ITERATIONS = 10  # the paper's


@dataclasses.dataclass(frozen=True)
class Setting:
    """The paper's hyperparameters: ``regularization`` is in standard deviations of the costs."""

    regularization: float = 0.1
    components: int | None = None
    """Upper bound on the number of components; None takes twice the largest site's, plus two."""


def kl_fusion(local: LocalComponents, setting: Setting) -> Found:
    """Alternate the relaxed assignment (9) and relaxed barycentres; then round.

    The trace holds the objective of (9) in units of the costs' standard deviation; iteration
    stops when it rises, which rounding of the solver's gap alone can cause.
    """
    centroids = _start(local, setting)
    costs = finite(local.points.divergences(centroids))
    scale = float(costs.std()) or 1.0
    trace: list[float] = []
    plans: list[Array] = []
    for _ in range(ITERATIONS):
        relaxed = relax(np.split(costs / scale, local.starts[1:-1]), setting.regularization)
        if trace and relaxed.objective >= trace[-1]:
            break
        trace.append(relaxed.objective)
        plans = relaxed.plans
        centroids = _relaxed_barycenters(local, np.concatenate(plans), centroids)
        costs = finite(local.points.divergences(centroids))
    sites = np.split(costs / scale, local.starts[1:-1])
    # Rounding leaves columns that a few more exchanges would empty.
    rounded = assign_descent(sites, setting.regularization, start=round_plan(plans))
    labels = np.concatenate(rounded.assignments)
    return Found(Clustering(local, np.unique(labels, return_inverse=True)[1]), trace)


def _start(local: LocalComponents, setting: Setting) -> Centroids:
    largest, total = local.largest(), len(local.points)
    bound = setting.components or min(total, 2 * largest + 2)
    return search(local, components=bound).clustering.centroids


def _relaxed_barycenters(local: LocalComponents, plan: Array, before: Centroids) -> Centroids:
    mass = plan.sum(0)
    # A column that nothing is assigned to has no barycentre: it stays where it was.
    used = mass > 1e-9
    coordinates = before.coordinates.copy()
    coordinates[used] = (plan.T @ local.points.coordinates)[used] / mass[used, None]
    return local.points.centroids(coordinates)
