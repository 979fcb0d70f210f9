"""Projections that the primal-dual method of the relaxed matching is made of."""

import numpy as np

from posterity.arrays.typing import Float

ROW_ERROR = 1e-13  # Newton's tolerance on the sum of a row


def project_simplex(
    points: Float[np.ndarray, "rows columns"], threshold: Float[np.ndarray, " rows"]
) -> tuple[Float[np.ndarray, "rows columns"], Float[np.ndarray, " rows"]]:
    """Each row's closest point on the simplex, max(x − θ, 0), and the θ of each row.

    Newton on Σ max(x − θ, 0) = 1, convex and piecewise linear in θ: it ends exactly after a few
    passes from the θ of the step before, where a sort would look at everything.
    """
    ones = np.ones(points.shape[1])
    projected = points
    for _ in range(100):
        projected = np.maximum(points - threshold[:, None], 0.0)
        excess = projected @ ones - 1.0
        if np.abs(excess).max() <= ROW_ERROR:
            break
        active = (projected > 0).astype(float) @ ones
        threshold = threshold + excess / np.maximum(active, 1.0)
        if not active.all():  # θ beyond the row: start left of the root
            lost = active == 0
            threshold[lost] = points[lost].max(axis=1) - 1.0
    return projected, threshold


def project_balls(
    points: Float[np.ndarray, "rows columns"], radius: float
) -> Float[np.ndarray, "rows columns"]:
    """Each column's closest point in the Euclidean ball of this radius."""
    norms = np.sqrt(np.einsum("rg,rg->g", points, points))
    return points * (radius / np.maximum(norms, max(radius, np.finfo(float).tiny)))
