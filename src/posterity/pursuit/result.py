"""The result of a pursuit: the mixture, how it grew, and whether there was more to gain."""

import dataclasses
import math
from typing import NamedTuple

from posterity.families import Mixture
from posterity.status import Status
from posterity.text import html

CHANCE = 0.05  # That no start met a mode that counts as searched for
FEW = 0.1  # The share of effective draws below which a mixture is said to be of another shape


class Row(NamedTuple):
    """The mixture after one component was added, or after a polish, whose α and λ are NaN.

    ``gain`` is by how much the ELBO grew, in nats (of the first component the ELBO itself), whose
    error is smaller than the ELBO's, as both share their draws. ``alpha`` is the weight that the
    component was given, ``entropy`` the mixture's in nats, ``effective`` the exponential of the
    entropy of the weights: how many components count. ``evaluations`` are gradients of the log
    density in all searches, since the beginning.
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
    """A component that was not added, by the number that it would have had, and why."""

    number: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Pursuit:
    """The mixture that was found, and how.

    ``posterior`` is a law like any other. ``trace`` has a row for each component, and one for each
    polish that helped; ``refused`` are components that were not added.

    ``gap`` is what draws of the mixture, weighted to the target, say of ``KL(q ‖ p)``, in nats;
    ``effective`` is the share of draws that count then. Neither sees a mode that the mixture
    misses: ``starts`` is the number of fresh draws of the base that were compared with the mixture
    at the end, and followed where unexplained: the target is no more than ten times the mixture
    there, or was climbed to a known component or where one would add nothing. ``blank`` is the
    share of the base's draws at which the log density is NaN or infinitely large. ``unseen`` is the
    share that may lead to modes which none of these met, with the blank ones, which may hold any
    mass. That is the last of ``status.reasons``, also where the state is "converged".

    ``status.left`` is the largest of the gap, with two standard errors, of what another component
    would have added, of what tails add, and of what starts may have missed if modes hold as much of
    the mass as of the base's draws, ``-log(1 - unseen)``, in nats; infinite where the search for a
    component came to nothing.
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
        """The share of the base from which modes may be reached that no start reached, at 95 %,
        and what is blank.

        Source: hanley1983.
        """
        return 1 - (1 - self.blank) * CHANCE ** (1 / self.starts) if self.starts else 1.0

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
            f"{self.standard_error:.2g}, {self.status.state})"
        )

    def _repr_html_(self) -> str:
        return html(self, "line") + html(self.posterior, "law")

    def __str__(self) -> str:
        lines = [str(row) for row in self.trace]
        lines += [f"component {number} refused: {reason}" for number, reason in self.refused]
        gap = f"{max(self.gap, 0.0):.2g} nats from the target by its own draws"
        return "\n".join([*lines, gap, str(self.status)])
