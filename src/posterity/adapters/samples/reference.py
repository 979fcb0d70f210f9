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
MOST_DIRECTIONS = 8
LOG_COSH = 0.374567
"""``E[log cosh z]`` of a standard normal."""
PURSUIT = 20
"""Steps of the search for directions."""
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


class Two(NamedTuple):
    """Two Gaussians over ``k`` directions of whitened draws."""

    directions: Float[Array, "d k"]
    log_weights: Float[Array, " 2"]
    mean: Float[Array, "2 k"]
    roots: Float[Array, "2 k k"]
    """Cholesky factors of the covariances."""

    def joint(self, v: Float[Array, "n k"]) -> Float[Array, "2 n"]:
        """``log w_k N(v)``, at coordinates along the directions."""
        rows = []
        for log_weight, mean, root in zip(self.log_weights, self.mean, self.roots, strict=True):
            gap = np.linalg.solve(root, (v - mean).T)
            norm = np.log(np.diag(root)).sum() + v.shape[1] * LOG_2PI / 2
            rows.append(log_weight - norm - (gap**2).sum(0) / 2)
        return np.stack(rows)

    def gain(self, z: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Log density over that of the standard normal, in nats."""
        v = z @ self.directions
        return np.logaddexp(*self.joint(v)) + ((v**2).sum(-1) + v.shape[1] * LOG_2PI) / 2

    def is_bimodal(self) -> bool:
        """Whether there is a valley on the line between the means."""
        line = self.mean[0] + np.linspace(0, 1, 101)[:, None] * (self.mean[1] - self.mean[0])
        height = np.logaddexp(*self.joint(line))
        return bool(height.min() < min(height[0], height[-1]) + np.log(DIP))

    @property
    def along(self) -> Float[Array, " d"]:
        """From one mean to the other, in whitened coordinates."""
        return self.directions @ (self.mean[1] - self.mean[0])


def two(z: Float[Array, "n d"], hints: Float[Array, "d h"]) -> Two:
    """By expectation maximisation in the directions that are least Gaussian.

    ``hints`` are directions to look along too, such as those of the largest variance.
    """
    directions = _directions(z, hints)
    v = z @ directions
    radius = (v**2).sum(-1)
    starts = [v[:, k] > np.median(v[:, k]) for k in range(min(v.shape[1], 4))]
    starts += [radius > np.median(radius), v[:, -1] > np.quantile(v[:, -1], 0.85)]
    tried = [_two_from(v, directions, np.where(s, 0.9, 0.1), SHORT) for s in starts]
    best = max(tried, key=lambda pair: pair[1])[0]
    joint = best.joint(v)
    return _two_from(v, directions, expit(joint[0] - joint[1]), LONG)[0]


def _two_from(v: Array, directions: Array, first: Array, steps: int) -> tuple[Two, float]:
    found, joint = None, None
    count, size = v.shape
    # Little data in many directions: the more of them, the more the unit covariance counts.
    pseudo = PSEUDO + size
    for _ in range(steps):
        shares = np.stack([first, 1 - first])
        counts = shares.sum(1) + 1e-9
        mean = shares @ v / counts[:, None]
        roots = []
        for share, own, centre in zip(shares, counts, mean, strict=True):
            gap = v - centre
            covariance = (gap.T * share) @ gap + pseudo * np.eye(size)
            covariance = covariance / (own + pseudo) + FLOOR * np.eye(size)
            roots.append(np.linalg.cholesky(covariance))
        found = Two(directions, np.log(counts / count), mean, np.stack(roots))
        joint = found.joint(v)
        first = expit(joint[0] - joint[1])
    assert found is not None and joint is not None
    return found, float(np.logaddexp(*joint).mean())


def _directions(z: Array, hints: Array) -> Array:
    """Those of the least and the most kurtosis, and of skewness; the least Gaussian come first.

    Balanced modes have little kurtosis along the line between them, and heavy tails and rare modes
    much. Begun at hints and extreme eigenvectors of ``E[|z|² z zᵀ]``, a fixed-point iteration goes
    to the nearest direction in which ``E[log cosh]``, which no few draws decide, is extreme.

    Source: hyvarinen1999.
    """
    count, size = z.shape
    if size == 1:
        return np.ones((1, 1))
    radius = (z**2).sum(-1)
    _, axes = np.linalg.eigh((z.T * radius) @ z / count)
    some = min(size, MOST_DIRECTIONS)
    order = [k // 2 if k % 2 == 0 else size - 1 - k // 2 for k in range(some)]
    begin = np.column_stack([axes[:, order], hints])
    found = begin
    for _ in range(PURSUIT):
        bent = np.tanh(z @ found)
        moved = z.T @ bent / count - (1 - bent**2).mean(0) * found
        found = moved / np.maximum(np.linalg.norm(moved, axis=0), np.finfo(float).tiny)
    skewed = z.T @ radius / count
    found = np.column_stack([found, begin, skewed / (np.linalg.norm(skewed) + 1e-300)])
    v = z @ found
    odd = abs((np.logaddexp(v, -v) - np.log(2)).mean(0) - LOG_COSH)
    chosen = found[:, np.argsort(-odd)]
    # One that is a combination of better ones says nothing new.
    basis: list[Array] = []
    for column in chosen.T:
        rest = column - sum((own * (own @ column) for own in basis), start=np.zeros(size))
        rest = rest - sum((own * (own @ rest) for own in basis), start=np.zeros(size))
        if (length := float(np.linalg.norm(rest))) > 0.3 and len(basis) < some:
            basis.append(rest / length)
    return np.column_stack(basis)
