"""The certificate of a posterior: its distance from the fixed point of its sites' updates."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from posterity.families import ExponentialFamily
from posterity.federation.messages import Report
from posterity.inference.descent import fisher_length


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The distance of a posterior from the fixed point of its own sites' free energy.

    ``residuals``: by site, the length of ``∇_μ E_q[log likelihood_k]/α - η_k`` in the Fisher
    metric, in sqrt(nats). ``distance``: half the squared length of their sum in nats, which to
    second order is the KL divergence by which one undamped round would move the posterior; the
    average contribution of noise is subtracted. ``error``: the standard error of ``distance``, zero
    without noise. ``distance`` and ``error`` are NaN if the gradient of a site is not finite, or if
    a site fails and the run skips it.
    """

    residuals: dict[str, float]
    distance: float
    error: float = 0.0

    @property
    def upper(self) -> float:
        """The distance plus two standard errors: an approximate upper confidence bound."""
        return self.distance + 2 * self.error

    @classmethod
    def of(cls, posterior: ExponentialFamily, reports: Mapping[str, Report]) -> "Certificate":
        """Make the certificate of a posterior from the gradients in its sites' reports."""
        noise = 0.0
        residuals = {}
        total: Any = posterior.zero()
        for site, report in reports.items():
            if report.direction is None:
                residuals[site] = noise = math.nan
                continue
            residuals[site] = float(fisher_length(posterior, report.direction))
            total = total + report.direction
            noise = noise + report.variance
        length = float(fisher_length(posterior, total))
        squared = length * length + 0.0 * noise
        distance = max(squared - noise, 0.0) / 2
        error = math.sqrt(4 * 2 * distance * noise + 2 * noise * noise) / 2
        return cls(residuals, distance if math.isfinite(squared) else math.nan, error)
