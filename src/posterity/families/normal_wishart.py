"""Normal-Wishart and its diagonal twin: posteriors of a Gaussian's mean and precision."""

from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Key

from posterity.arrays.namespace import Real, as_leaf, namespace, outer, quadratic, symmetric
from posterity.families.base import SCALAR, SYMMETRIC, VECTOR, ExponentialFamily
from posterity.families.gaussian import LOG_2PI
from posterity.families.wishart import Wishart


class NormalWishart(ExponentialFamily):
    """``N(μ | m, (κ Λ)⁻¹) W(Λ | S, ν)``; an event is the pair ``(μ, Λ)``.

    Natural parameters: ``mean_precision`` ``κ``, ``degrees`` ``ν - d``, ``precision_mean``
    ``κ m``, ``scatter`` ``S⁻¹ + κ m mᵀ``; statistics ``(-μᵀΛμ/2, log|Λ|/2, Λμ, -Λ/2)``.
    ``scatter`` holds the squared mean: in float32 keep means within some hundred standard
    deviations of the origin (float64: millions), or translate first.

    Source: bishop2006, section 10.2.

    >>> q = NormalWishart.from_standard(
    ...     mean=[1.0, 2.0], mean_precision=4.0, scale=np.eye(2), degrees_of_freedom=5.0)
    >>> q.mean
    array([1., 2.])
    """

    mean_precision: Float[Real, "*batch"] = eqx.field(converter=as_leaf)
    degrees: Float[Real, "*batch"] = eqx.field(converter=as_leaf)
    precision_mean: Float[Real, "*batch d"] = eqx.field(converter=as_leaf)
    scatter: Float[Real, "*batch d d"] = eqx.field(converter=as_leaf)

    coordinates: ClassVar[dict[str, int]] = {
        "mean_precision": SCALAR,
        "degrees": SCALAR,
        "precision_mean": VECTOR,
        "scatter": SYMMETRIC,
    }

    @classmethod
    def from_standard(
        cls, mean: Any, mean_precision: Any, scale: Any, degrees_of_freedom: Any
    ) -> Self:
        """From ``m`` (..., d), ``κ`` (...), ``S`` (..., d, d) and ``ν`` (...)."""
        scale = as_leaf(scale)
        inverse = symmetric(namespace(scale).np.linalg.inv(scale))
        return cls.from_inverse_scale(mean, mean_precision, inverse, degrees_of_freedom)

    @classmethod
    def from_inverse_scale(
        cls, mean: Any, mean_precision: Any, inverse_scale: Any, degrees_of_freedom: Any
    ) -> Self:
        """As :meth:`from_standard`, from ``S⁻¹``, so that nothing is inverted."""
        mean, kappa, nu = as_leaf(mean), as_leaf(mean_precision), as_leaf(degrees_of_freedom)
        scatter = as_leaf(inverse_scale) + kappa[..., None, None] * outer(mean)
        return cls(kappa, nu - mean.shape[-1], kappa[..., None] * mean, scatter)

    def standard_parameters(self) -> dict[str, Real]:
        """``mean``, ``mean_precision``, ``scale`` and ``degrees_of_freedom``."""
        return {
            "mean": self.mean,
            "mean_precision": self.mean_precision,
            "scale": self.wishart.scale,
            "degrees_of_freedom": self.degrees_of_freedom,
        }

    @property
    def mean(self) -> Float[Real, "*batch d"]:
        """``m = E[μ]``."""
        return self.precision_mean / self.mean_precision[..., None]

    @property
    def degrees_of_freedom(self) -> Float[Real, "*batch"]:
        """``ν``."""
        return self.degrees + self.size

    @property
    def inverse_scale(self) -> Float[Real, "*batch d d"]:
        """``S⁻¹``: the scatter about the mean."""
        return self.scatter - self.mean_precision[..., None, None] * outer(self.mean)

    @property
    def wishart(self) -> Wishart:
        """The marginal of the precision ``Λ``."""
        return Wishart(self.degrees - 1, self.inverse_scale)

    @property
    def size(self) -> int:
        """``d``."""
        return self.precision_mean.shape[-1]

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """The Wishart's, and ``-d/2 log κ`` for the mean given the precision."""
        log = self.xp.np.log
        return self.wishart.log_normalizer() - self.size / 2 * log(self.mean_precision)

    @property
    def mean_parameters(self) -> Float[Real, "*batch dim"]:
        """``E[-μᵀΛμ/2], E[log|Λ|]/2, E[Λμ], -E[Λ]/2``."""
        wishart, mean = self.wishart, self.mean
        precision = wishart.mean
        return self.flatten(
            mean_precision=-(self.size / self.mean_precision + quadratic(precision, mean)) / 2,
            degrees=wishart.expected_log_determinant() / 2,
            precision_mean=(precision @ mean[..., None])[..., 0],
            scatter=-precision / 2,
        )

    def with_mean_parameters(self, vector: Float[Real, "*batch dim"]) -> Self:
        """Precision first, as for the Wishart; then ``m`` and ``κ``."""
        parts = self.unflatten(vector)
        xp = namespace(vector)
        precision = -2 * parts["scatter"]
        mean = xp.solve_vectors(precision, parts["precision_mean"])
        kappa = self.size / (-2 * parts["mean_precision"] - quadratic(precision, mean))
        marginal = self.wishart
        wishart = marginal.with_mean_parameters(
            marginal.flatten(degrees=parts["degrees"], inverse_scale=parts["scatter"])
        )
        return self.from_inverse_scale(
            mean, kappa, wishart.inverse_scale, wishart.degrees_of_freedom
        )

    def sufficient_statistics(
        self, z: tuple[Float[Real, "*shape d"], Float[Real, "*shape d d"]]
    ) -> Float[Real, "*shape dim"]:
        """``(-μᵀΛμ/2, log|Λ|/2, Λμ, -Λ/2)``."""
        mean, precision = z
        xp = namespace(mean, precision)
        return self.flatten(
            mean_precision=-quadratic(precision, mean) / 2,
            degrees=xp.logdet(xp.cholesky(precision)) / 2,
            precision_mean=(precision @ mean[..., None])[..., 0],
            scatter=-precision / 2,
        )

    def log_base_measure(self) -> float:
        """``-d/2 log 2π``."""
        return -self.size / 2 * LOG_2PI

    def is_proper(self) -> Bool[Real, "*batch"]:
        """Whether ``κ > 0``, ``ν > d - 1`` and ``S`` is positive definite."""
        np_, kappa = self.xp.np, self.mean_precision
        finite = np_.isfinite(kappa) & np_.isfinite(self.precision_mean).all(-1)
        located = finite & (kappa > 0)
        safe = type(self)(
            np_.where(located, kappa, 1.0),
            self.degrees,
            np_.where(located[..., None], self.precision_mean, 0.0),
            self.scatter,
        )
        return located & safe.wishart.is_proper()

    def negative_entropy(self) -> Float[Real, "*batch"]:
        """That of the precision, plus that of the mean given the precision: both centred."""
        wishart, log = self.wishart, self.xp.np.log
        conditional = self.size * (log(self.mean_precision) - 1)
        return wishart.negative_entropy() + (conditional + wishart.expected_log_determinant()) / 2

    def kl(self, other: Self) -> Float[Real, "*batch"]:
        """``KL(self || other)``: the precision's, plus the mean's given the precision."""
        ratio = other.mean_precision / self.mean_precision
        log = namespace(ratio).np.log
        distance = quadratic(self.wishart.mean, self.mean - other.mean)
        means = self.size * (ratio - 1 - log(ratio)) + other.mean_precision * distance
        return self.wishart.kl(other.wishart) + means / 2

    def log_prob(
        self, z: tuple[Float[Real, "*shape d"], Float[Real, "*shape d d"]]
    ) -> Float[Real, "..."]:
        """Log density of ``(μ, Λ)``, centred."""
        mean, precision = z
        xp = namespace(mean, precision, self.mean_precision)
        logdet = xp.logdet(xp.cholesky(precision)) + self.size * xp.np.log(self.mean_precision)
        distance = self.mean_precision * quadratic(precision, mean - self.mean)
        return self.wishart.log_prob(precision) + (logdet - distance) / 2 - self.size / 2 * LOG_2PI

    def predictive_log_prob(self, x: Float[Real, "*shape d"]) -> Float[Real, "..."]:
        """Log density of a new observation: Student's t (bishop2006, equation 10.81)."""
        xp, d = self.xp, self.size
        t = self.degrees_of_freedom + 1 - d
        shape = self.inverse_scale * ((1 + 1 / self.mean_precision) / t)[..., None, None]
        gap = x - self.mean
        precision = xp.np.linalg.inv(shape)
        squared = quadratic(precision, gap)
        gammaln = xp.special.gammaln
        return (
            gammaln((t + d) / 2)
            - gammaln(t / 2)
            - (d * xp.np.log(t * np.pi) + xp.logdet(xp.cholesky(shape))) / 2
            - (t + d) / 2 * xp.np.log1p(squared / t)
        )

    def translate(self, offset: Float[Real, "*batch d"]) -> Self:
        """The law of ``(μ + offset, Λ)``."""
        return self.from_inverse_scale(
            self.mean + offset, self.mean_precision, self.inverse_scale, self.degrees_of_freedom
        )

    def location(self) -> Float[Real, "*batch d"]:
        """Where ``translate`` would move it from: ``m``."""
        return self.mean

    def sample(
        self, key: Key[jax.Array, ""], shape: tuple[int, ...] = ()
    ) -> tuple[Float[jax.Array, "*shape d"], Float[jax.Array, "*shape d d"]]:
        """``Λ`` from its marginal, then ``μ`` given ``Λ``."""
        first, second = jax.random.split(key)
        root = self.wishart.sample_root(first, shape)
        transposed = jnp.swapaxes(root, -1, -2)
        noise = jax.random.normal(second, root.shape[:-1], root.dtype)
        scaled = jax.scipy.linalg.solve_triangular(transposed, noise[..., None], lower=False)
        scaled = scaled[..., 0] / jnp.sqrt(jnp.asarray(self.mean_precision))[..., None]
        return jnp.asarray(self.mean) + scaled, root @ transposed
