"""Regression: linear, which is conjugate, and logistic."""

import math
from typing import ClassVar

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.tree import static
from posterity.arrays.typing import Float, Number, Real
from posterity.families import DiagonalGaussian, ExponentialFamily, Gaussian
from posterity.families.gaussian import LOG_2PI
from posterity.models.base import VARIANCE, ConjugateModel, Optima, PredictorModel
from posterity.models.data import BINARY_LABELS, INPUTS, TARGETS, Column
from posterity.models.records import Records


class LinearRegression(ConjugateModel[Gaussian], PredictorModel):
    """``y = x · z + ε`` with known noise variance; data ``(x, y)``; posterior Gaussian."""

    noise_variance: float = static(default=1.0)

    numpy: ClassVar[bool] = True
    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Gaussian,)
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

    def predictor_log_likelihood(self, f: Float[Real, "..."], y: Number) -> Float[Real, "..."]:
        """``log N(y | f, σ²)``, element by element."""
        residual = (y - f) ** 2 / self.noise_variance
        return -(residual + math.log(self.noise_variance) + LOG_2PI) / 2

    def predictor_value_and_slope(
        self, f: Float[Real, "..."], y: Number
    ) -> tuple[Float[Real, "..."], Float[Real, "..."]]:
        """``log N(y | f, σ²)`` and its derivative in ``f``."""
        return self.predictor_log_likelihood(f, y), (y - f) / self.noise_variance

    def predictor_mean(self, f: Float[Real, "..."]) -> Float[Real, "..."]:
        """The predictor itself."""
        return f


class LogisticRegression(PredictorModel):
    """Labels ``y`` (n,) in {0, 1} with log odds ``x · z``; data ``(x, y)``; posterior Gaussian.

    There is no intercept but a column of ones in ``x``.
    """

    numpy: ClassVar[bool] = True
    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Gaussian, DiagonalGaussian)
    columns: ClassVar[tuple[Column, ...]] = (INPUTS, BINARY_LABELS)
    optima: ClassVar[Optima] = "one"
    likelihood: ClassVar[str] = "bernoulli"

    def predictor_log_likelihood(self, f: Float[Real, "..."], y: Number) -> Float[Real, "..."]:
        """``-log(1 + exp(∓f))``, which keeps its digits where the label is all but sure."""
        np_ = namespace(f, y).np
        return -np_.logaddexp(0.0, np_.where(np_.asarray(y) > 0, -f, f))

    def predictor_mean(self, f: Float[Real, "..."]) -> Float[Real, "..."]:
        """The probability of a one."""
        np_ = namespace(f).np
        return np_.exp(-np_.logaddexp(0.0, -f))

    def predictor_value_and_slope(
        self, f: Float[Real, "..."], y: Number
    ) -> tuple[Float[Real, "..."], Float[Real, "..."]]:
        """The slope is ``± σ(∓f)``, from the one exponential that the value takes too.

        Compiled it is ``y - σ(f)``: where the value is not asked for, as by steps at a rate, a
        hyperbolic tangent takes half as long.
        """
        np_ = namespace(f, y).np
        if np_ is not np:
            yes = np_.asarray(y) > 0
            slope = np_.where(yes, 0.5, -0.5) - 0.5 * np_.tanh(0.5 * f)
            return -np_.logaddexp(0.0, np_.where(yes, -f, f)), slope
        sign = np_.where(np_.asarray(y) > 0, 1.0, -1.0)
        signed = sign * f
        decay = np_.exp(-abs(signed))
        total = 1 + decay  # a logarithm of it is off by 1e-16 at most, and takes half of log1p
        wrong = np_.where(signed > 0, decay, 1.0) / total
        return np_.minimum(signed, 0.0) - np_.log(total), sign * wrong
