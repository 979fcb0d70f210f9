"""Separation: columns whose coefficients a likelihood does not keep finite.

It is found by a linear program: a direction of the coefficients along which no record's likelihood
decreases and some increase (albert1984, konis2007). Of labels such a direction tells classes apart,
wholly or in part; of counts it has records of zero alone on one side.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def separating(
    x: ArrayLike,
    targets: ArrayLike,
    *,
    counts: bool = False,
    most_cells: int = 2_000_000,
    rounding: float = 1e-6,
) -> np.ndarray:
    """Return a mask of columns of ``x`` (n, d) in a direction that separates targets (n,): classes
    0..K-1, or ``counts``.

    The mask is empty if the linear program would have more than ``most_cells`` entries, which takes
    seconds; ``rounding`` is its tolerance, relative to columns of size one.

    >>> x = np.column_stack([np.ones(6), [1, 2, 3, 4, 5, 6], [1, 0, 1, 0, 1, 1]])
    >>> separating(x, np.array([0, 0, 0, 1, 1, 1]))
    array([False,  True, False])
    >>> separating(x, np.array([3, 0, 2, 0, 4, 1]), counts=True)
    array([False, False,  True])
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    x = np.asarray(x, np.float64)
    targets = np.asarray(targets)
    columns = np.zeros(x.shape[1], bool)
    if not len(x):
        return columns
    constant = np.ptp(x, axis=0) == 0
    if constant.any():  # an intercept absorbs the centres of the other columns
        x = np.where(constant, x, x - x.mean(0))
    size = np.abs(x).max(0)
    x = x / np.where(size > 0, size, 1.0)
    copies = 1 if counts else int(targets.max())
    if x.size * copies**2 > most_cells:
        return columns
    if counts:
        rises = -x[targets == 0]
        level: Any = np.linalg.qr(x[targets > 0], mode="r")
    else:
        rises = _rises(x, targets.astype(int))
        level = np.zeros((0, rises.shape[1]))
    # Of all directions that separate, the shortest one names the fewest columns. The mean rise is
    # one, far above the solver's tolerance, to which overlaps count as none.
    cost = np.tile(~constant, 2 * copies).astype(float)
    asked = np.concatenate([rises, rises.sum(0)[None]])
    least = np.append(np.zeros(len(rises)), len(rises))
    both = csr_matrix(np.concatenate([-asked, asked], axis=1))
    flat = np.concatenate([level, -level], axis=1)
    short = linprog(cost, both, -least, flat, np.zeros(len(level)), bounds=(0, 1 / rounding))
    if short.status != 0:
        return columns
    up, down = np.split(short.x, 2)
    moved = np.abs((up - down).reshape(copies, -1)).max(0)
    moved = moved > rounding * moved.max()
    return moved & ~constant if (moved & ~constant).any() else moved


def _rises(x: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return rows whose products with a direction must not be negative: of a record of class ``c``
    ``x (d_c - d_k)`` for every other class ``k``. The first class is the reference, without ``d``.
    """
    count = int(classes.max()) + 1
    rows = [np.zeros((0, x.shape[1] * (count - 1)))]
    for other in range(count):
        chosen = classes != other
        at = np.zeros((int(chosen.sum()), count, x.shape[1]))
        at[np.arange(len(at)), classes[chosen]] += x[chosen]
        at[:, other] -= x[chosen]
        rows.append(at[:, 1:].reshape(len(at), -1))
    return np.concatenate(rows)
