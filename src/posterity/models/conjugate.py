"""Conjugate models, whose factor is a sum of sufficient statistics, and one in closed form."""

from typing import Any, ClassVar

import numpy as np

from posterity.arguments import Constraint
from posterity.arrays.namespace import namespace
from posterity.arrays.tree import static
from posterity.arrays.typing import Bool, Float, PyTree, Real
from posterity.errors import StructureError
from posterity.families import Beta, Dirichlet, ExponentialFamily, Gamma, Gaussian, NormalWishart
from posterity.families.gaussian import log_normal
from posterity.models.base import ConjugateModel, ExpectedModel
from posterity.models.data import COUNTS, FLIPS, TIMES, VECTORS, Column, labels, vectors
from posterity.models.records import Records

MATRIX = Constraint(
    "a matrix (d, d)",
    lambda given: np.ndim(given) == 2,
    StructureError,
    "Give the covariance (d, d) of one record.",
)


class BetaBernoulli(ConjugateModel[Beta]):
    """Bernoulli records ``x`` (n,) in {0, 1} with probability ``z``; posterior Beta.

    >>> from posterity import federate
    >>> sites = {"north": np.array([1, 0, 1]), "south": np.array([1, 1])}
    >>> federate(sites, BetaBernoulli(), Beta.from_standard(1.0, 1.0)).posterior
    Beta(0.714 ± 0.16)
    """

    numpy: ClassVar[bool] = True
    families = (Beta,)
    columns = (FLIPS,)

    def factor(self, records: Records) -> Beta:
        ones = (records.weights * records.data).sum()
        return Beta(ones, records.weights.sum() - ones)

    def log_likelihood(self, z: PyTree, data: PyTree) -> Float[Real, " n"]:
        """Return ``x log z + (1 - x) log(1 - z)``."""
        special = namespace(z, data).special
        ones = 1.0 * data  # JAX's xlogy derives floats only
        return special.xlogy(ones, z) + special.xlog1py(1 - ones, -z)


class DirichletCategorical(ConjugateModel[Dirichlet]):
    """Labels ``x`` (n,) in {0, ..., K - 1} with probabilities ``z`` (K,); posterior Dirichlet.

    >>> from posterity import federate
    >>> sites = {"north": np.array([0, 2, 2]), "south": np.array([1, 2])}
    >>> run = federate(sites, DirichletCategorical(3), Dirichlet.from_standard(np.ones(3)))
    >>> run.posterior.concentration
    array([2., 2., 4.])
    """

    categories: int = static()

    numpy: ClassVar[bool] = True
    families = (Dirichlet,)

    def factor(self, records: Records) -> Dirichlet:
        np_ = namespace(records.data, records.weights).np
        labels = np_.asarray(records.data).astype(int)
        fixed = {} if np_ is np else {"length": self.categories}
        weights = records.weights
        least = self.categories
        return Dirichlet(np_.bincount(labels, weights, minlength=least, **fixed))

    def log_likelihood(self, z: PyTree, data: PyTree) -> Float[Real, " n"]:
        """Return ``log z_x``."""
        np_ = namespace(z, data).np
        return np_.log(z)[np_.asarray(data).astype(int)]

    @property
    def columns(self) -> tuple[Column, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whole numbers below ``categories``."""
        return (labels(self.categories),)


class GammaPoisson(ConjugateModel[Gamma]):
    """Poisson counts ``x`` (n,) with rate ``z``, each of unit exposure; posterior Gamma.

    >>> from posterity import federate
    >>> sites = {"north": np.array([3, 5]), "south": np.array([4])}
    >>> federate(sites, GammaPoisson(), Gamma.from_standard(1.0, 1.0)).posterior
    Gamma(3.25 ± 0.9)
    """

    numpy: ClassVar[bool] = True
    families = (Gamma,)
    columns = (COUNTS,)

    def factor(self, records: Records) -> Gamma:
        return Gamma((records.weights * records.data).sum(), records.weights.sum())

    def log_likelihood(self, z: PyTree, data: PyTree) -> Float[Real, " n"]:
        """Return ``x log z - z - log x!``."""
        xp = namespace(z, data)
        return xp.special.xlogy(1.0 * data, z) - z - xp.special.gammaln(data + 1.0)


class GaussianMean(ConjugateModel[Gaussian]):
    """Normal vectors ``x`` (n, d) with mean ``z`` and known covariance; posterior Gaussian.

    >>> from posterity import federate
    >>> sites = {"north": np.array([[1.0, 0.0]]), "south": np.array([[3.0, 2.0]])}
    >>> prior = Gaussian.from_standard(np.zeros(2), 2 * np.eye(2))
    >>> federate(sites, GaussianMean(np.eye(2)), prior).posterior.mean
    array([1.6, 0.8])
    """

    precision: Float[Real, "d d"]

    numpy: ClassVar[bool] = True
    families = (Gaussian,)

    def __init__(self, covariance: Any):
        """Make a model from the covariance (d, d) of a record; a ParameterError or StructureError
        unless it is symmetric and positive definite.
        """
        MATRIX.check(covariance=covariance)
        self.precision = Gaussian.from_standard(np.zeros(len(covariance)), covariance).precision

    def factor(self, records: Records) -> Gaussian:
        """Return the factor with ``Λ Σ x`` and ``n Λ``."""
        total = records.weights @ records.data
        return Gaussian(self.precision @ total, self.precision * records.weights.sum())

    def log_likelihood(self, z: PyTree, data: PyTree) -> Float[Real, " n"]:
        """Return ``log N(x | z, Λ⁻¹)``."""
        return Gaussian(self.precision @ z, self.precision).log_prob(data)

    @property
    def columns(self) -> tuple[Column, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Vectors of the size of the covariance."""
        return (vectors(self.precision.shape[0]),)


class GaussianMeanCovariance(ConjugateModel[NormalWishart]):
    """Normal vectors ``x`` (n, d) with unknown mean and precision; posterior Normal-Wishart.

    Source: bishop2006, section 2.3.6.

    >>> from posterity import federate
    >>> sites = {"north": np.array([[1.0], [2.0]]), "south": np.array([[4.0], [5.0]])}
    >>> prior = NormalWishart.from_standard([0.0], 1.0, [[1.0]], 2.0)
    >>> federate(sites, GaussianMeanCovariance(), prior).posterior.mean
    array([2.4])
    """

    numpy: ClassVar[bool] = True
    families = (NormalWishart,)
    columns = (VECTORS,)

    def factor(self, records: Records) -> NormalWishart:
        """Return the factor with ``n``, ``n``, ``Σ x`` and ``Σ x xᵀ``."""
        x = records.data
        weights = records.weights
        count = weights.sum()
        scatter = (x.T * weights) @ x
        return NormalWishart(count, count, weights @ x, scatter)

    def log_likelihood(self, z: PyTree, data: PyTree) -> Float[Real, " n"]:
        """Return ``log N(x | μ, Λ⁻¹)`` for the event ``(μ, Λ)``."""
        mean, precision = z
        return log_normal(data - mean, precision)


class BetaExponential(ExpectedModel[Beta]):
    """Exponential waiting times ``x`` (n,) with mean ``z`` in (0, 1); posterior Beta.

    Source: gong2021, section V.

    >>> BetaExponential().log_likelihood(0.5, np.array([0.0, 0.5])).round(3)
    array([ 0.693, -0.307])
    """

    families = (Beta,)
    columns = (TIMES,)

    def log_likelihood(self, z: PyTree, data: PyTree) -> Float[Real, " n"]:
        """Return ``-log z - x / z``."""
        return -namespace(z).np.log(z) - data / z

    def expected_log_likelihood(self, q: Beta, data: PyTree) -> Float[Real, " n"]:
        """Return ``-(ψ(a) - ψ(a + b)) - x (a + b - 1) / (a - 1)``; finite only for ``a > 1``."""
        log_mean = q.mean_parameters[0]
        return -log_mean - data * (q.a + q.b - 1) / q.a_minus_one

    def admits(self, q: ExponentialFamily) -> Bool[Real, ""]:
        """Return whether ``E[1/z]`` is finite: ``a > 1``."""
        return q.a_minus_one > 0  # pyright: ignore[reportAttributeAccessIssue]
