"""Whether a student is what its teacher is."""

import dataclasses
from typing import Literal

TOLERANCE = 0.01
"""Nats by which a student's predictive may diverge from its teacher's."""


@dataclasses.dataclass(frozen=True)
class Status:
    """How far a student is from its teacher, and what is to be said of the teacher.

    ``gap`` is ``KL(teacher's predictive ‖ student's)`` in nats, the mean over the probe, where the
    teacher's is the average over all its draws. ``drift`` is the divergence between what the two
    halves of the run say of the teacher, which a quarter of is about the error of their average;
    from four times the tolerance on it counts, and it is infinite where one of the halves is empty.
    ``temperature`` is the chains', 1 where they sample what they should; None without chains, for
    one that changes with the steps, and where too few draws tell.
    """

    state: Literal["converged", "not converged"]
    gap: float
    tolerance: float
    drift: float
    temperature: float | None = None
    reasons: tuple[str, ...] = ()

    @property
    def converged(self) -> bool:
        """Whether the student can stand in for its teacher."""
        return self.state == "converged"

    def __str__(self) -> str:
        why = "".join(f"; {reason}" for reason in self.reasons)
        return (
            f"{self.state}: {self.gap:.2g} nats from its teacher, {self.tolerance:.2g} allowed{why}"
        )


def judged(
    gap: float,
    drift: float,
    tolerance: float,
    temperature: float | None,
    reasons: tuple[str, ...],
) -> Status:
    """The status of a student with this gap, whose teacher says these reasons of itself."""
    found = list(reasons)
    if not gap <= tolerance:
        found.append(
            "the student is too small for its teacher, or had too few steps"
            if drift / 4 <= tolerance
            else "the teacher's own average is not known better"
        )
    if drift == float("inf"):
        found.append("the teacher was not asked in both halves of the run: it had too few steps")
    elif not drift <= 4 * tolerance:
        found.append(
            f"the halves of the run say different things of the teacher ({drift:.2g} nats): its "
            "chains have not explored the posterior"
        )
    state = "not converged" if found else "converged"
    return Status(state, gap, tolerance, drift, temperature, tuple(found))
