"""The Dirichlet family."""

from typing import Any, ClassVar, Self

import numpy as np

from posterity.arrays.functions import Namespace
from posterity.arrays.namespace import compiled, namespace
from posterity.arrays.typing import ArrayLike, Flat, Float, Int, KeyArray, Real, Shape
from posterity.families.coordinates import ABOVE_MINUS_ONE, POSITIVE, Coordinates, vector
from posterity.families.emitting import EmittingSymbols, MixingWeights, check_exchangeable
from posterity.families.formulas import BETA
from posterity.families.marginals import Closed, Marginal
from posterity.families.supports import Simplex
from posterity.runtime.lazy import jax
from posterity.runtime.programs import sampler


class Dirichlet(MixingWeights, EmittingSymbols):
    """The Dirichlet law ``Dirichlet(z | α)`` over ``K`` categories; statistics ``log z``.

    Natural parameter: ``concentration_minus_one`` ``α - 1``.

    >>> Dirichlet.from_standard(concentration=[1.0, 3.0]).mean
    array([0.25, 0.75])
    """

    concentration_minus_one: Float[Real, "*batch k"]

    coordinates: ClassVar[Coordinates] = {"concentration_minus_one": vector(ABOVE_MINUS_ONE)}
    standard: ClassVar[Coordinates] = {"concentration": vector(POSITIVE)}
    shows_prior = False

    @classmethod
    def from_standard(cls, concentration: ArrayLike) -> Self:
        """Make a law from the concentrations (..., K)."""
        known = cls._checked(concentration=concentration)
        return cls._of(concentration_minus_one=known["concentration"] - 1)._held()

    @property
    def concentration(self) -> Float[Real, "*batch k"]:
        """The concentrations ``α``."""
        return self.concentration_minus_one + 1

    @property
    def mean(self) -> Float[Real, "*batch k"]:
        """The mean ``α / Σ α``."""
        return self.concentration / self.concentration.sum(-1, keepdims=True)

    def observations(self) -> Float[Real, "*batch"]:
        """Return the total concentration ``Σ α_k``."""
        return self.concentration.sum(-1)

    @property
    def support(self) -> Simplex:
        return Simplex((self.own_size,))

    quantities = ("probability",)

    def marginals(self) -> list[Marginal]:
        """Return the Beta law of each category against all others."""
        alpha = np.asarray(self.concentration, float)
        return [Closed(BETA, (alpha, alpha.sum(-1, keepdims=True) - alpha))]

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """Return ``Σ log Γ(α_k) - log Γ(Σ α_k)``."""
        gammaln = self.xp.special.gammaln
        alpha = self.concentration
        return gammaln(alpha).sum(-1) - gammaln(alpha.sum(-1))

    @property
    def mean_parameters(self) -> Flat:
        """``E[log z_k] = ψ(α_k) - ψ(Σ α)``."""
        digamma = self.xp.digamma
        alpha = self.concentration
        return digamma(alpha) - digamma(alpha.sum(-1, keepdims=True))

    def inverse_fisher_product(self, vector: Flat) -> Flat:
        """Solve by Sherman and Morrison's formula: the information is diagonal minus a constant."""
        alpha = self.concentration
        return solve_diagonal_minus_constant(
            self.xp.trigamma(alpha), self.xp.trigamma(alpha.sum(-1)), vector
        )

    def with_mean_parameters(self, vector: Flat) -> Self:
        """Return the member with these mean parameters, by Newton's method (minka2000)."""
        self._check_length(vector)
        return self._of(concentration_minus_one=invert_mean_log(vector) - 1)

    def sufficient_statistics(self, z: Float[Real, "*shape k"]) -> Float[Real, "*shape dim"]:
        return namespace(z).np.log(z)

    def sample(self, key: KeyArray, shape: Shape = ()) -> Float[Real, "*shape k"]:
        """Draw by JAX's log-space gamma sampler."""
        return _draw(key, shape, self.concentration)

    # --- as mixing weights -----------------------------------------------------------------------

    @property
    def weights_shape(self) -> Shape:
        return (*self.batch_shape, self.own_size)

    def mean_weights(self) -> Float[Real, "*batch k"]:
        return self.mean

    def weight_marginals(self) -> Marginal:
        return self.marginals()[0]

    def counts(self, prior: Self | None = None) -> Float[np.ndarray, "*batch k"]:
        """Return ``α`` less the prior's first concentration, which all categories share."""
        each = 0.0 if prior is None else prior.concentration[..., :1]
        return np.asarray(self.concentration - each)

    @classmethod
    def of_counts(cls, counts: Float[np.ndarray, "*batch k"]) -> Self:
        return cls(counts)

    @classmethod
    def exchangeable(cls, total: float, categories: int) -> Self:
        """Return a law with an equal share of the total for each category."""
        return cls(np.full(categories, total / categories - 1))

    def total(self, prior: Self | None) -> float:
        """Return the prior's total concentration, scaled to this number of categories."""
        if prior is None:
            return 0.0
        alpha = np.asarray(prior.concentration)
        fair = bool((np.abs(alpha - alpha[0]) <= 1e-12 * np.abs(alpha[0])).all())
        check_exchangeable(fair, prior.standard_parameters())
        return float(alpha[0]) * self.own_size

    def relabelled(self, labels: Int[np.ndarray, " k"], size: int) -> Self:
        return self.relabel(labels, size, (len(self.batch_shape),))

    def among(self, rows: Any) -> Self:
        """Return the Dirichlet of these categories, with the same concentrations."""
        return type(self)(np.asarray(self.concentration_minus_one)[..., rows])

    def resampled(self, rng: np.random.Generator, factors: Self, pooled: Self, draws: int) -> Self:
        records = np.maximum(np.rint(factors.concentration_minus_one.sum(-1)), 0).astype(np.int64)
        truth = rng.dirichlet(np.asarray(pooled.concentration), size=(draws, 1))
        truth = np.broadcast_to(truth, (draws, len(records), truth.shape[-1]))
        counts = rng.multinomial(np.broadcast_to(records, truth.shape[:-1]), truth)
        return type(self)(self.concentration_minus_one + counts)

    # --- as a law of emissions -------------------------------------------------------------------

    def expected_log_likelihood(self, x: Int[Real, "*shape"]) -> Float[Real, "*shape k"]:
        """Return ``E[log z_x]``."""
        table = self.mean_parameters
        return namespace(table, x).np.moveaxis(table, -1, 0)[x]

    def observed(self, x: Int[Real, " n"], weights: Float[Real, "n k"]) -> Self:
        each = namespace(weights, x).np.eye(self.own_size, dtype=weights.dtype)
        return type(self)(weights.T @ each[x])

    def widened(self, labels: Int[Any, " symbols"], size: int, unseen: float) -> Self:
        values = np.full((*self.batch_shape, size), unseen - 1.0)
        values[..., labels] = self.concentration_minus_one
        return type(self)(values)


def solve_diagonal_minus_constant(
    diagonal: Float[Real, "*batch k"],
    constant: Float[Real, "*batch"],
    vector: Float[Real, "*batch k"],
) -> Float[Real, "*batch k"]:
    """Return ``(diag(d) - c 1 1ᵀ)⁻¹ v``, by Sherman and Morrison."""
    scaled = vector / diagonal
    constant = constant[..., None]
    common = constant * scaled.sum(-1, keepdims=True)
    common = common / (1 - constant * (1 / diagonal).sum(-1, keepdims=True))
    return scaled + common / diagonal


@compiled()
def invert_mean_log(mean_log: Float[Real, "*batch k"]) -> Float[Real, "*batch k"]:
    """Return the concentrations with ``ψ(α_k) - ψ(Σ α) = mean_log_k`` (minka2000).

    With ``s = Σ α`` each ``α_k = ψ⁻¹(mean_log_k + ψ(s))``, so ``s`` is the root of ``Σ_k α_k(s) -
    s``. It is found by bisection in ``log s`` and polished by Newton on all of ``α``.
    """
    xp = namespace(mean_log)

    def newton(alpha: Real) -> Real:
        total = alpha.sum(-1, keepdims=True)
        error = xp.digamma(alpha) - xp.digamma(total) - mean_log
        step = solve_diagonal_minus_constant(xp.trigamma(alpha), xp.trigamma(total[..., 0]), error)
        return xp.np.where(step < alpha, alpha - step, alpha / 2)

    return xp.iterate(newton, _bracketed(xp, mean_log), 6)


def _bracketed(xp: Namespace, mean_log: Real) -> Real:
    def concentration(log_total: Real) -> Real:
        return _inverse_digamma(xp, mean_log + xp.digamma(xp.np.exp(log_total)))

    def below(log_total: Real) -> Real:
        # The sum of α(s) exceeds s below the root.
        return concentration(log_total).sum(-1, keepdims=True) > xp.np.exp(log_total)

    shape = (*mean_log.shape[:-1], 1)
    low, high = (xp.np.full(shape, end, mean_log.dtype) for end in (-30.0, 40.0))
    return concentration(xp.bisected(below, low, high, 30))


def _inverse_digamma(xp: Namespace, y: Real) -> Real:
    """Return ``ψ⁻¹(y)`` by Newton from Minka's start (minka2000, appendix C)."""
    start = xp.np.where(y >= -2.22, xp.np.exp(y) + 0.5, -1 / (y + np.euler_gamma))

    def newton(x: Real) -> Real:
        return x - (xp.digamma(x) - y) / xp.trigamma(x)

    return xp.iterate(newton, start, 6)


@sampler
def _draw(key: KeyArray, shape: Shape, alpha: Real) -> Float[Real, "*shape k"]:
    return jax.random.dirichlet(key, alpha, shape + alpha.shape[:-1], alpha.dtype)
