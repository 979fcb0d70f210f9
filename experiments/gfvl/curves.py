"""Divergences of many repetitions, summed up for figures and for `expected.json`."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.gfvl.problem import Array
from experiments.harness import rounded as significant
from experiments.harness import standard_error, statistics

DIVERGED = 10.0  # a divergence this large after training counts the run as diverged


@dataclasses.dataclass(frozen=True)
class Curve:
    """Divergences (repetitions, records) against visits of the token.

    `steps` local iterations were made in each visit; repetitions of one of `groups` share data.
    Means and their errors are over the repetitions that did not diverge, or over groups.
    """

    kl: Array
    visits: Array
    steps: int = 1
    groups: int = 1

    @property
    def iterations(self) -> Array:
        return self.visits * self.steps

    @property
    def _lost(self) -> Array:
        return ~(self.kl[:, -1] <= DIVERGED)

    @property
    def diverged(self) -> float:
        """Share of repetitions that end far off, or not finite."""
        return float(self._lost.mean())

    @property
    def kept(self) -> Array:
        """Divergences of the repetitions that did not diverge, or of all if all did."""
        return self.kl if self._lost.all() or self.groups > 1 else self.kl[~self._lost]

    @property
    def mean(self) -> Array:
        return self.kept.mean(0)

    @property
    def standard_error(self) -> Array:
        rows = self.kept
        if self.groups > 1:
            rows = rows.reshape(self.groups, -1, rows.shape[1]).mean(1)
        return standard_error(rows)

    @property
    def interval(self) -> Array:
        return np.quantile(np.nan_to_num(self.kl, nan=np.inf), [0.05, 0.95], axis=0)

    def at(self, wanted: Sequence[int], *, unit: str = "visits") -> dict[str, Any]:
        """What is written down, at some numbers of visits or iterations."""
        x = getattr(self, unit)
        rows = self.mean, self.standard_error, *self.interval
        found = {}
        for number in wanted:
            if number <= x[-1]:
                mean, error, *band = (significant(r[np.searchsorted(x, number)]) for r in rows)
                own = {"mean": mean, "standard error": error, "90 % of repetitions": band}
                found[str(number)] = own
        return found


def estimate(values: Array) -> dict[str, float]:
    """Mean and standard error of independent values."""
    return {key: statistics(values)[key] for key in ("mean", "standard error")}


def first_within(kl: Array, limit: float, visits: Array) -> Array:
    """By repetition, visits until the divergence is at or below `limit`; NaN if it never is."""
    reached = kl <= limit
    return np.where(reached.any(1), visits[reached.argmax(1)], np.nan)
