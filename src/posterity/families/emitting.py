"""Families of what is observed: posteriors over the parameters of a law of records.

The states of a chain emit records, each by parameters that such a posterior is over; so does one
topic its words. Formulas are over members of batch shape ``(K,)``, the states, and any axes of
records before these.
"""

import abc
from typing import Any, ClassVar, Self

from posterity.arrays.typing import Float, Int, Real
from posterity.families.base import ExponentialFamily


class Emitting(ExponentialFamily):
    """A posterior over the parameters of vectors (..., d) or symbols (...)."""

    @abc.abstractmethod
    def expected_log_likelihood(self, x: Real) -> Float[Real, "*shape k"]:
        """``E_q[log p(x | z)]`` in nats, for each record and each member."""

    @abc.abstractmethod
    def plugged_log_likelihood(self, x: Real) -> Float[Real, "*shape k"]:
        """``log p(x | z)`` in nats at expected means, precisions or probabilities."""

    @abc.abstractmethod
    def observed(self, x: Real, weights: Float[Real, "n k"]) -> Self:
        """The factor (K,) that records, each weighted for each member, add to the members."""


class EmittingSymbols(Emitting):
    """A posterior over how probable each of some symbols is; words can name them."""

    emits_symbols: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def concentration(self) -> Float[Real, "*batch symbols"]:
        """The prior's count of each symbol, and how often it was seen."""

    @abc.abstractmethod
    def widened(self, labels: Int[Any, " symbols"], size: int, unseen: float) -> Self:
        """Over ``size`` symbols: own ones at ``labels``, all others of concentration ``unseen``."""
