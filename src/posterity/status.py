"""The status of a result and the progress of a computation, the same for every verb."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

State = Literal["converged", "converged to one of several", "not converged", "diverged"]


@dataclasses.dataclass(frozen=True)
class Status:
    """The status of a result: convergence and the estimated distance from the optimum.

    ``left`` is the estimated distance of the result from its optimum in nats; ``math.inf`` if it is
    unknown. ``tolerance`` is the largest distance, in nats, at which it counts as converged.
    ``reasons`` are other reasons, in words, why the result does not count as converged; being one
    of several optima is such a reason, and the text describes the others that were found. For a
    converged result they are caveats about what was not checked. ``scope`` is what the state is
    limited to, in words that follow it. The documentation of each verb defines what it measures.

    >>> print(Status("not converged", 0.25, 1e-3, ("site 'north' failed",)))
    not converged: 0.25 nats left, 0.001 allowed; site 'north' failed
    """

    state: State
    left: float
    tolerance: float
    reasons: tuple[str, ...] = ()
    scope: str = ""

    @classmethod
    def of(cls, left: float, tolerance: float, reasons: tuple[str, ...] = ()) -> "Status":
        """Return a converged status if ``left`` is at most the tolerance and there are no reasons.

        >>> Status.of(math.nan, 1e-3).state
        'not converged'
        """
        converged = left <= tolerance and not reasons
        return cls("converged" if converged else "not converged", left, tolerance, tuple(reasons))

    def limited(self, scope: str, reason: str) -> "Status":
        """Return the status with a limit to its state, in words that follow it, and the reason.

        >>> print(Status.of(0.0, 1e-3).limited("where it was searched", "a mode may be elsewhere"))
        converged where it was searched: 0 nats left, 0.001 allowed; a mode may be elsewhere
        """
        scope = f"{self.scope}," * bool(self.scope) + f" {scope}"
        return dataclasses.replace(self, scope=scope, reasons=(*self.reasons, reason))

    @property
    def converged(self) -> bool:
        """True if the state is ``"converged"``."""
        return self.state == "converged"

    @property
    def at_optimum(self) -> bool:
        """True if it is converged, also to one of several optima."""
        return self.state in ("converged", "converged to one of several")

    def __str__(self) -> str:
        known = math.isfinite(self.left)
        left = f"{self.left:.2g} nats" if known else "an unknown number of nats"
        why = "".join(f"; {reason}" for reason in self.reasons)
        return f"{self.state}{self.scope}: {left} left, {self.tolerance:.2g} allowed{why}"


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a verb: the argument of the function ``progress=``, at all or some steps.

    ``step`` is the number of steps made, ``steps`` the largest number of steps (None if unknown).
    ``objective`` is the current value of the objective in nats, and ``left`` its estimated distance
    from the optimum; NaN if they are not known yet.
    """

    step: int
    steps: int | None = None
    objective: float = math.nan
    left: float = math.nan
    partial: Callable[[], Any] | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def result(self) -> Any:
        """The result so far, of the type that the verb returns; computed on access."""
        return None if self.partial is None else self.partial()


ProgressCallback = Callable[[Progress], Any]
