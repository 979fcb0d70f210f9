"""KL-fusion in the setting of its paper: equation (9), solved as it stands (claici2020).

Kept for comparison. Its number of components depends on the regularisation, and its literal
setting finds too many when sites differ (``docs/decisions.md``).
"""

import numpy as np

from posterity.fusion.clustering import Clustering, LocalComponents
from posterity.fusion.geometry import finite
from posterity.fusion.kl_fusion.descent import assign_descent
from posterity.fusion.kl_fusion.relaxation import relax, round_plan
from posterity.fusion.search import SearchResult, search

ITERATIONS, REGULARIZATION = 10, 0.1
"""As in the paper; the regularisation is in standard deviations of the costs."""


def kl_fusion(local: LocalComponents, components: int | None = None) -> SearchResult:
    """Alternate the relaxed assignment (9) and relaxed barycentres; then round.

    ``components`` is an upper bound; None takes twice the components of the largest site, plus two.
    The trace holds the objective of (9) in units of the costs' standard deviation; iteration
    stops when it rises, which rounding of the solver's gap alone can cause.
    """
    points, ends = local.points, local.starts[1:-1]
    bound = components or min(len(points), 2 * local.largest() + 2)
    centroids = search(local, components=bound).clustering.centroids
    costs = finite(points.divergences(centroids))
    scale = float(costs.std()) or 1.0
    trace, plans = [], []
    for _ in range(ITERATIONS):
        relaxed = relax(np.split(costs / scale, ends), REGULARIZATION)
        if trace and relaxed.objective >= trace[-1]:
            break
        trace.append(relaxed.objective)
        plans = relaxed.plans
        plan, coordinates = np.concatenate(plans), centroids.coordinates.copy()
        mass = plan.sum(0)
        # A column that nothing is assigned to has no barycentre: it stays where it was.
        used = mass > 1e-9
        coordinates[used] = (plan.T @ points.coordinates)[used] / mass[used, None]
        centroids = points.centroids(coordinates)
        costs = finite(points.divergences(centroids))
    # Rounding leaves columns that a few more exchanges would empty.
    descent = assign_descent(np.split(costs / scale, ends), REGULARIZATION, round_plan(plans))
    labels = np.unique(np.concatenate(descent.assignments), return_inverse=True)[1]
    return SearchResult(Clustering(local, labels), trace)
