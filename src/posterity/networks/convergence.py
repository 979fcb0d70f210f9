"""When training has come far enough: the bound has stopped rising."""

import math

import numpy as np

from posterity.status import Status

PACE = 500
"""Steps over which a rise of the bound is measured."""
TOLERANCE = 0.01
"""Nats a record by which the bound may still rise in so many steps; where it is above one nat in
size, and has risen by more, times the lesser of the two."""


def status_of(trace: np.ndarray, steady: int, chunk: int, tolerance: float = TOLERANCE) -> Status:
    """Whether the bound still rose before the rate was lowered.

    ``trace`` is the bound in nats a record, averaged over each ``chunk`` of steps, of which the
    first ``steady`` had the full rate. The change is how much it rose in ``PACE`` steps, from the
    second last to the last of up to ``PACE``; what two standard errors explain is allowed, up to
    three times the tolerance.
    """
    tail = trace[:steady] if steady >= 2 else trace
    each = max(min(PACE // chunk, len(tail) // 2), 1)
    last, before = tail[-each:], tail[-2 * each : -each]
    if not len(before):
        return Status("not converged", math.inf, tolerance, ("too few steps to tell",))
    pace = PACE / (each * chunk)
    change = abs(float(last.mean() - before.mean())) * pace
    # From one chunk to the next, so that a rise is not taken for noise.
    noise = np.diff(tail[-2 * each :]).std() / np.sqrt(each) * pace
    end = float(last.mean())
    allowed = tolerance * max(1.0, min(abs(end), abs(end - float(trace[0]))))
    allowed = max(allowed, min(2 * float(noise), 3 * allowed))
    if trace[-1] < trace[0]:
        return Status("diverged", change, allowed, ("the bound is lower than at first",))
    return Status("converged" if change <= allowed else "not converged", change, allowed)
