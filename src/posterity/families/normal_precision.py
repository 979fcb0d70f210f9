"""The base of posteriors of a Gaussian's mean and precision."""

from typing import ClassVar, Self

import numpy as np

from posterity.arrays.leaves import known_at_rest
from posterity.arrays.linear_algebra import outer
from posterity.arrays.typing import ArrayLike, Float, Floats, Real
from posterity.families.emitting import Emitting
from posterity.families.formulas import INVERSE_GAMMA, STUDENT_T
from posterity.families.gaussian import LOG_2PI
from posterity.families.marginals import Closed, Marginal, same_shape
from posterity.runtime.jax_loaded import is_jax


class NormalPrecision(Emitting):
    """Base class of posteriors of a Gaussian's mean and precision; ``κ`` and ``ν`` count
    observations. Precisions are matrices, or numbers for each coordinate.
    """

    mean_precision: Floats
    degrees: Floats
    precision_mean: Floats
    scatter: Floats

    base_measure = -LOG_2PI / 2
    normalizer_stays = True
    quantities = ("mean", "variance")

    whole: ClassVar[bool]
    """True if precisions are matrices; False if they are numbers for each coordinate."""

    @classmethod
    def _times(cls, numbers: Real, vector: Real) -> Real:
        """Return each member's number, or its numbers by coordinate, times its vector."""
        return (numbers[..., None] if cls.whole else numbers) * vector

    @classmethod
    def _times_square(cls, numbers: Real, mean: Real) -> Real:
        """Return ``κ m mᵀ``, in the shape of the scatter."""
        return numbers[..., None, None] * outer(mean) if cls.whole else numbers * mean**2

    @property
    def _rows(self) -> int:
        return self.own_size if self.whole else 1

    @classmethod
    def _about_mean(
        cls, mean: Real, mean_precision: Real, inverse_scale: Real, degrees_of_freedom: Real
    ) -> Self:
        return cls._of(
            mean_precision=mean_precision,
            degrees=degrees_of_freedom - (mean.shape[-1] if cls.whole else 1),
            precision_mean=cls._times(mean_precision, mean),
            scatter=inverse_scale + cls._times_square(mean_precision, mean),
        )

    @property
    def mean(self) -> Float[Real, "*batch d"]:
        """The expected mean ``m = E[μ]``."""
        return self._mean if is_jax(self._mean) else self._mean.copy()

    @known_at_rest
    def _mean(self) -> Float[Real, "*batch d"]:
        kappa = self.mean_precision
        return self.precision_mean / (kappa[..., None] if self.whole else kappa)

    @property
    def degrees_of_freedom(self) -> Floats:
        """The degrees of freedom ``ν``."""
        return self.degrees + self._rows

    @property
    def inverse_scale(self) -> Floats:
        """The inverse scale ``S⁻¹``, the scatter about the mean."""
        return self.scatter - self._times_square(self.mean_precision, self._mean)

    def _translate(self, offset: ArrayLike) -> Self:
        kappa = self.mean_precision
        mean = self._mean + self._own_offset(offset)
        scatter = self.inverse_scale + self._times_square(kappa, mean)
        parts = kappa, self.degrees, self._times(kappa, mean), scatter
        if mean.shape != self.precision_mean.shape:
            return type(self)(*parts)  # which refuses a longer batch
        return self._of(**dict(zip(self.coordinates, parts, strict=True)))

    def location(self) -> Float[Real, "*batch d"]:
        return self.mean

    def expected_moments(self) -> tuple[Real, Real] | None:
        """Return a record's mean and covariance ``S⁻¹/(ν - d - 1)``; NaN unless ``ν > d + 1``."""
        left = np.asarray(self.degrees_of_freedom, float) - self._rows - 1
        left = np.where(left > 0, left, np.nan)
        left = left[..., None, None] if self.whole else left
        return np.asarray(self.mean, float), np.asarray(self.inverse_scale, float) / left

    def marginals(self) -> list[Marginal]:
        """Return Student's t laws of the means, and inverse gamma laws of the variances."""
        kappa = self.mean_precision
        s = self.scatter
        nu = np.asarray(self.degrees_of_freedom, float)
        if self.whole:
            s = np.diagonal(s, axis1=-2, axis2=-1)
            kappa = kappa[..., None]
            nu = nu[..., None] - self.own_size + 1
        mean, kappa, s, nu = same_shape(self.mean, kappa, s - kappa * self._mean**2, nu)
        scale = np.sqrt(s / (kappa * nu))
        return [Closed(STUDENT_T, (mean, scale, nu)), Closed(INVERSE_GAMMA, (nu / 2, s / 2))]
