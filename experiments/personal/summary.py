"""Means and standard errors over seeds, and the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.harness import statistics
from experiments.personal.methods import LOCAL, PARTIAL, POOLED

GOAL = (
    "held-out log likelihood of partial pooling: at least that of the better of pooled and local, "
    "within one standard error, at every spread; strictly better than both in between"
)


def summarise(found: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """By study: log likelihoods of a held-out record, and differences paired by seed."""
    return {
        study: _study([seed["log likelihood"] for seed in seeds]) for study, seeds in found.items()
    }


def _study(scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    by = {name: np.array([seed[name] for seed in scores]) for name in (POOLED, LOCAL, PARTIAL)}
    better = max((POOLED, LOCAL), key=lambda name: by[name].mean())
    gain = statistics(by[PARTIAL] - by[better])
    error = gain["standard error"] or 0.0
    spread = statistics(by[better])["standard error"] or 0.0
    return {
        "log likelihood": {name: statistics(values) for name, values in by.items()},
        "better of pooled and local": better,
        "partial pooling less pooled": statistics(by[PARTIAL] - by[POOLED]),
        "partial pooling less local": statistics(by[PARTIAL] - by[LOCAL]),
        "partial pooling less the better": gain,
        "at least as good, within one standard error of the log likelihood": bool(
            gain["mean"] >= -spread
        ),
        "at least as good, within one standard error of the difference": bool(
            gain["mean"] >= -error
        ),
        "better, by more than one standard error of the difference": bool(gain["mean"] > error),
    }
