"""Posteriors over mixing weights, as counts: what a relabelling of components carries along.

A Dirichlet's concentrations and the sticks of a Dirichlet process (blei2006) are both linear in
the expected number of observations of each component, and only these can be matched: which
stick comes first means nothing across sites.
"""

import abc
from typing import Any, ClassVar, Self

import numpy as np

from posterity.arrays.typing import ArrayLike, Float, Int, Real
from posterity.errors import StructureError
from posterity.families.base import ExponentialFamily
from posterity.families.marginals import Marginal, known_moments


class MixingWeights(ExponentialFamily):
    """A law of the weights of ``K`` components that mean nothing but what they weigh."""

    shows_prior: ClassVar[bool]
    """True if counts are known without the prior."""

    def log_base_measure(self) -> float:
        """Zero: ``h = 1``."""
        return 0.0

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
