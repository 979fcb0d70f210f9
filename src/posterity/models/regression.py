"""Regression: linear, which is conjugate, logistic, of counts and of positive values."""

import abc
import functools
import math
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtr

from posterity.arrays.namespace import namespace
from posterity.arrays.tree import static
from posterity.arrays.typing import Float
from posterity.families import DiagonalGaussian, ExponentialFamily, Gaussian
from posterity.families.gaussian import LOG_2PI
from posterity.models.base import VARIANCE, ConjugateModel, Each, Moments, Optima, PredictorModel
from posterity.models.data import (
    BINARY_LABELS,
    COUNTS,
    COUNTS_AND_EXPOSURES,
    INPUTS,
    POSITIVE_TARGETS,
    TARGETS,
    Column,
    check_data,
)
from posterity.models.nodes import hermite
from posterity.models.records import Records

NARROW = ((0.2, 8), (0.5, 16), (1.0, 32))
"""Deviations of a predictor up to which so many Gauss-Hermite nodes sum logistic functions of it to
1e-12; wider ones take :func:`_wide`."""
TAIL, POINTS, SQRT_2PI = 40.0, 64, math.sqrt(2 * math.pi)
"""Where the exponential tail of a logistic function ends, and Gauss-Legendre nodes up to there."""
AT_A_TIME = 1 << 15
"""Nodes of records that are summed together, and stay in the processor's cache."""


class _Regression(PredictorModel):
    """A regression of Gaussian coefficients whose expectations are known in closed form."""

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Gaussian, DiagonalGaussian)

    @abc.abstractmethod
    def _moments(self, mean: Any, variance: Any, y: Any) -> Moments:
        """``E[log p(y | f)]`` and those of its first and second derivative, ``f`` normal."""

    def predictor_log_likelihood(self, f: Each, y: Any) -> Each:
        return self._moments(f, 0.0, y)[0]

    def predictor_value_and_slope(self, f: Each, y: Any) -> tuple[Each, Each]:
        return self._moments(f, 0.0, y)[:2]

    def predictor_expectation(self, mean: Each, variance: Each, y: Any) -> Moments | None:
        return self._moments(mean, variance, y)


class LinearRegression(ConjugateModel[Gaussian], _Regression):
    """``y = x · z + ε`` with known noise variance; data ``(x, y)``; posterior Gaussian.

    A diagonal Gaussian is none that the likelihood lies in: its mean is that of the exact
    posterior, its variances are those given all other coefficients.
    """

    noise_variance: float = 1.0

    numpy: ClassVar[bool] = True
    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Gaussian, DiagonalGaussian)
    conjugate_to: ClassVar[tuple[type[ExponentialFamily], ...]] = (Gaussian,)
    columns: ClassVar[tuple[Column, ...]] = (INPUTS, TARGETS)
    optima: ClassVar[Optima] = "one"
    likelihood: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        VARIANCE.check(noise_variance=self.noise_variance)

    def factor(self, records: Records) -> Gaussian:
        """``Xᵀ y / σ²`` and ``Xᵀ X / σ²``."""
        x, y = records.data
        scaled = (x.T * records.weights) / self.noise_variance
        return Gaussian(scaled @ y, scaled @ x)

    def predictor_mean(self, f: Each) -> Each:
        return f

    def _moments(self, mean: Any, variance: Any, y: Any) -> Moments:
        residual, noise = y - mean, self.noise_variance
        log_noise = namespace(mean, noise).np.log(noise)
        value = -(residual**2 / noise + log_noise + LOG_2PI) / 2 - variance / (2 * noise)
        return value, residual / noise, 0 * mean - 1 / noise


class LogisticRegression(PredictorModel):
    """Labels ``y`` (n,) in {0, 1} with log odds ``x · z``; data ``(x, y)``; posterior Gaussian.

    There is no intercept but a column of ones in ``x``.
    """

    numpy: ClassVar[bool] = True
    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Gaussian, DiagonalGaussian)
    columns: ClassVar[tuple[Column, ...]] = (INPUTS, BINARY_LABELS)
    optima: ClassVar[Optima] = "one"
    likelihood: ClassVar[str] = "bernoulli"

    def predictor_log_likelihood(self, f: Each, y: Any) -> Each:
        """``-log(1 + exp(∓f))``, which keeps its digits where the label is all but sure."""
        np_ = namespace(f, y).np
        return -np_.logaddexp(0.0, np_.where(np_.asarray(y) > 0, -f, f))

    def rough_factor(self, q: Any, records: Records) -> Any:
        """The first step of reweighted least squares, from where all log odds are zero."""
        x, y = records.data
        signs = namespace(y).np.where(y > 0, 2.0, -2.0)
        return _least_squares(q, x, signs, records.weights / 4)

    def predictor_mean(self, f: Each) -> Each:
        """The probability of a one."""
        np_ = namespace(f).np
        return np_.exp(-np_.logaddexp(0.0, -f))

    def predictor_value_and_slope(self, f: Each, y: Any) -> tuple[Each, Each]:
        """The slope is ``± σ(∓f)``, from the one exponential that the value takes too.

        Compiled it is ``y - σ(f)``: where the value is not asked for, as by steps at a rate, a
        hyperbolic tangent takes half as long.
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
        """The expectation, by NumPy to 1e-12, by as few nodes as each predictor's deviation
        allows.
        """
        if namespace(mean, variance, y).np is not np:
            return None
        sign, deviation = np.where(np.asarray(y) > 0, 1.0, -1.0), np.sqrt(variance)
        signed, level = sign * mean, np.searchsorted([most for most, _ in NARROW], deviation)
        sums = np.empty((3, len(signed)))
        for number in range(len(NARROW) + 1):
            narrow, rows = number < len(NARROW), np.flatnonzero(level == number)
            nodes = NARROW[number][1] if narrow else POINTS
            size = AT_A_TIME // nodes
            for begin in range(0, len(rows), size):
                some = rows[begin : begin + size]
                own = signed[some], deviation[some]
                sums[:, some] = _narrow(*own, nodes) if narrow else _wide(*own)
        value, wrong, bend = sums
        return value, sign * wrong, -bend


def _signed(f: Float[np.ndarray, "..."]) -> tuple[Any, Any, Any]:
    """``log σ(f)``, its derivative ``σ(-f)``, and minus its second one."""
    decay = np.exp(-abs(f))
    total = 1 + decay  # a logarithm of it is off by 1e-16 at most, and takes half of log1p
    share = 1 / total
    wrong = np.where(f > 0, decay * share, share)
    return np.minimum(f, 0.0) - np.log(total), wrong, decay * share * share


def _narrow(mean: Float[np.ndarray, " n"], deviation: Float[np.ndarray, " n"], nodes: int) -> Any:
    """Expectations (3, n) of :func:`_signed` by Gauss-Hermite nodes."""
    points, chances = hermite(nodes)
    return [chances @ part for part in _signed(mean + deviation * points[:, None])]


def _wide(mean: Float[np.ndarray, " n"], deviation: Float[np.ndarray, " n"]) -> Any:
    """The same of any width from one on: what is not exponentially small is a ramp, or a step."""
    points, weights = _tail()
    density = lambda f: np.exp(-(((f - mean) / deviation) ** 2) / 2) / (deviation * SQRT_2PI)
    right, left = density(points[:, None]), density(-points[:, None])
    value, wrong, bend = (weights * part for part in _signed(points))
    below = ndtr(-mean / deviation)
    ramp = mean * below - deviation**2 * density(0.0)
    return ramp + value @ (right + left), below + wrong @ (right - left), bend @ (right + left)


@functools.cache
def _tail() -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    points, weights = np.polynomial.legendre.leggauss(POINTS)
    return TAIL / 2 * (points + 1), TAIL / 2 * weights


class PoissonRegression(_Regression):
    """Counts ``y`` (n,) with log rate ``x · z``; data ``(x, y)``; posterior Gaussian.

    With ``exposure`` the data's ``y`` are pairs (n, 2) of a count and of how long, or how much, was
    counted: then ``x · z`` is the log rate of one unit of that.
    """

    exposure: bool = static(default=False)

    numpy: ClassVar[bool] = True
    optima: ClassVar[Optima] = "one"

    def check(self, data: Any) -> None:
        check_data(data, (INPUTS, COUNTS_AND_EXPOSURES if self.exposure else COUNTS))

    def predictor_mean(self, f: Each) -> Each:
        """The rate of one unit of exposure."""
        return namespace(f).np.exp(f)

    def rough_factor(self, q: Any, records: Records) -> Any:
        """Least squares of the logarithms of rates, weighted by the counts."""
        x, y = records.data
        count, log_exposure = _counts(y, self.exposure)
        log_rate = namespace(count).np.log(count + 0.5) - log_exposure
        return _least_squares(q, x, log_rate, records.weights * (count + 0.5))

    def _moments(self, mean: Any, variance: Any, y: Any) -> Moments:
        xp = namespace(mean, y)
        count, log_exposure = _counts(y, self.exposure)
        rate = xp.np.exp(mean + variance / 2 + log_exposure)  # rates are log-normal
        value = count * (mean + log_exposure) - rate - xp.special.gammaln(count + 1)
        return value, count - rate, -rate


def _counts(y: Any, exposure: bool) -> tuple[Any, Any]:
    """Counts, and the logarithms of exposures."""
    np_ = namespace(y).np
    if not exposure:
        return np_.asarray(y), 0.0
    times = y[..., 1]  # zero where records are padded
    return y[..., 0], np_.log(np_.where(times > 0, times, 1.0))


def _least_squares(q: Any, x: Any, predictor: Any, weights: Any) -> Any:
    """The factor of predictors that were seen with these weights, in the family of ``q``."""
    linear = (weights * predictor) @ x
    return type(q)._of(precision_mean=linear, precision=q.gram(x, weights))


class NegativeBinomialRegression(PredictorModel):
    """Counts with log mean ``x · z`` and variance ``μ + dispersion μ²``; data as of Poisson's.

    The ``dispersion`` is known; at zero it would be :class:`PoissonRegression` (hilbe2011).
    """

    dispersion: float = static()
    exposure: bool = static(default=False)

    numpy: ClassVar[bool] = True
    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Gaussian, DiagonalGaussian)
    optima: ClassVar[Optima] = "one"

    def __post_init__(self) -> None:
        VARIANCE.check(dispersion=self.dispersion)

    def check(self, data: Any) -> None:
        PoissonRegression(self.exposure).check(data)

    def predictor_log_likelihood(self, f: Each, y: Any) -> Each:
        """``log NB(y | μ = exp(f) exposure)``, element by element."""
        return self.predictor_value_and_slope(f, y)[0]

    def predictor_value_and_slope(self, f: Each, y: Any) -> tuple[Each, Each]:
        """The slope is the count less a logistic share of ``count + 1 / dispersion``."""
        xp, size = namespace(f, y), 1 / self.dispersion
        count, log_exposure = _counts(y, self.exposure)
        log_rate = f + log_exposure + math.log(self.dispersion)
        gammaln, softplus = xp.special.gammaln, lambda odds: xp.np.logaddexp(0.0, odds)
        constant = gammaln(count + size) - math.lgamma(size) - gammaln(count + 1)
        value = constant + count * log_rate - (count + size) * softplus(log_rate)
        return value, count - (count + size) * xp.np.exp(-softplus(-log_rate))

    def predictor_mean(self, f: Each) -> Each:
        """The expected count of one unit of exposure."""
        return namespace(f).np.exp(f)

    def rough_factor(self, q: Any, records: Records) -> Any:
        """The rough factor of :class:`PoissonRegression`, as if counts were no more dispersed."""
        return PoissonRegression(self.exposure).rough_factor(q, records)


class GammaRegression(_Regression):
    """Positive values with log mean ``x · z`` and variance ``dispersion μ²``; data ``(x, y)``.

    The ``dispersion`` is known: one over the shape of the gamma distribution (mccullagh1989).
    """

    dispersion: float = static(default=1.0)

    numpy: ClassVar[bool] = True
    optima: ClassVar[Optima] = "one"
    columns: ClassVar[tuple[Column, ...]] = (INPUTS, POSITIVE_TARGETS)

    def __post_init__(self) -> None:
        VARIANCE.check(dispersion=self.dispersion)

    def predictor_mean(self, f: Each) -> Each:
        return namespace(f).np.exp(f)

    def rough_factor(self, q: Any, records: Records) -> Any:
        """Least squares of logarithms."""
        x, y = records.data
        np_ = namespace(y).np
        logs = np_.log(np_.where(y > 0, y, 1.0))
        return _least_squares(q, x, logs, records.weights / self.dispersion)

    def _moments(self, mean: Any, variance: Any, y: Any) -> Moments:
        np_, shape = namespace(mean, y).np, 1 / self.dispersion
        y = np_.where(np_.asarray(y) > 0, y, 1.0)  # zero where records are padded
        ratio = y * np_.exp(-mean + variance / 2)  # one over the mean is log-normal
        constant = shape * math.log(shape) - math.lgamma(shape)
        value = constant + (shape - 1) * np_.log(y) - shape * (mean + ratio)
        return value, (ratio - 1) / self.dispersion, -ratio / self.dispersion


class Adjusted(PredictorModel):
    """A regression whose records have an offset each, and a weight: how many like it there are.

    Data ``(x, y)``, of which the columns of ``y`` (n, k + 2) are those that the ``model`` takes,
    then the offset, which is added to ``x · z``, then the weight, which multiplies the record's
    log likelihood.
    """

    model: PredictorModel

    numpy: ClassVar[bool] = True
    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Gaussian, DiagonalGaussian)
    optima: ClassVar[Optima] = "one"

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
        """The mean of the model, of a record without an offset."""
        return self.model.predictor_mean(f)

    def rough_factor(self, q: Any, records: Records) -> Any:
        """That of the model, of records without an offset."""
        x, y = records.data
        own, _, weight = self._parts(y)
        return self.model.rough_factor(q, Records((x, own), records.weights * weight))

    def _parts(self, y: Any) -> tuple[Any, Any, Any]:
        own = y[..., 0] if y.shape[-1] == 3 else y[..., :-2]
        return own, y[..., -2], y[..., -1]
