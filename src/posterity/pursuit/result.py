"""What a pursuit found: the mixture, how it grew, and whether there was more to gain."""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

from posterity.families import Mixture

SHORT = 0.01
"""Nats: what the last component may still have added before the pursuit is said to be cut short."""
ALIKE = 0.9
"""The share of effective draws from which on a mixture is said to be the target."""
FEW = 0.1
"""The share of effective draws below which a mixture is said to miss something."""


class Row(NamedTuple):
    """The mixture after one component was added."""

    components: int
    """That have weight."""
    elbo: float
    """Nats; higher is better."""
    standard_error: float
    gain: float
    """By which the ELBO grew, in nats."""
    gain_error: float
    """The standard error of the gain; smaller than the ELBO's, as both share their draws."""
    alpha: float
    """The weight that the component was given."""
    temper: float
    """λ."""
    entropy: float
    """Of the mixture, in nats."""
    effective: float
    """The exponential of the entropy of the weights: how many components count."""
    evaluations: int
    """Gradients of the log density, since the beginning."""

    def __str__(self) -> str:
        return (
            f"{self.components:3d} components  ELBO {self.elbo:.4f} ± {self.standard_error:.4f}  "
            f"gain {self.gain:+.4f} ± {self.gain_error:.4f}  α {self.alpha:.3f}  "
            f"λ {self.temper:.2f}  effective {self.effective:.2f}"
        )


class Refused(NamedTuple):
    """A component that was not added, and why."""

    number: int
    """Which one it would have been."""
    reason: str


@dataclasses.dataclass(frozen=True)
class Status:
    """Whether there is more to gain.

    ``gain`` is what the last component added to the ELBO, with its standard error; NaN where there is
    one alone. ``effective`` is the share of the mixture's draws that count when they are weighted to the target: 1 where they
    are the same, and small where the mixture is narrower than the target somewhere. ``gap`` is what
    the weighted draws say of ``KL(q ‖ p)``, in nats: too little where they miss a part of it.
    """

    state: Literal["converged", "cut short", "not converged"]
    gain: float
    gain_error: float
    gap: float
    effective: float
    reasons: tuple[str, ...] = ()

    @property
    def converged(self) -> bool:
        """Whether another component would add no more than can be told from noise."""
        return self.state == "converged"

    def __str__(self) -> str:
        why = "".join(f"; {reason}" for reason in self.reasons)
        last = f"the last component added {self.gain:.2g} ± {self.gain_error:.2g} nats"
        return (
            f"{self.state}: {'one component' if math.isnan(self.gain) else last}, about "
            f"{max(self.gap, 0.0):.2g} nats are left{why}"
        )


@dataclasses.dataclass(frozen=True)
class Pursuit:
    """The mixture that was found, and how.

    ``posterior`` is a law like any other: it has samples and densities, can be saved, distilled,
    and compared by ``diff``. ``trace`` has a row for each component, and one more for the joint
    polish where there was one; ``refused`` are components that were not added.
    """

    posterior: Mixture
    status: Status
    trace: tuple[Row, ...]
    refused: tuple[Refused, ...] = ()
    places: Any = dataclasses.field(default=None, repr=False, compare=False)
    """What a later call needs to go on from here; not kept in files."""

    @property
    def elbo(self) -> float:
        """The evidence lower bound of the mixture, in nats."""
        return self.trace[-1].elbo

    @property
    def standard_error(self) -> float:
        """Of the ELBO."""
        return self.trace[-1].standard_error

    def __repr__(self) -> str:
        return (
            f"Pursuit({self.posterior.size} components, ELBO {self.elbo:.4g} ± "
            f"{self.standard_error:.2g}, {self.status.state})"
        )

    def __str__(self) -> str:
        lines = [str(row) for row in self.trace]
        lines += [f"component {number} refused: {reason}" for number, reason in self.refused]
        return "\n".join([*lines, str(self.status)])
