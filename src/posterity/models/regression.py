"""Logistic regression."""

from typing import Any, ClassVar

from jaxtyping import Float

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Real
from posterity.families import DiagonalGaussian, ExponentialFamily, Gaussian
from posterity.models.base import PredictorModel
from posterity.models.data import BINARY_LABELS, INPUTS, Column


class LogisticRegression(PredictorModel):
    """Labels ``y`` (n,) in {0, 1} with log odds ``x · z``; data ``(x, y)``; posterior Gaussian.

    There is no intercept but a column of ones in ``x``.
    """

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Gaussian, DiagonalGaussian)
    columns: ClassVar[tuple[Column, ...]] = (INPUTS, BINARY_LABELS)
    likelihood: ClassVar[str] = "bernoulli"

    def predictor_log_likelihood(self, f: Float[Real, "..."], y: Any) -> Float[Real, "..."]:
        """``-log(1 + exp(∓f))``, which keeps its digits where the label is all but sure."""
        np_ = namespace(f, y).np
        return -np_.logaddexp(0.0, np_.where(np_.asarray(y) > 0, -f, f))

    def predictor_mean(self, f: Float[Real, "..."]) -> Float[Real, "..."]:
        """The probability of a one."""
        np_ = namespace(f).np
        return np_.exp(-np_.logaddexp(0.0, -f))

    def predictor_value_and_slope(
        self, f: Float[Real, "..."], y: Any
    ) -> tuple[Float[Real, "..."], Float[Real, "..."]]:
        """The slope is ``± σ(∓f)``, from the one exponential that the value takes too."""
        np_ = namespace(f, y).np
        sign = np_.where(np_.asarray(y) > 0, 1.0, -1.0)
        signed = sign * f
        decay = np_.exp(-abs(signed))
        wrong = np_.where(signed > 0, decay, 1.0) / (1 + decay)
        return np_.minimum(signed, 0.0) - np_.log1p(decay), sign * wrong
