"""The result of a pursuit: the mixture, its trace, and its convergence."""

import dataclasses
import math
from typing import NamedTuple

from posterity.families import Mixture
from posterity.inference.modes import RULE
from posterity.status import Status


class Row(NamedTuple):
    """The mixture after a component was added, or after a polish, for which α and λ are NaN.

    ``gain`` is the increase of the ELBO in nats (for the first component the ELBO itself); its
    error is smaller than the ELBO's, as both use the same draws. ``alpha`` is the weight of the new
    component, ``entropy`` the mixture's entropy in nats, and ``effective`` the effective number of
    components, the exponential of the weights' entropy. ``evaluations`` is the total number of
    gradients of the log density so far.
    """

    components: int
    elbo: float
    standard_error: float
    gain: float
    gain_error: float
    alpha: float
    lam: float
    entropy: float
    effective: float
    evaluations: int

    def __str__(self) -> str:
        return (
            f"{self.components:3d} components  ELBO {self.elbo:.4f} ± {self.standard_error:.4f}  "
            f"gain {self.gain:+.4f} ± {self.gain_error:.4f}  α {self.alpha:.3f}  "
            f"λ {self.lam:.2f}  effective {self.effective:.2f}"
        )


class Refused(NamedTuple):
    """A component that was not added: the number that it would have had, and the reason."""

    number: int
    reason: str


class Covered(NamedTuple):
    """The reach of a search for a component, by fields of :class:`Pursuit`."""

    starts: int = 0
    blank: float = 0.0


@dataclasses.dataclass(frozen=True)
class Pursuit:
    """The result of :func:`posterity.pursue`: the mixture, its trace and its convergence.

    ``posterior`` is the mixture. ``trace`` has a row for each component and one for each polish
    that helped; ``refused`` lists components that were not added.

    ``gap`` estimates ``KL(q ‖ p)`` in nats by importance sampling from the mixture; ``effective``
    is the share of effective draws. Neither detects a mode that the mixture misses. ``starts`` is
    the number of fresh draws of the base that the last search compared with the mixture, and
    followed where unexplained: the target there is at most ten times the mixture, or the climb from
    there ended at a known component or where another would add nothing. ``blank`` is the share of
    the base's draws at which the log density is NaN or infinitely large. ``unseen`` is the share
    that may still lead to missed modes, the blank ones included, which may hold any mass.
    The last of ``status.reasons`` says so, also if the state is "converged".

    ``status.left`` is the largest, in nats, of the gap with two standard errors, the gain of
    another component, and ``-log(1 - unseen)``, the loss if missed modes
    hold the same share of the mass as of the base's draws. It is infinite if the search for a
    component failed.
    """

    posterior: Mixture
    status: Status
    trace: tuple[Row, ...]
    refused: tuple[Refused, ...] = ()
    gap: float = math.nan
    effective: float = math.nan
    starts: int = 0
    blank: float = 0.0

    @property
    def unseen(self) -> float:
        """Upper bound, at 95 %, on the share of the base's draws that lead to missed modes, plus
        the share that is blank.

        Source: hanley1983.
        """
        return RULE.unseen(self.starts, self.blank)

    @property
    def elbo(self) -> float:
        """The evidence lower bound of the mixture, in nats."""
        return self.trace[-1].elbo

    @property
    def standard_error(self) -> float:
        """The standard error of the ELBO."""
        return self.trace[-1].standard_error

    def __repr__(self) -> str:
        return (
            f"Pursuit({self.posterior.size} components, ELBO {self.elbo:.4g} ± "
            f"{self.standard_error:.2g}, {self.status.state}{self.status.scope})"
        )

    def __str__(self) -> str:
        lines = [str(row) for row in self.trace]
        lines += [f"component {number} refused: {reason}" for number, reason in self.refused]
        gap = f"{max(self.gap, 0.0):.2g} nats from the target by its own draws"
        return "\n".join([*lines, gap, str(self.status)])
