"""Conjugate models: the site's factor is the sum of its sufficient statistics."""

import math
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Float

from posterity.arguments import Constraint
from posterity.arrays.leaves import as_leaf
from posterity.arrays.linear_algebra import quadratic
from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Real
from posterity.errors import StructureError
from posterity.families import Beta, Dirichlet, ExponentialFamily, Gamma, Gaussian, NormalWishart
from posterity.families.gaussian import LOG_2PI
from posterity.models.base import VARIANCE, ConjugateModel
from posterity.models.data import COUNTS, FLIPS, INPUTS, TARGETS, VECTORS, Column, labels, vectors
from posterity.models.records import Records

MATRIX = Constraint("a matrix (d, d)", lambda given: np.ndim(given) == 2, StructureError)


class BetaBernoulli(ConjugateModel[Beta]):
    """Coin flips ``x`` (n,) in {0, 1} with chance ``z``; posterior Beta."""

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Beta,)
    columns: ClassVar[tuple[Column, ...]] = (FLIPS,)

    def factor(self, records: Records) -> Beta:
        """Counts of ones and of zeros."""
        ones = (records.weights * records.data).sum()
        return Beta(ones, records.weights.sum() - ones)

    def log_likelihood(self, z: Any, data: Any) -> Float[Real, " n"]:
        """``x log z + (1 - x) log(1 - z)``."""
        special, ones = namespace(z, data).special, 1.0 * data  # JAX's xlogy derives floats only
        return special.xlogy(ones, z) + special.xlog1py(1 - ones, -z)


class DirichletCategorical(ConjugateModel[Dirichlet]):
    """Labels ``x`` (n,) in {0, …, K - 1} with chances ``z`` (K,); posterior Dirichlet."""

    categories: int = eqx.field(static=True)

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Dirichlet,)

    def factor(self, records: Records) -> Dirichlet:
        """Counts of each label."""
        np_ = namespace(records.data, records.weights).np
        labels = np_.asarray(records.data).astype(int)
        return Dirichlet(np_.bincount(labels, records.weights, **self._size(np_)))

    def _size(self, np_: Any) -> dict[str, int]:
        return {"minlength": self.categories} | ({} if np_ is np else {"length": self.categories})

    def log_likelihood(self, z: Any, data: Any) -> Float[Real, " n"]:
        """``log z_x``."""
        np_ = namespace(z, data).np
        return np_.log(z)[np_.asarray(data).astype(int)]

    @property
    def columns(self) -> tuple[Column, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whole numbers below ``categories``."""
        return (labels(self.categories),)


class GammaPoisson(ConjugateModel[Gamma]):
    """Counts ``x`` (n,), each of a unit of exposure, with rate ``z``; posterior Gamma."""

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Gamma,)
    columns: ClassVar[tuple[Column, ...]] = (COUNTS,)

    def factor(self, records: Records) -> Gamma:
        """The sum of counts and the exposure."""
        return Gamma((records.weights * records.data).sum(), records.weights.sum())

    def log_likelihood(self, z: Any, data: Any) -> Float[Real, " n"]:
        """``x log z - z - log x!``."""
        xp = namespace(z, data)
        return xp.special.xlogy(1.0 * data, z) - z - xp.special.gammaln(data + 1.0)


class GaussianMean(ConjugateModel[Gaussian]):
    """Vectors ``x`` (n, d) about a mean ``z`` with a known covariance; posterior Gaussian."""

    precision: Float[Real, "d d"] = eqx.field(converter=as_leaf)

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Gaussian,)

    def __init__(self, covariance: Any):
        """From the covariance (d, d) of a record.

        Raises:
            ParameterError, StructureError: if it is no symmetric, positive definite matrix.
        """
        MATRIX.check(covariance=covariance)
        self.precision = Gaussian.from_standard(np.zeros(len(covariance)), covariance).precision

    def factor(self, records: Records) -> Gaussian:
        """``n Λ`` and ``Λ Σ x``."""
        total = records.weights @ records.data
        return Gaussian(self.precision @ total, self.precision * records.weights.sum())

    def log_likelihood(self, z: Any, data: Any) -> Float[Real, " n"]:
        """``log N(x | z, Λ⁻¹)``."""
        return Gaussian(self.precision @ z, self.precision).log_prob(data)

    @property
    def columns(self) -> tuple[Column, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Vectors of the size of the covariance."""
        return (vectors(self.precision.shape[0]),)


class GaussianMeanCovariance(ConjugateModel[NormalWishart]):
    """Vectors ``x`` (n, d), mean and precision unknown; posterior Normal-Wishart.

    Source: bishop2006, section 2.3.6.
    """

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (NormalWishart,)
    columns: ClassVar[tuple[Column, ...]] = (VECTORS,)

    def factor(self, records: Records) -> NormalWishart:
        """``n, n, Σ x, Σ x xᵀ``."""
        x, weights = records.data, records.weights
        count, scatter = weights.sum(), (x.T * weights) @ x
        return NormalWishart(count, count, weights @ x, scatter)

    def log_likelihood(self, z: Any, data: Any) -> Float[Real, " n"]:
        """``log N(x | μ, Λ⁻¹)`` for the event ``(μ, Λ)``."""
        mean, precision = z
        xp = namespace(mean, precision, data)
        logdet = xp.logdet(xp.cholesky(precision))
        distance = quadratic(precision, data - mean)
        return (logdet - distance - data.shape[-1] * LOG_2PI) / 2


class LinearRegression(ConjugateModel[Gaussian]):
    """``y = x · z + ε`` with known noise variance; data ``(x, y)``; posterior Gaussian."""

    noise_variance: float = eqx.field(static=True, default=1.0)

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Gaussian,)
    columns: ClassVar[tuple[Column, ...]] = (INPUTS, TARGETS)
    likelihood: ClassVar[str] = "gaussian"

    def __check_init__(self) -> None:
        VARIANCE.check(noise_variance=self.noise_variance)

    def factor(self, records: Records) -> Gaussian:
        """``Xᵀ y / σ²`` and ``Xᵀ X / σ²``."""
        x, y = records.data
        scaled = (x.T * records.weights) / self.noise_variance
        return Gaussian(scaled @ y, scaled @ x)

    def log_likelihood(self, z: Any, data: Any) -> Float[Real, " n"]:
        """``log N(y | x · z, σ²)``."""
        x, y = data
        return self.predictor_log_likelihood(x @ z, y)

    def predictor_log_likelihood(self, f: Float[Real, "..."], y: Any) -> Float[Real, "..."]:
        """``log N(y | f, σ²)``, element by element."""
        residual = (y - f) ** 2 / self.noise_variance
        return -(residual + math.log(self.noise_variance) + LOG_2PI) / 2

    def predictor_value_and_slope(
        self, f: Float[Real, "..."], y: Any
    ) -> tuple[Float[Real, "..."], Float[Real, "..."]]:
        """``log N(y | f, σ²)`` and its derivative in ``f``."""
        return self.predictor_log_likelihood(f, y), (y - f) / self.noise_variance

    def predictor_mean(self, f: Float[Real, "..."]) -> Float[Real, "..."]:
        """The predictor itself."""
        return f

    def outputs(self, z: Any, x: Any) -> Float[Real, " n"]:
        """``x · z``: means."""
        return x @ z
