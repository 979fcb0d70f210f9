"""Descent along natural gradients, which takes mean parameters a step and maps them back."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.typing import Bool, Float
from posterity.errors import ConvergenceWarning
from posterity.families import ExponentialFamily

Array = np.ndarray
STEPS = 300
HALVINGS = 40
SETTLED = 1e-14
"""Squared length of a step, in nats, that ends the descent, for each nat of the objective."""
LOOSE = 1e-9
"""The same, beyond which it is said that the descent did not settle."""
ROUNDING = 1e-13
"""Part of the objective that is its rounding: a rise of so little is none."""
DIGITS = 1e-6
"""How well, relatively, a member has to have the mean parameters that it was made of."""
OVERSHOT = 0.9
"""Part of the slope at the start of a step that it may be uphill at its end."""
SLOWER, FASTER = 1 / 64, 4.0
"""Times the first rate, between which any begins."""


class State(NamedTuple):
    """Where the members are: the objective there (G,), and the direction to go (G, D)."""

    members: ExponentialFamily
    value: Float[Array, " g"]
    way: Float[Array, "g dim"]


@dataclasses.dataclass(frozen=True)
class Descent:
    """Minimises an objective of each member of a batch (G,), which falls at every step.

    From a member with mean parameters ``μ`` the next one is that with ``μ + ρ v``, ``v`` being its
    ``direction``, minus the gradient in ``η``: a natural-gradient step. ``ρ`` is ``rate`` at first,
    and then what would have been best for the last step (barzilai1988); it is halved until the
    member exists, the objective falls and the step does not overshoot.
    """

    objective: Callable[[ExponentialFamily], Float[Array, " g"]]
    direction: Callable[[ExponentialFamily], Float[Array, "g dim"]]
    rate: float

    def __call__(self, start: ExponentialFamily) -> ExponentialFamily:
        """The members where the descent ends.

        Warns:
            ConvergenceWarning: after 300 steps without settling.
        """
        state = State(start, self.objective(start), self.direction(start))
        size = len(state.value)
        rates, length, moving = np.full(size, self.rate), np.zeros(size), np.ones(size, bool)
        for _ in range(STEPS):
            following, stepped = self._step(state, rates, moving)
            step, turn, change = (after - before for before, after in _pairs(state, following))
            # Half the squared length of a step is its KL divergence, either way round.
            squared = np.abs((step * turn).sum(-1))
            length = np.where(stepped, squared, length)
            moving = stepped & (length > SETTLED * (1 + np.abs(following.value)))
            state = following
            if not moving.any():
                break
            curved = -(step * change).sum(-1)
            best = np.divide(squared, curved, out=np.full(size, np.inf), where=curved > 0)
            rates = np.clip(best, self.rate * SLOWER, self.rate * FASTER)
        if (length > LOOSE * (1 + np.abs(state.value))).any():
            warnings.warn(
                f"a barycentre has not settled after {STEPS} steps; its last step was "
                f"{np.sqrt(length.max()):.1g} standard deviations long",
                ConvergenceWarning,
                stacklevel=3,
            )
        return state.members

    def _step(
        self, state: State, rates: Float[Array, " g"], moving: Bool[Array, " g"]
    ) -> tuple[State, Bool[Array, " g"]]:
        """The next state, and which members moved."""
        current, value, way = state
        kept, mean, slack = current.natural_parameters, current.mean_parameters, _slack(value)
        natural, found, onward = kept.copy(), value.copy(), way.copy()
        open_, moved = moving.copy(), np.zeros_like(moving)
        for _ in range(HALVINGS):
            tried, proper = _members_at(current, mean + rates[:, None] * way)
            good = open_ & proper
            tried = np.where(proper[:, None], tried, kept)
            there = current.with_natural_parameters(tried)
            value_there, way_there = self.objective(there), self.direction(there)
            slope, end = (((tried - kept) * w).sum(-1) for w in (way, way_there))
            good &= (value_there <= value + slack) & (end >= -OVERSHOT * slope)
            natural[good], found[good], onward[good] = (
                tried[good],
                value_there[good],
                way_there[good],
            )
            moved |= good
            # A step so short would be the last: where not even it is downhill, this is the end.
            squared = np.abs(((tried - kept) * (rates[:, None] * way)).sum(-1))
            open_ &= ~good & ~(proper & (squared <= SETTLED * (1 + np.abs(value))))
            if not open_.any():
                break
            rates = np.where(open_, rates / 2, rates)
        return State(current.with_natural_parameters(natural), found, onward), moved


def _members_at(
    like: ExponentialFamily, mean: Float[Array, "g dim"]
) -> tuple[Float[Array, "g dim"], Bool[Array, " g"]]:
    """Natural parameters of given mean parameters, and which are those of any member at all.

    A member that is about to degenerate loses its digits: one that does not have the mean
    parameters which it was made of is none.
    """
    try:
        with np.errstate(all="ignore"):
            found = like.with_mean_parameters(mean)
            kept = np.abs(found.mean_parameters - mean) <= DIGITS * (
                np.abs(mean) + np.abs(mean).max(-1, keepdims=True) / 1e3
            )
            return found.natural_parameters, np.asarray(found.is_proper() & kept.all(-1))
    except np.linalg.LinAlgError:  # one that is none, as a singular matrix, fails the whole batch
        return mean, np.zeros(len(mean), bool)


def _pairs(before: State, after: State) -> list[tuple[Any, Any]]:
    """Natural parameters, mean parameters and directions, before and after."""
    return [
        (before.members.natural_parameters, after.members.natural_parameters),
        (before.members.mean_parameters, after.members.mean_parameters),
        (before.way, after.way),
    ]


def _slack(value: Float[Array, " g"]) -> Float[Array, " g"]:
    return ROUNDING * (1 + np.abs(value))
