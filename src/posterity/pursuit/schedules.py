"""Schedules of λ, the weight of the ratio ``log L/q_t`` relative to the entropy.

The best component is ``h ∝ (L/q_t)^λ``: λ > 1 sharpens the ratio, λ < 1 flattens it.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize
import scipy.special
from jaxtyping import Float

from posterity.arguments import POSITIVE, SHARE, Constraint
from posterity.errors import ParameterError

LEAST, MOST = 0.3, 3.0
"""Below, components are too broad to get weight; above, they are too narrow."""
RETURNED = dataclasses.replace(
    POSITIVE, error=ParameterError, fix="Let the schedule return one for every later component."
)
SEVERAL = Constraint(
    "one positive number or more",
    lambda values: len(values) > 0 and all(map(POSITIVE.allows, values)),
)


class LambdaSchedule(abc.ABC):
    """A rule for λ, the weight of ``log L/q_t`` relative to the entropy in the objective of a
    component: λ above 1 sharpens the ratio, λ below 1 flattens it.
    """

    @abc.abstractmethod
    def values(self, t: int, log_ratios: Float[np.ndarray, " n"]) -> tuple[float, ...]:
        """Return the λ to try for component ``t``, from 2 on (the first uses 1); the best one is
        kept. ``log_ratios`` are ``log L/q_t`` at points over the region of the search.
        """


@dataclasses.dataclass(frozen=True)
class Best(LambdaSchedule):
    """Try several λ and keep the one whose component adds most to the ELBO.

    >>> Best().values(2, np.zeros(3))
    (0.5, 1.0, 1.7)
    """

    choices: tuple[float | int, ...] = (0.5, 1.0, 1.7)

    def __post_init__(self) -> None:
        SEVERAL.check(choices=self.choices)

    def values(self, t: int, log_ratios: Float[np.ndarray, " n"]) -> tuple[float, ...]:
        """Return all choices."""
        del t, log_ratios
        return tuple(map(float, self.choices))


@dataclasses.dataclass(frozen=True)
class Fixed(LambdaSchedule):
    """A constant λ; with 1, variational inference with a penalty on similarity to the mixture.

    >>> Fixed(0.5).values(2, np.zeros(3))
    (0.5,)
    """

    value: float | int = 1.0

    def __post_init__(self) -> None:
        POSITIVE.check(value=self.value)

    def values(self, t: int, log_ratios: Float[np.ndarray, " n"]) -> tuple[float, ...]:
        """Return the constant value."""
        del t, log_ratios
        return (float(self.value),)


@dataclasses.dataclass(frozen=True)
class Schedule(LambdaSchedule):
    """A schedule given by a function of the number of the component.

    >>> Schedule(lambda t: 1 / t).values(2, np.zeros(3))
    (0.5,)
    """

    function: Callable[[int], float | int]

    def values(self, t: int, log_ratios: Float[np.ndarray, " n"]) -> tuple[float, ...]:
        """Return the value of the function; a ParameterError unless it is a positive number."""
        del log_ratios
        value = self.function(t)
        RETURNED.check(value=value)
        return (float(value),)


@dataclasses.dataclass(frozen=True)
class Flatness(LambdaSchedule):
    """The λ for which the entropy of ``(L/q_t)^λ`` over the points of the search equals that of a
    uniform law over a ``share`` of them. λ is above 1 for a flatter ratio and below 1 for a sharper
    one, between 0.3 and 3.

    Source: egorov2019.

    >>> [lam] = Flatness(share=0.5).values(2, np.array([0.0, 1.0, 2.0, 3.0]))
    >>> round(lam, 2)
    1.45
    """

    share: float | int = 0.1

    def __post_init__(self) -> None:
        SHARE.check(share=self.share)

    def values(self, t: int, log_ratios: Float[np.ndarray, " n"]) -> tuple[float, ...]:
        """Return the λ of the required entropy, by root finding."""
        del t
        finite = log_ratios[np.isfinite(log_ratios)]
        if len(finite) < 2:
            return (1.0,)
        wanted = np.log(max(self.share * len(finite), 1.0))

        def excess(log_value: float) -> float:
            weights = scipy.special.softmax(np.exp(log_value) * finite)
            return float(scipy.special.entr(weights).sum()) - wanted

        low = np.log(LEAST)
        high = np.log(MOST)
        if excess(low) <= 0:
            return (LEAST,)
        if excess(high) >= 0:
            return (MOST,)
        root: Any = scipy.optimize.brentq(excess, low, high)
        return (float(np.exp(root)),)
