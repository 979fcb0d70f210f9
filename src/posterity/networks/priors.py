"""Priors of weights that local training knows."""

import dataclasses
from typing import Any

import numpy as np

from posterity.arguments import POSITIVE
from posterity.errors import UsageError
from posterity.families.layers import Layers
from posterity.families.network import Network


@dataclasses.dataclass(frozen=True)
class GaussianPrior:
    """Independent weights of mean zero.

    ``variance`` is one number, or one a layer; by default one over the root of a unit's inputs:
    of the rules of that kind the one whose evidence lower bound was highest over several data sets.

    >>> float(GaussianPrior().network(Layers.dense(4, 25, 2)).variance.max())
    0.5
    """

    variance: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if np.ndim(1.0 if self.variance is None else self.variance):
            object.__setattr__(self, "variance", tuple(np.asarray(self.variance).tolist()))
        for value in np.atleast_1d(1.0 if self.variance is None else self.variance):
            POSITIVE.check(variance=value)

    def variances(self, layers: Layers) -> np.ndarray:
        """The variance of each layer's weights."""
        if self.variance is None:
            return np.array([np.prod(layer.kernel[:-1]) ** -0.5 for layer in layers.layers])
        if np.size(self.variance) not in (1, len(layers)):
            raise UsageError(
                found=f"{np.size(self.variance)} variances for {len(layers)} layers",
                expected="one, or one a layer",
                fix="Give as many as there are layers.",
            )
        return np.broadcast_to(np.asarray(self.variance, float), len(layers))

    def network(self, layers: Layers) -> Network:
        """The prior of these layers."""
        return Network.prior(layers, self.variances(layers))


@dataclasses.dataclass(frozen=True)
class Horseshoe:
    """Each hidden unit has a scale of its own, half-Cauchy, which is near zero where it can be.

    A unit's incoming weights and its bias are ``τ β`` with ``β`` standard normal and ``τ``
    half-Cauchy of the scale ``scale``, so that a unit which is of no use is switched off as a
    whole; ``output_variance`` is that of the last layer's weights, as of a
    :class:`GaussianPrior`. ``slab`` bounds what is not switched off: ``τ`` stands for
    ``(1/τ² + 1/slab²)^(-1/2)``, the regularised horseshoe.

    Source: ghosh2018; ghosh2019, whose bound by auxiliary variables is replaced by quadrature.
    """

    scale: float = 1.0
    slab: float = 1.0
    output_variance: float | None = None

    def __post_init__(self) -> None:
        POSITIVE.check(scale=self.scale, slab=self.slab)
        POSITIVE.or_none().check(output_variance=self.output_variance)

    def variances(self, layers: Layers) -> np.ndarray:
        """The variance of a weight of each layer: of hidden ones ``slab² scale / (scale + slab)``.
        That is the second moment of the regularised scale.
        """
        hidden = self.slab**2 * self.scale / (self.scale + self.slab)
        last = GaussianPrior(self.output_variance).variances(layers)[-1]
        return np.array([hidden] * (len(layers) - 1) + [last])

    def network(self, layers: Layers) -> Network:
        """The Gaussian of the same two moments: what the factor of a site is relative to."""
        return Network.prior(layers, self.variances(layers))


Prior = GaussianPrior | Horseshoe | Network


def as_network(prior: Any, layers: Layers) -> Network:
    """The prior as a Gaussian over all weights of these layers, or a UsageError."""
    if isinstance(prior, GaussianPrior | Horseshoe):
        return prior.network(layers)
    if getattr(prior, "network_layers", None) == layers and prior.batch_shape == ():
        return prior
    raise UsageError(
        found=f"a prior {prior!r} for {layers.summary}",
        expected="a GaussianPrior, a Horseshoe, or one Network of the same layers",
        fix="For the layers of that network pass `network.layers`.",
    )
