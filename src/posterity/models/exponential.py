"""The Beta-exponential model of the paper: no conjugate pair, but all expectations are known."""

from typing import Any, ClassVar

from jaxtyping import Bool, Float

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Real
from posterity.families import Beta, ExponentialFamily
from posterity.models.base import ExpectedModel
from posterity.models.data import TIMES, Column


class BetaExponential(ExpectedModel[Beta]):
    """Waiting times ``x`` (n,), exponential with mean ``z`` in (0, 1); posterior Beta.

    Source: gong2021, section V.
    """

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Beta,)
    columns: ClassVar[tuple[Column, ...]] = (TIMES,)

    def log_likelihood(self, z: Any, data: Any) -> Float[Real, " n"]:
        """``-log z - x / z``."""
        return -namespace(z).np.log(z) - data / z

    def expected_log_likelihood(self, q: Beta, data: Any) -> Float[Real, " n"]:
        """``-(ψ(a) - ψ(a + b)) - x (a + b - 1) / (a - 1)``; infinite unless ``a > 1``."""
        log_mean = q.mean_parameters[0]
        return -log_mean - data * (q.a + q.b - 1) / q.a_minus_one

    def admits(self, q: ExponentialFamily) -> Bool[Real, ""]:
        """Whether ``E[1/z]`` is finite: ``a > 1``."""
        return q.a_minus_one > 0  # pyright: ignore[reportAttributeAccessIssue]
