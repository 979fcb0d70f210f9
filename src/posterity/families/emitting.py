"""Further roles of families: posteriors over what is observed, and over mixing weights.

The states of a chain emit records, each by parameters that such a posterior is over; so does one
topic its words. Formulas are over members of batch shape ``(K,)``, the states, and any axes of
records before these.

A Dirichlet's concentrations and the sticks of a Dirichlet process (blei2006) are both linear in
the expected number of observations of each component, and only these counts can be matched: which
stick comes first means nothing across sites.
"""

import abc
from typing import Any, ClassVar, Self

import numpy as np

from posterity.arrays.typing import ArrayLike, Float, Int, Real
from posterity.errors import StructureError
from posterity.families.base import ExponentialFamily
from posterity.families.marginals import Marginal, known_moments


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


class MixingWeights(ExponentialFamily):
    """A law of the weights of ``K`` components that mean nothing but what they weigh."""

    base_measure: ClassVar[float | None] = 0.0
    shows_prior: ClassVar[bool]
    """True if counts are known without the prior."""

    @property
    @abc.abstractmethod
    def weights_shape(self) -> tuple[int, ...]:
        """``(..., K)``: the shape of the weights."""

    @abc.abstractmethod
    def mean_weights(self) -> Float[Real, "*batch k"]:
        """Expected weights, which sum to one."""

    def weight_marginals(self) -> Marginal:
        """Marginal laws (*batch, K) of the weights of proper members; here their means alone."""
        mean = np.asarray(self.mean_weights(), float)
        return known_moments(mean, np.full(mean.shape, np.nan))

    @abc.abstractmethod
    def counts(self, prior: Self | None = None) -> Float[np.ndarray, "*batch k"]:
        """Expected observations of each component: what was added to the prior.

        Without a prior, a Dirichlet's are all of ``α``; the first parameter of a process's sticks
        is one in any prior.
        """

    @classmethod
    @abc.abstractmethod
    def of_counts(cls, counts: Float[np.ndarray, "*batch k"]) -> Self:
        """The factor that these counts add to a prior; linear in the counts."""

    @classmethod
    @abc.abstractmethod
    def exchangeable(cls, total: float, categories: int) -> Self:
        """The prior of this total concentration that tells no component from another."""

    @abc.abstractmethod
    def total(self, prior: Self | None) -> float:
        """The prior's concentration over all components together, zero if it is not known.

        Raises:
            StructureError: the prior tells components apart, which plates cannot.
        """

    @abc.abstractmethod
    def relabelled(self, labels: Int[np.ndarray, " k"], size: int) -> Self:
        """The same counts under other labels, -1 for those left out; of factors, that is counts."""

    @abc.abstractmethod
    def among(self, rows: ArrayLike) -> Self | None:
        """The law of the shares of some components among each other; None where it has no name."""


def check_exchangeable(fair: bool, prior: Any) -> None:
    """Raise a StructureError unless a prior over mixing weights is ``fair``."""
    if not fair:
        raise StructureError(
            found=f"a prior over mixing weights that tells components apart: {prior}",
            expected="equal concentrations, or sticks with a = 1 and one b",
            fix="Use an exchangeable prior: labels mean nothing in a Plate.",
        )
