"""Laws as NumPyro's distributions: priors of a next model, say."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from posterity import families
from posterity.adapters.numpyro.models import library
from posterity.arrays.typing import Real
from posterity.errors import StructureError
from posterity.families.supports import PositiveNumbers, RealNumbers, Simplex, UnitInterval

NAMES: dict[type, str] = {
    families.LowRankGaussian: "LowRankMultivariateNormal",
    families.Gamma: "Gamma",
    families.Beta: "Beta",
    families.Dirichlet: "Dirichlet",
}
"""NumPyro's names of families that have the same parameters there."""
TRANSFORMS: dict[type, str] = {
    RealNumbers: "Identity",
    PositiveNumbers: "Exp",
    UnitInterval: "Sigmoid",
    Simplex: "StickBreaking",
}


def to_numpyro(law: families.Distribution) -> Any:
    """A law as a distribution of NumPyro in JAX's default precision, such as a next model's prior.

    Laws are a :class:`Gaussian`, :class:`DiagonalGaussian`, :class:`LowRankGaussian`,
    :class:`Gamma`, :class:`Beta` or :class:`Dirichlet`; a :class:`Plate` of one without mixing
    weights (members along the last batch axis become part of the event); a :class:`Mixture` of one;
    a :class:`Transformed` on one array; or a :class:`Product`, of which there is a dictionary by
    block. Others are a StructureError. Names of coordinates have no place there.

    >>> from posterity.families import Gamma
    >>> to_numpyro(Gamma.from_standard(shape=2.0, rate=4.0)).mean
    Array(0.5, dtype=float32)
    """
    dist = library().distributions
    if isinstance(law, families.Product):
        return {name: to_numpyro(block) for name, block in law.blocks.items()}
    if isinstance(law, families.Mixture):
        weights = dist.Categorical(logits=_narrow(law.log_weights))
        return dist.MixtureSameFamily(weights, to_numpyro(law.components))
    if isinstance(law, families.Plate) and law.weights is None:
        return to_numpyro(law.members).to_event(1)
    if isinstance(law, families.Transformed) and type(law.supports.tree) in TRANSFORMS:
        transform, support = TRANSFORMS[type(law.supports.tree)], law.supports.tree
        if len(support.shape) == 1:
            own = getattr(dist.transforms, f"{transform}Transform")()
            return dist.TransformedDistribution(to_numpyro(law.law), own)
    q: Any = law
    if type(law) is families.Gaussian:
        root = np.linalg.cholesky(np.asarray(q.covariance))
        return dist.MultivariateNormal(_narrow(q.mean), scale_tril=_narrow(root))
    if type(law) is families.DiagonalGaussian:
        return dist.Normal(_narrow(q.mean), _narrow(np.sqrt(q.variance))).to_event(1)
    if type(law) in NAMES:
        return getattr(dist, NAMES[type(law)])(*map(_narrow, q.standard_parameters().values()))
    raise StructureError(
        found=f"{law!r}",
        expected="a law of the table in docs/adapters/numpyro.md, on one array",
        fix="For laws on several sites use to_params and a guide; a block at a time, otherwise.",
    )


def _narrow(values: Real) -> Any:
    return jnp.asarray(np.asarray(values), jnp.result_type(float))
