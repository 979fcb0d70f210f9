"""A more flexible density to hold a fit against: two Gaussians in place of one.

The draws come as scores that are standard normal if the fit is right. The reference is learned on
one half of every chain and judged on the other, so what it gains is no more than what is there: on
average it is at most ``KL(posterior ‖ fit)``, whichever the reference.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import expit

from posterity.arrays.typing import Float

Array = np.ndarray
LOG_2PI = float(np.log(2 * np.pi))
FLOOR = 0.01
"""The least variance of a component: rejected proposals repeat a draw, which is no spike."""
PSEUDO = 4.0
"""Draws that a component's unit covariance counts for beforehand."""
MOST = 8
"""Directions of extreme kurtosis that are looked along."""
SHORT, LONG = 8, 40
"""Steps of expectation maximisation from each start, and from the best."""
DIP = 0.8
"""Two modes have a valley between them, below this share of the lower peak."""


class Pairs(NamedTuple):
    """Two Gaussians for each of ``d`` coordinates: log weights, means and variances (2, d)."""

    log_weights: Float[Array, "2 d"]
    mean: Float[Array, "2 d"]
    variance: Float[Array, "2 d"]

    def joint(self, z: Float[Array, "n d"]) -> Float[Array, "2 n d"]:
        """``log w_k N(z)``."""
        gap = (z - self.mean[:, None]) ** 2 / self.variance[:, None]
        return (self.log_weights - np.log(self.variance) / 2 - LOG_2PI / 2)[:, None] - gap / 2

    def gain(self, z: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Log density over that of the standard normal, in nats."""
        return np.logaddexp(*self.joint(z)) + (z**2 + LOG_2PI) / 2

    def modes(self) -> Float[Array, " d"]:
        """1 or 2 for each coordinate."""
        grid = np.linspace(0, 1, 101)[:, None]
        line = self.mean[0] + grid * (self.mean[1] - self.mean[0])
        height = np.logaddexp(*self.joint(line))
        peaks = np.minimum(height[0], height[-1])
        return np.where(height.min(0) < peaks + np.log(DIP), 2.0, 1.0)


def pairs(z: Float[Array, "n d"]) -> Pairs:
    """By expectation maximisation, for all coordinates at once, from the best of four starts."""
    middle, far = np.median(z, 0), np.median(abs(z), 0)
    starts = [z > middle, abs(z) > far, z > np.quantile(z, 0.85, 0), z < np.quantile(z, 0.15, 0)]
    best, heights = None, None
    for start in starts:
        found, height = _pairs_from(z, np.where(start, 0.9, 0.1), SHORT)
        if best is None or heights is None:
            best, heights = found, height
            continue
        better = height > heights
        best = Pairs(*(np.where(better, new, old) for new, old in zip(found, best, strict=True)))
        heights = np.maximum(height, heights)
    assert best is not None
    joint = best.joint(z)
    return _pairs_from(z, expit(joint[0] - joint[1]), LONG)[0]


def _pairs_from(z: Array, first: Array, steps: int) -> tuple[Pairs, Array]:
    found, joint = None, None
    for _ in range(steps):
        shares = np.stack([first, 1 - first])
        counts = shares.sum(1) + 1e-9
        mean = (shares * z).sum(1) / counts
        squares = (shares * (z - mean[:, None]) ** 2).sum(1)
        variance = np.maximum((squares + PSEUDO) / (counts + PSEUDO), FLOOR)
        found = Pairs(np.log(counts / counts.sum(0)), mean, variance)
        joint = found.joint(z)
        first = expit(joint[0] - joint[1])
    assert found is not None and joint is not None
    return found, np.logaddexp(*joint).mean(0)


def directions(z: Float[Array, "n d"], hints: Float[Array, "d h"]) -> Float[Array, "d k"]:
    """Unit vectors along which whitened draws may well have two modes, the hints among them.

    Balanced modes have little kurtosis along the line between them, and heavy tails and rare modes
    much: eigenvectors of ``E[|z|² z zᵀ]`` have the least and the most; and skewness has a line.
    """
    count, size = z.shape
    radius = (z**2).sum(-1)
    _, axes = np.linalg.eigh((z.T * radius) @ z / count)
    extremes = [k // 2 if k % 2 == 0 else size - 1 - k // 2 for k in range(min(size, MOST))]
    skewed = z.T @ radius / count
    skewed = skewed / (np.linalg.norm(skewed) + np.finfo(float).tiny)
    return np.column_stack([axes[:, extremes], hints, skewed])
