"""The two measures of figures 2 and 3."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Array = NDArray[np.float64]


def hausdorff(estimated: Array, true: Array) -> float:
    """Hausdorff distance between two sets of means, (G, d) and (H, d).

    max(max_g min_h |a_g - b_h|, max_h min_g |a_g - b_h|): one estimate far from every true mean
    costs as much as one true mean that no estimate is near.
    """
    distances = np.linalg.norm(estimated[:, None, :] - true[None, :, :], axis=-1)
    return float(max(distances.min(axis=0).max(), distances.min(axis=1).max()))


def size_error(estimated: Array, true: Array) -> int:
    """|G - H|, how far the number of estimated components is from the truth."""
    return abs(len(estimated) - len(true))


def predictive_log_prob(plate: Any, x: Array) -> Array:
    """Log density (n,), in nats, of new observations (n, d) by a plate of Normal-Wisharts.

    Each component predicts by Student's t (bishop2006, equation 10.81).
    """
    q = plate.members
    freedom = q.degrees_of_freedom + 1 - x.shape[-1]
    shape = q.inverse_scale * ((1 + 1 / q.mean_precision) / freedom)[:, None, None]
    rows = zip(q.mean, shape, freedom, strict=True)
    each = np.stack([stats.multivariate_t(*row).logpdf(x) for row in rows], axis=-1)
    return special.logsumexp(each + np.log(plate.mean_weights()), axis=-1)
