"""Units taken as they are: those that tell most of what comes after, and the others dropped."""

from typing import NamedTuple

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.fusion.networks.targets import Targets

Array = np.ndarray
NEW = 1e-9
"""Share of a unit's variance that others must leave unexplained for it to say anything new."""


class Ranked(NamedTuple):
    """All units, those first that tell most beyond the ones before them."""

    order: Int[Array, " n"]

    def labels(self, width: int | None) -> Int[Array, " n"]:
        """Of the first ``width``; -1 for the others."""
        found = np.full(len(self.order), -1)
        kept = self.order[:width]
        found[kept] = np.arange(len(kept))
        return found


def ranked(targets: Targets, index: int, mass: Float[Array, " n"]) -> Ranked:
    """By orthogonal least squares (chen1989) of what the next layer wants, averaged over places.

    At each step the unit comes next that lowers the residual most beside those before it: a
    Cholesky factorisation of the units' covariance, pivoted by what is explained.
    """
    flat = lambda out: out.mean(tuple(range(1, out.ndim - 1)))
    units = np.concatenate([flat(out) for out in targets.activations(index)], axis=1)
    after = [flat(pre[index + 1]) for pre in targets.pre]
    if index + 2 == len(targets.locals[0].layers):
        after = [sum(a * pre for a, pre in zip(targets.shares, after, strict=True))]
    wanted = np.concatenate(after, axis=1)  # pyright: ignore[reportCallIssue, reportArgumentType]
    units, wanted = units - units.mean(0), wanted - wanted.mean(0)
    covariance, slope = units.T @ units, units.T @ wanted
    left = covariance.diagonal().copy()
    least = NEW * left
    factor = np.zeros((len(left), len(left)))
    order: list[int] = []
    open_ = left > 0
    for step in range(len(left)):
        open_ &= left > least
        if not open_.any():
            break
        gain = np.where(open_, (slope**2).sum(1) / np.where(open_, left, 1.0), -1.0)
        best = int(gain.argmax())
        open_[best] = False
        order.append(best)
        column = covariance[best] - factor[:, :step] @ factor[best, :step]
        column /= np.sqrt(left[best])
        slope = slope - np.outer(column, slope[best] / np.sqrt(left[best]))
        factor[:, step] = column
        left = left - column**2
    rest = np.setdiff1d(np.arange(len(left)), order)
    return Ranked(np.concatenate([np.array(order, int), rest[np.argsort(-mass[rest])]]))
