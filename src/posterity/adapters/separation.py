"""Whether classes are separated, so that a maximum likelihood estimate lies at infinity.

Then the optimiser stops somewhere on the way, and what it reports as covariance is where it got
tired. Separation is found by a linear program: a direction of the coefficients along which the
likelihood of no record falls and that of some rises (albert1984, konis2007).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from posterity.errors import ParameterError
from posterity.families.names import some

MOST = 2_000_000
"""Numbers of a linear program that is worth its time; larger ones are left."""
TOLERANCE = 1e-6


def separating(x: Any, classes: Any) -> np.ndarray:
    """Which columns of ``x`` (n, d) take part in a direction that separates classes (n,) 0..K-1.

    >>> x = np.column_stack([np.ones(6), [1, 2, 3, 4, 5, 6], [1, 0, 1, 0, 1, 1]])
    >>> separating(x, np.array([0, 0, 0, 1, 1, 1]))
    array([False,  True, False])
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    x, classes = np.asarray(x, np.float64), np.asarray(classes, int)
    found = np.zeros(x.shape[1], bool)
    constant = np.ptp(x, axis=0) == 0
    if constant.any():  # an intercept takes up what the centres of the others contribute
        x = np.where(constant, x, x - x.mean(0))
    size = np.abs(x).max(0)
    x = x / np.where(size > 0, size, 1.0)
    count = int(classes.max()) + 1
    if x.size * (count - 1) ** 2 > MOST:
        return found
    # A record of class c asks that x (d_c - d_k) is not negative, for every other class k.
    rows = []
    for other in range(count):
        chosen = classes != other
        at = np.zeros((int(chosen.sum()), count, x.shape[1]))
        at[np.arange(len(at)), classes[chosen]] += x[chosen]
        at[:, other] -= x[chosen]
        rows.append(at[:, 1:].reshape(len(at), -1))  # the first class is the reference
    rises = np.concatenate(rows)
    total, nowhere = rises.sum(0), np.zeros(len(rises))
    done = linprog(-total, csr_matrix(-rises), nowhere, bounds=(-1, 1))
    if done.status != 0 or -done.fun <= TOLERANCE * len(rises):
        return found
    # They are; of all directions, the shortest names the fewest columns.
    cost = np.tile(~constant, 2 * (count - 1)).astype(float)
    asked = np.concatenate([rises, total[None]])
    least = np.concatenate([nowhere, [1.0]])
    both = csr_matrix(np.concatenate([-asked, asked], axis=1))
    short = linprog(cost, both, -least, bounds=(0, None))
    direction = short.x[: len(total)] - short.x[len(total) :] if short.status == 0 else done.x
    moved = np.abs(direction.reshape(count - 1, -1)).max(0)
    moved = moved > TOLERANCE * moved.max()
    return moved & ~constant if (moved & ~constant).any() else moved


def check_separation(x: Any, classes: Any, names: Sequence[str], place: str) -> None:
    """Raise a ParameterError that names the columns, where classes are separated."""
    found = separating(x, classes)
    if found.any():
        raise ParameterError(
            found=f"classes that {some([n for n, f in zip(names, found, strict=True) if f])} "
            f"tell apart without error, wholly or for some records, in {place}",
            expected="classes that overlap: the estimate is at infinity, and its covariance is "
            "where the optimiser stopped",
            fix="Fit with a prior: posterity.federate with models.LogisticRegression, or "
            "scikit-learn's LogisticRegression, whose penalty is one.",
        )
