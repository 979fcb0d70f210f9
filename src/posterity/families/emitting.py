"""Roles of families: posteriors over parameters of emissions, and over mixing weights.

States of a chain emit records and topics emit words, by parameters with such a posterior. Formulas
are for members of batch shape ``(K,)``, with axes of records before it.

Concentrations of a Dirichlet and sticks of a Dirichlet process (blei2006) are both linear in the
expected number of observations of each component. Components of sites are matched by these counts,
as the order of sticks is arbitrary across sites.
"""

import abc
from typing import Any, ClassVar, Self

import numpy as np

from posterity.arrays.typing import ArrayLike, Float, Int, Real, Shape
from posterity.errors import StructureError
from posterity.families.base import ExponentialFamily
from posterity.families.marginals import Marginal, known_moments


class Emitting(ExponentialFamily):
    """A posterior over the parameters of vectors (..., d) or symbols (...)."""

    @abc.abstractmethod
    def expected_log_likelihood(self, x: Real) -> Float[Real, "*shape k"]:
        """Return ``E_q[log p(x | z)]`` in nats, for each record and each member."""

    @abc.abstractmethod
    def observed(self, x: Real, weights: Float[Real, "n k"]) -> Self:
        """Return the factor (K,) of records with a weight for each member."""


class EmittingSymbols(Emitting):
    """A posterior over the probabilities of symbols, which can have names."""

    emits_symbols = True

    @property
    @abc.abstractmethod
    def concentration(self) -> Float[Real, "*batch symbols"]:
        """The concentration of each symbol: the prior's plus the number of observations."""

    @abc.abstractmethod
    def widened(self, labels: Int[Any, " symbols"], size: int, unseen: float) -> Self:
        """Return the law of ``size`` symbols: the own ones at ``labels``, the others ``unseen``."""


class MixingWeights(ExponentialFamily):
    """A law of the mixing weights of ``K`` components."""

    base_measure = 0.0
    shows_prior: ClassVar[bool]
    """True if counts are known without the prior."""

    @property
    @abc.abstractmethod
    def weights_shape(self) -> Shape:
        """The shape ``(..., K)`` of the weights."""

    @abc.abstractmethod
    def mean_weights(self) -> Float[Real, "*batch k"]:
        """Return the expected weights, which sum to one."""

    def weight_marginals(self) -> Marginal:
        """Return marginal laws (*batch, K) of the weights of proper members; here, means only."""
        mean = np.asarray(self.mean_weights(), float)
        return known_moments(mean, np.full(mean.shape, np.nan))

    @abc.abstractmethod
    def counts(self, prior: Self | None = None) -> Float[np.ndarray, "*batch k"]:
        """Return the expected observations of each component, without the prior's.

        If ``prior`` is None, a Dirichlet returns all of ``α``; for sticks the prior is not needed.
        """

    @classmethod
    @abc.abstractmethod
    def of_counts(cls, counts: Float[np.ndarray, "*batch k"]) -> Self:
        """Return the factor of these counts; it is linear in them."""

    @classmethod
    @abc.abstractmethod
    def exchangeable(cls, total: float, categories: int) -> Self:
        """Return the exchangeable prior of this total concentration."""

    @abc.abstractmethod
    def total(self, prior: Self | None) -> float:
        """Return the prior's total concentration, or zero if it is unknown.

        Raises:
            StructureError: if the prior's components are not exchangeable.
        """

    @abc.abstractmethod
    def relabelled(self, labels: Int[np.ndarray, " k"], size: int) -> Self:
        """Return the factor with other labels; components with label -1 are left out."""

    @abc.abstractmethod
    def among(self, rows: ArrayLike) -> Self | None:
        """Return the law of the relative weights of some components, or None without a formula."""


def check_exchangeable(fair: bool, prior: Any) -> None:
    """Raise a StructureError unless a prior over weights, or moves of states, is ``fair``."""
    if not fair:
        raise StructureError(
            found=f"a prior that tells components apart: {prior}",
            expected="equal concentrations, or sticks with a = 1 and one b; of states one "
            "concentration of all moves, one of staying, and one of the start",
        )
