"""The status of a result and the progress towards it, which are the same for every verb."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

State = Literal["converged", "converged to one of several", "not converged", "diverged"]


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of a result: if it can be relied on, and what is left to gain.

    ``left`` estimates, in nats, how far the result is from the optimum that it was to reach:
    ``math.inf`` where that is not known. ``tolerance`` is how much may be left, in the same nats.
    ``reasons`` say in words what else keeps the result from being called converged: to be one of
    several optima is such a reason, and they say which others were found. Those of a result that is
    called converged say where nobody looked. What each verb measures is told by its own
    documentation.

    >>> print(Status("not converged", 0.25, 1e-3, ("site 'north' failed",)))
    not converged: 0.25 nats left, 0.001 allowed; site 'north' failed
    """

    state: State
    left: float
    tolerance: float
    reasons: tuple[str, ...] = ()

    @classmethod
    def of(cls, left: float, tolerance: float, reasons: tuple[str, ...] = ()) -> "Status":
        """Converged if no more than the tolerance is left and there are no reasons against it.

        >>> Status.of(math.nan, 1e-3).state
        'not converged'
        """
        converged = left <= tolerance and not reasons
        return cls("converged" if converged else "not converged", left, tolerance, tuple(reasons))

    @property
    def converged(self) -> bool:
        """True if the result can be relied on."""
        return self.state == "converged"

    def __str__(self) -> str:
        known = math.isfinite(self.left)
        left = f"{self.left:.2g} nats" if known else "an unknown number of nats"
        why = "".join(f"; {reason}" for reason in self.reasons)
        return f"{self.state}: {left} left, {self.tolerance:.2g} allowed{why}"


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a verb; what ``progress=`` is called with, after each step or some of them.

    ``step`` counts the steps made, ``steps`` those that there will be at most (None if that is not
    known). ``objective`` is the value of what is optimised, in nats, ``left`` an estimate of how
    far it is from its optimum; NaN where they are not known yet.
    """

    step: int
    steps: int | None = None
    objective: float = math.nan
    left: float = math.nan
    partial: Callable[[], Any] | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def result(self) -> Any:
        """The result so far, of the kind that the verb returns; computed when it is asked for."""
        return None if self.partial is None else self.partial()


ProgressCallback = Callable[[Progress], Any]
