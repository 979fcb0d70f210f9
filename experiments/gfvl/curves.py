"""Divergences of many repetitions, summed up for figures and for `expected.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.gfvl.problem import Array
from experiments.harness import rounded as significant
from experiments.harness import standard_error, statistics

DIVERGED = 10.0
"""A divergence this large after training counts the run as diverged."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """Divergences (repetitions, records) against visits of the token.

    `steps` local iterations were made in each visit; repetitions of one `group` share data.
    """

    kl: Array
    visits: Array
    steps: int = 1
    groups: int = 1

    @property
    def iterations(self) -> Array:
        """Local iterations by each record."""
        return self.visits * self.steps

    @property
    def kept(self) -> Array:
        """Divergences of the repetitions that did not diverge, or of all if all did."""
        lost = self._lost
        return self.kl if lost.all() or self.groups > 1 else self.kl[~lost]

    @property
    def mean(self) -> Array:
        """Over the repetitions that did not diverge."""
        return self.kept.mean(0)

    @property
    def standard_error(self) -> Array:
        """Of the mean; over groups where there are several."""
        rows = self.kept
        if self.groups > 1:
            rows = rows.reshape(self.groups, -1, rows.shape[1]).mean(1)
        return standard_error(rows)

    @property
    def interval(self) -> tuple[Array, Array]:
        """Between these lie nine of ten repetitions."""
        low, high = np.quantile(np.nan_to_num(self.kl, nan=np.inf), [0.05, 0.95], axis=0)
        return low, high

    def at(self, wanted: Sequence[int], *, unit: str = "visits") -> dict[str, Any]:
        """What is written down, at some numbers of visits or iterations."""
        x = getattr(self, unit)
        places = {w: int(np.searchsorted(x, w)) for w in wanted if w <= x[-1]}
        return {str(w): self._row(i) for w, i in places.items()}

    def _row(self, index: int) -> dict[str, Any]:
        low, high = (float(side[index]) for side in self.interval)
        return {
            "mean": significant(self.mean[index]),
            "standard error": significant(self.standard_error[index]),
            "90 % of repetitions": [significant(low), significant(high)],
        }

    @property
    def diverged(self) -> float:
        """Share of repetitions that end far off, or not finite."""
        return float(self._lost.mean())

    @property
    def _lost(self) -> Array:
        last = self.kl[:, -1]
        return ~np.isfinite(last) | (last > DIVERGED)


def estimate(values: Array) -> dict[str, float]:
    """Mean and standard error of independent values."""
    return {key: statistics(values)[key] for key in ("mean", "standard error")}


def first_within(kl: Array, limit: float, visits: Array) -> Array:
    """By repetition, visits until the divergence is at or below `limit`; NaN if it never is."""
    reached = kl <= limit
    return np.where(reached.any(1), visits[reached.argmax(1)], np.nan)
