"""Estimators of natural gradients that papers use, for `LocalUpdate(estimator)`.

They are noisier than those of the library, which has none that needs no gradient.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from posterity.arguments import Constraint, at_least
from posterity.arrays.tree import static
from posterity.arrays.typing import KeyArray
from posterity.inference.estimators import Sampling
from posterity.models import Model, Records
from posterity.runtime.fingerprint import versioned

BASELINE = Constraint(
    "'leave-one-out', or a number, such as 0.0 for none",
    lambda given: given == "leave-one-out" or isinstance(given, float | int),
)


@versioned("1")
class Reinforce(Sampling):
    """The score-function estimator with a baseline, as in gong2021.

    ``∇_η E_q[f] = E_q[(f - c)(s - μ)]`` for any constant ``c``. The paper subtracts one
    constant; ``baseline="leave-one-out"`` subtracts the mean of the other draws instead
    (kool2019), which is unbiased too and has a fraction of the variance.

    Source: gong2021, equation 18.
    """

    samples: int = static(default=30)
    baseline: str | float = static(default="leave-one-out")

    fitting: ClassVar[str] = "every model and family"

    def __post_init__(self) -> None:
        BASELINE.check(baseline=self.baseline)
        at_least(2 if self.baseline == "leave-one-out" else 1).check(samples=self.samples)

    def __call__(self, model: Model, q: Any, records: Records, *, key: KeyArray) -> Any:
        """Return ``F⁻¹`` times the mean of the products of centred values and scores."""
        z = q.sample(key, (self.samples,))
        values = jax.vmap(lambda point: model.total(point, records))(z)
        if isinstance(self.baseline, str):
            values = (values - values.mean()) * self.samples / (self.samples - 1)
        else:
            values = values - self.baseline
        score = q.sufficient_statistics(z) - q.mean_parameters
        gradient = q.inverse_fisher_product(values @ score / self.samples)
        return q.with_natural_parameters(gradient)


@versioned("1")
class BonnetPrice(Sampling):
    """Gaussian posteriors: means of ``∇f`` and ``∇²f`` at antithetic draws (opper2009).

    An odd number of samples is rounded up.
    """

    fewest: ClassVar[int] = 2
    fitting: ClassVar[str] = "twice differentiable log likelihoods under Gaussian posteriors"

    def _serves(self, q: Any) -> bool:
        return q.gaussian

    def __call__(self, model: Model, q: Any, records: Records, *, key: KeyArray) -> Any:
        """Return the factor of precision ``-E[∇²f]`` with slope ``E[∇f]`` at the mean of ``q``."""
        noise = jax.random.normal(key, ((self.samples + 1) // 2, q.own_size), np.float32)
        noise = noise.astype(np.result_type(q.precision.dtype))
        draws = q.at_noise(jnp.concatenate([noise, -noise]))
        f = lambda z: model.total(z, records)
        gradient = jax.vmap(jax.grad(f))(draws).mean(0)
        hessian = jax.vmap(jax.hessian(f))(draws).mean(0)
        return q.at_mean(gradient, q.curvature(hessian))
