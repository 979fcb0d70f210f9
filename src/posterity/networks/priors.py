"""Priors of weights for local training."""

import dataclasses
from typing import Any

import numpy as np

from posterity.arguments import POSITIVE
from posterity.errors import UsageError
from posterity.families.layers import Layers
from posterity.families.network import Network


@dataclasses.dataclass(frozen=True)
class GaussianPrior:
    """A prior of independent Gaussian weights of mean zero.

    ``variance`` is one number, or one per layer. By default it is one over the square root of a
    unit's number of inputs; among such rules this had the highest ELBO over several data sets.

    >>> float(GaussianPrior().network(Layers.dense(4, 25, 2)).variance.max())
    0.5
    """

    variance: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.variance is None:
            return
        values = np.atleast_1d(self.variance).tolist()
        for value in values:
            POSITIVE.check(variance=value)
        if np.ndim(self.variance):
            object.__setattr__(self, "variance", tuple(values))

    def variances(self, layers: Layers) -> np.ndarray:
        """Return the variance of each layer's weights."""
        if self.variance is None:
            return np.array([np.prod(layer.kernel[:-1]) ** -0.5 for layer in layers.layers])
        if np.size(self.variance) not in (1, len(layers)):
            raise UsageError(
                found=f"{np.size(self.variance)} variances for {len(layers)} layers",
                expected="one, or one a layer",
            )
        return np.broadcast_to(np.asarray(self.variance, float), len(layers))

    def network(self, layers: Layers) -> Network:
        """Return the prior of these layers."""
        return Network.prior(layers, self.variances(layers))


@dataclasses.dataclass(frozen=True)
class Horseshoe:
    """A prior with a half-Cauchy scale for each hidden unit, which switches off unused units.

    A unit's incoming weights and its bias are ``τ β`` with standard normal ``β`` and half-Cauchy
    ``τ`` of the scale ``scale``. ``slab`` regularises the horseshoe: ``τ`` is replaced by ``(1/τ²
    + 1/slab²)^(-1/2)``. ``output_variance`` is the variance of the last layer's weights, as in
    :class:`GaussianPrior`.

    Source: ghosh2018; ghosh2019, whose bound by auxiliary variables is replaced by quadrature.
    """

    scale: float = 1.0
    slab: float = 1.0
    output_variance: float | None = None

    def __post_init__(self) -> None:
        POSITIVE.check(scale=self.scale, slab=self.slab)
        POSITIVE.or_none().check(output_variance=self.output_variance)

    def variances(self, layers: Layers) -> np.ndarray:
        """Return the variance of each layer's weights. For hidden layers it is the second moment of
        the regularised scale, ``slab² scale / (scale + slab)``.
        """
        hidden = self.slab**2 * self.scale / (self.scale + self.slab)
        last = GaussianPrior(self.output_variance).variances(layers)[-1]
        return np.array([hidden] * (len(layers) - 1) + [last])

    def network(self, layers: Layers) -> Network:
        """Return the Gaussian with the same two moments, relative to which factors are computed."""
        return Network.prior(layers, self.variances(layers))


Prior = GaussianPrior | Horseshoe | Network


def as_network(prior: Any, layers: Layers) -> Network:
    """Return a prior as a Gaussian over all weights of these layers, or raise a UsageError."""
    if isinstance(prior, GaussianPrior | Horseshoe):
        return prior.network(layers)
    if getattr(prior, "network_layers", None) == layers and prior.batch_shape == ():
        return prior
    raise UsageError(
        found=f"a prior {prior!r} for {layers.summary}",
        expected="a GaussianPrior, a Horseshoe, or one Network of the same layers",
    )
