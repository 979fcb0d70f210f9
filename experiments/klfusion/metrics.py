"""The two measures of figures 2 and 3."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
