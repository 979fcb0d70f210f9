"""Regressions: linear (conjugate), logistic, of counts, and of positive values."""

import abc
import functools
import math
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtr

from posterity.arrays.namespace import namespace
from posterity.arrays.tree import static
from posterity.arrays.typing import Float
from posterity.families import DiagonalGaussian, Gaussian
from posterity.families.gaussian import LOG_2PI
from posterity.models.base import VARIANCE, ConjugateModel, Each, Moments, PredictorModel
from posterity.models.data import (
    BINARY_LABELS,
    COUNTS,
    COUNTS_AND_EXPOSURES,
    INPUTS,
    POSITIVE_TARGETS,
    TARGETS,
    check_data,
)
from posterity.models.nodes import hermite, in_parts
from posterity.models.records import Records

NARROW = ((0.2, 8), (0.5, 16), (1.0, 32))
"""Pairs of a predictor's largest standard deviation and the number of Gauss-Hermite nodes that
integrate logistic functions of it to 1e-12; wider ones use :func:`_wide`."""


class _Regression(PredictorModel):
    """A regression with Gaussian coefficients and closed-form expectations."""

    families = (Gaussian, DiagonalGaussian)

    @abc.abstractmethod
    def _moments(self, mean: Any, variance: Any, y: Any) -> Moments:
        """Return ``E[log p(y | f)]`` and its derivatives' expectations, for normal ``f``."""

    def predictor_log_likelihood(self, f: Each, y: Any) -> Each:
        return self._moments(f, 0.0, y)[0]

    def predictor_value_and_slope(self, f: Each, y: Any) -> tuple[Each, Each]:
        return self._moments(f, 0.0, y)[:2]

    def predictor_expectation(self, mean: Each, variance: Each, y: Any) -> Moments | None:
        return self._moments(mean, variance, y)


class LinearRegression(ConjugateModel[Gaussian], _Regression):
    """Linear regression ``y = x · z + ε`` with known noise variance; data ``(x, y)``, ``x`` (n, d)
    and ``y`` (n,); posterior Gaussian.

    The likelihood is not conjugate to a diagonal Gaussian, whose mean is that of the exact
    posterior, and whose variances are those conditional on all other coefficients.

    >>> from posterity import federate
    >>> x, prior = np.array([[1.0], [2.0]]), Gaussian.from_standard([0.0], [[100.0]])
    >>> sites = {"north": (x, np.array([2.0, 4.1])), "south": (x, np.array([1.9, 4.0]))}
    >>> federate(sites, LinearRegression(noise_variance=0.1), prior).posterior
    Gaussian(d=1, 2.01 ± 0.1)
    """

    noise_variance: float = 1.0

    numpy: ClassVar[bool] = True
    families = (Gaussian, DiagonalGaussian)
    conjugate_to = (Gaussian,)
    columns = (INPUTS, TARGETS)
    optima = "one"
    likelihood: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        VARIANCE.check(noise_variance=self.noise_variance)

    def factor(self, records: Records) -> Gaussian:
        """Return the factor with ``Xᵀ y / σ²`` and ``Xᵀ X / σ²``."""
        x, y = records.data
        scaled = (x.T * records.weights) / self.noise_variance
        return Gaussian(scaled @ y, scaled @ x)

    def predictor_mean(self, f: Each) -> Each:
        return f

    def _moments(self, mean: Any, variance: Any, y: Any) -> Moments:
        residual = y - mean
        noise = self.noise_variance
        log_noise = namespace(mean, noise).np.log(noise)
        value = -(residual**2 / noise + log_noise + LOG_2PI) / 2 - variance / (2 * noise)
        return value, residual / noise, 0 * mean - 1 / noise


class LogisticRegression(PredictorModel):
    """Logistic regression of labels ``y`` (n,) in {0, 1} with log odds ``x · z``; data ``(x, y)``;
    posterior Gaussian. For an intercept add a column of ones to ``x``.

    >>> model, x = LogisticRegression(), np.array([[1.0, -2.0], [1.0, 2.0]])
    >>> model.log_likelihood(np.array([0.0, 1.0]), (x, np.array([0, 1]))).round(3)
    array([-0.127, -0.127])
    """

    numpy: ClassVar[bool] = True
    families = (Gaussian, DiagonalGaussian)
    columns = (INPUTS, BINARY_LABELS)
    optima = "one"
    likelihood: ClassVar[str] = "bernoulli"

    def predictor_log_likelihood(self, f: Each, y: Any) -> Each:
        """Return ``-log(1 + exp(∓f))``, accurate also for nearly certain labels."""
        np_ = namespace(f, y).np
        return -np_.logaddexp(0.0, np_.where(np_.asarray(y) > 0, -f, f))

    def rough_factor(self, q: Any, records: Records) -> Any:
        """Return the first step of iteratively reweighted least squares, from log odds of zero."""
        x, y = records.data
        signs = namespace(y).np.where(y > 0, 2.0, -2.0)
        return least_squares(q, x, signs, records.weights / 4)

    def predictor_mean(self, f: Each) -> Each:
        """Return the probability of the label 1."""
        np_ = namespace(f).np
        return np_.exp(-np_.logaddexp(0.0, -f))

    def predictor_value_and_slope(self, f: Each, y: Any) -> tuple[Each, Each]:
        """Return the value and the slope ``± σ(∓f)``, from one exponential.

        In compiled code the slope is ``y - σ(f)`` by a hyperbolic tangent, which takes half as long
        where the value is not used.
        """
        np_ = namespace(f, y).np
        if np_ is not np:
            yes = np_.asarray(y) > 0
            slope = np_.where(yes, 0.5, -0.5) - 0.5 * np_.tanh(0.5 * f)
            return -np_.logaddexp(0.0, np_.where(yes, -f, f)), slope
        sign = np.where(np.asarray(y) > 0, 1.0, -1.0)
        value, wrong, _ = _signed(sign * f)
        return value, sign * wrong

    def predictor_expectation(self, mean: Each, variance: Each, y: Any) -> Moments | None:
        """Return the expectations to 1e-12 by NumPy, with as few nodes as each predictor's standard
        deviation allows; None for JAX arrays.
        """
        if namespace(mean, variance, y).np is not np:
            return None
        sign = np.where(np.asarray(y) > 0, 1.0, -1.0)
        deviation = np.sqrt(variance)
        signed = sign * mean
        level = np.searchsorted([most for most, _ in NARROW], deviation)
        sums = np.empty((3, len(signed)))
        first = level.min(initial=9)
        last = level.max(initial=0)
        for number in range(first, last + 1):
            rows = slice(None) if first == last else np.flatnonzero(level == number)
            nodes = len(_tail()[0])
            along = _wide
            if number < len(NARROW):
                nodes = NARROW[number][1]
                along = functools.partial(_narrow, nodes=nodes)
            sums[:, rows] = in_parts(along, (signed[rows], deviation[rows]), nodes)
        value, wrong, bend = sums
        return value, sign * wrong, -bend


def _signed(f: Float[np.ndarray, "..."]) -> tuple[Any, Any, Any]:
    """Return ``log σ(f)``, its derivative ``σ(-f)``, and minus its second derivative."""
    decay = np.exp(-abs(f))
    total = 1 + decay  # its logarithm has an error of at most 1e-16, in half the time of log1p
    share = 1 / total
    other = decay * share
    wrong = np.where(f > 0, other, share)
    return np.minimum(f, 0.0) - np.log(total), wrong, other * share


def _narrow(mean: Float[np.ndarray, " n"], deviation: Float[np.ndarray, " n"], nodes: int) -> Any:
    """Return expectations (3, n) of :func:`_signed` by Gauss-Hermite nodes."""
    points, chances = hermite(nodes)
    return [chances @ part for part in _signed(mean + deviation * points[:, None])]


def _wide(mean: Float[np.ndarray, " n"], deviation: Float[np.ndarray, " n"]) -> Any:
    """Return the same for deviations from one on: a ramp or a step, plus exponential tails."""
    points, weights = _tail()

    def density(f):
        return np.exp(-(((f - mean) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))

    right = density(points[:, None])
    left = density(-points[:, None])
    value, wrong, bend = (weights * part for part in _signed(points))
    below = ndtr(-mean / deviation)
    ramp = mean * below - deviation**2 * density(0.0)
    return ramp + value @ (right + left), below + wrong @ (right - left), bend @ (right + left)


@functools.cache
def _tail(
    end: float = 40.0, nodes: int = 64
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Return Gauss-Legendre nodes and weights on the exponential tail of a logistic function, up to
    its ``end``.
    """
    points, weights = np.polynomial.legendre.leggauss(nodes)
    return end / 2 * (points + 1), end / 2 * weights


class _LogLinear(PredictorModel):
    """A regression of which the predictor is the logarithm of the mean."""

    def predictor_mean(self, f: Each) -> Each:
        """Return the mean, of counts per unit of exposure."""
        return namespace(f).np.exp(f)


class PoissonRegression(_LogLinear, _Regression):
    """Poisson regression of counts ``y`` (n,) with log rate ``x · z``; data ``(x, y)``; posterior
    Gaussian. With ``exposure``, ``y`` (n, 2) are pairs of a count and its exposure, and ``x · z``
    is the log rate per unit of exposure.

    >>> model, x = PoissonRegression(exposure=True), np.ones((1, 1))
    >>> model.log_likelihood(np.array([np.log(2.0)]), (x, np.array([[6, 3.0]]))).round(3)
    array([-1.829])
    """

    exposure: bool = static(default=False)

    numpy: ClassVar[bool] = True
    optima = "one"

    def check(self, data: Any) -> None:
        check_data(data, (INPUTS, COUNTS_AND_EXPOSURES if self.exposure else COUNTS))

    def rough_factor(self, q: Any, records: Records) -> Any:
        """Return the least-squares factor of the log rates, weighted by the counts."""
        x, y = records.data
        count, log_exposure = _counts(y, self.exposure)
        log_rate = namespace(count).np.log(count + 0.5) - log_exposure
        return least_squares(q, x, log_rate, records.weights * (count + 0.5))

    def _moments(self, mean: Any, variance: Any, y: Any) -> Moments:
        xp = namespace(mean, y)
        count, log_exposure = _counts(y, self.exposure)
        rate = xp.np.exp(mean + variance / 2 + log_exposure)  # rates are log-normal
        value = count * (mean + log_exposure) - rate - xp.special.gammaln(count + 1)
        return value, count - rate, -rate


def _counts(y: Any, exposure: bool) -> tuple[Any, Any]:
    """Return counts and the logarithms of exposures."""
    np_ = namespace(y).np
    if not exposure:
        return np_.asarray(y), 0.0
    times = y[..., 1]  # zero for padding
    return y[..., 0], np_.log(np_.where(times > 0, times, 1.0))


def least_squares(q: Any, x: Any, predictor: Any, weights: Any) -> Any:
    """Return the factor of predictors observed with these weights, in the family of ``q``."""
    linear = (weights * predictor) @ x
    return type(q)._of(precision_mean=linear, precision=q.gram(x, weights))


class NegativeBinomialRegression(_LogLinear):
    """Negative binomial regression of counts with log mean ``x · z`` and variance ``μ + dispersion
    μ²``; data as in :class:`PoissonRegression`, the limit of zero dispersion (hilbe2011). The
    ``dispersion`` is known and positive.

    >>> model, x = NegativeBinomialRegression(0.5), np.ones((1, 1))
    >>> model.log_likelihood(np.array([np.log(2.0)]), (x, np.array([3]))).round(3)
    array([-2.079])
    """

    dispersion: float = static()
    exposure: bool = static(default=False)

    numpy: ClassVar[bool] = True
    families = (Gaussian, DiagonalGaussian)
    optima = "one"

    def __post_init__(self) -> None:
        VARIANCE.check(dispersion=self.dispersion)

    def check(self, data: Any) -> None:
        PoissonRegression(self.exposure).check(data)

    def predictor_log_likelihood(self, f: Each, y: Any) -> Each:
        """Return ``log NB(y | μ = exp(f) exposure)``, elementwise."""
        return self.predictor_value_and_slope(f, y)[0]

    def predictor_value_and_slope(self, f: Each, y: Any) -> tuple[Each, Each]:
        """Return the value and slope; the slope is ``y - (y + 1 / dispersion) σ(log odds)``."""
        xp = namespace(f, y)
        size = 1 / self.dispersion
        count, log_exposure = _counts(y, self.exposure)
        log_rate = f + log_exposure + math.log(self.dispersion)
        gammaln = xp.special.gammaln

        def softplus(odds):
            return xp.np.logaddexp(0.0, odds)

        constant = gammaln(count + size) - math.lgamma(size) - gammaln(count + 1)
        value = constant + count * log_rate - (count + size) * softplus(log_rate)
        return value, count - (count + size) * xp.np.exp(-softplus(-log_rate))

    def rough_factor(self, q: Any, records: Records) -> Any:
        """Return the rough factor of :class:`PoissonRegression`, without dispersion."""
        return PoissonRegression(self.exposure).rough_factor(q, records)


class GammaRegression(_LogLinear, _Regression):
    """Gamma regression of positive ``y`` (n,) with log mean ``x · z`` and variance ``dispersion
    μ²``; data ``(x, y)``; posterior Gaussian. The ``dispersion``, the inverse of the gamma
    distribution's shape, is known (mccullagh1989).

    >>> model, x = GammaRegression(dispersion=0.5), np.ones((1, 1))
    >>> model.log_likelihood(np.array([np.log(2.0)]), (x, np.array([3.0]))).round(3)
    array([-1.901])
    """

    dispersion: float = static(default=1.0)

    numpy: ClassVar[bool] = True
    optima = "one"
    columns = (INPUTS, POSITIVE_TARGETS)

    def __post_init__(self) -> None:
        VARIANCE.check(dispersion=self.dispersion)

    def rough_factor(self, q: Any, records: Records) -> Any:
        """Return the least-squares factor of the logarithms."""
        x, y = records.data
        np_ = namespace(y).np
        logs = np_.log(np_.where(y > 0, y, 1.0))
        return least_squares(q, x, logs, records.weights / self.dispersion)

    def _moments(self, mean: Any, variance: Any, y: Any) -> Moments:
        np_ = namespace(mean, y).np
        shape = 1 / self.dispersion
        y = np_.where(np_.asarray(y) > 0, y, 1.0)  # zero for padding
        ratio = y * np_.exp(-mean + variance / 2)  # the inverse of the mean is log-normal
        constant = shape * math.log(shape) - math.lgamma(shape)
        value = constant + (shape - 1) * np_.log(y) - shape * (mean + ratio)
        return value, (ratio - 1) / self.dispersion, -ratio / self.dispersion


class Adjusted(PredictorModel):
    """A regression with an offset and a weight for each record.

    Data are ``(x, y)``. The columns of ``y`` (n, k + 2) are the ``model``'s, then the offset, which
    is added to ``x · z``, then the weight, which multiplies the record's log likelihood.

    >>> model, x = Adjusted(PoissonRegression()), np.ones((1, 1))
    >>> count, offset, weight = 6.0, np.log(3.0), 2.0
    >>> model.log_likelihood(np.log([2.0]), (x, np.array([[count, offset, weight]]))).round(3)
    array([-3.657])
    """

    model: PredictorModel

    numpy: ClassVar[bool] = True
    families = (Gaussian, DiagonalGaussian)
    optima = "one"

    def check(self, data: Any) -> None:
        x, y = data
        self.model.check((x, self._parts(y)[0]))

    def predictor_log_likelihood(self, f: Each, y: Any) -> Each:
        own, offset, weight = self._parts(y)
        return weight * self.model.predictor_log_likelihood(f + offset, own)

    def predictor_value_and_slope(self, f: Each, y: Any) -> tuple[Each, Each]:
        own, offset, weight = self._parts(y)
        value, slope = self.model.predictor_value_and_slope(f + offset, own)
        return weight * value, weight * slope

    def predictor_expectation(self, mean: Each, variance: Each, y: Any) -> Moments | None:
        own, offset, weight = self._parts(y)
        parts = self.model.predictor_expectation(mean + offset, variance, own)
        return None if parts is None else tuple(weight * part for part in parts)  # pyright: ignore[reportReturnType]

    def predictor_mean(self, f: Each) -> Each:
        """Return the model's mean for records without an offset."""
        return self.model.predictor_mean(f)

    def rough_factor(self, q: Any, records: Records) -> Any:
        """Return the model's rough factor, with weights but without offsets."""
        x, y = records.data
        own, _, weight = self._parts(y)
        return self.model.rough_factor(q, Records((x, own), records.weights * weight))

    def _parts(self, y: Any) -> tuple[Any, Any, Any]:
        own = y[..., 0] if y.shape[-1] == 3 else y[..., :-2]
        return own, y[..., -2], y[..., -1]
