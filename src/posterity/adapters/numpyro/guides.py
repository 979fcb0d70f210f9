"""NumPyro's guides as posteriors."""

import warnings
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from posterity.adapters.numpyro.models import library, supports_of
from posterity.arrays.namespace import namespace
from posterity.errors import ParameterError, UsageError
from posterity.families import DiagonalGaussian, Gaussian, Transformed
from posterity.families.names import entry_names
from posterity.families.unconstrained import Supports

GUIDES = (
    *("AutoNormal", "AutoDiagonalNormal", "AutoMultivariateNormal"),
    *("AutoLowRankMultivariateNormal", "AutoLaplaceApproximation"),
)
"""Guides that are Gaussians of unconstrained numbers."""


def from_guide(guide: Any, params: Mapping[str, Any]) -> Transformed:
    """Convert a fitted guide to a posterior over dictionaries of the sites' values.

    The result holds the guide's Gaussian over unconstrained coordinates, with its covariance in
    double precision, and the maps onto the sites' supports. It can be saved, sampled and pursued
    from. Coordinates are named after the sites: ``scale``, ``beta[0]``. Ledgers, ``fuse`` and
    ``diff`` take ``.law``, the Gaussian of these coordinates, with a Gaussian prior.

    Args:
        guide: ``AutoNormal``, ``AutoDiagonalNormal``, ``AutoMultivariateNormal``,
            ``AutoLowRankMultivariateNormal`` or ``AutoLaplaceApproximation`` that has been run, for
            example by ``SVI.init``.
        params: parameters from ``SVI.get_params(state)``.

    Raises:
        UsageError: for other guides, one that has not been run, and missing parameters.
        ParameterError: for parameters that are not finite, and curvature that is not positive.
    """
    _check_guide(guide)
    supports = supports_of(guide.prototype_trace)
    kind = type(guide).__name__
    try:
        if kind != "AutoNormal":
            supports = _in_order(guide, params, supports)
        law = _gaussian(guide, params, supports)
    except KeyError as error:
        raise UsageError(
            found=f"no parameter {error} for {kind}",
            expected="the parameters of this guide, as SVI.get_params(state) gives",
        ) from error
    return Transformed(law, supports).named(_coordinates(supports))


def _check_guide(guide: Any) -> None:
    guides = library().infer.autoguide
    kind = type(guide).__name__
    ours = isinstance(guide, guides.AutoGuide) and type(guide) is getattr(guides, kind, None)
    known = f"one of {list(GUIDES)}; of others draws, guide.sample_posterior, by from_samples"
    fresh = getattr(guide, "prototype_trace", None) is None
    fitted = "one that was run, with what SVI.get_params(state) gives"
    UsageError.check(
        (not ours or kind not in GUIDES, f"a guide of type {kind}", known),
        (fresh, f"a guide {kind} that has not been run", fitted),
    )


def _gaussian(guide: Any, params: Mapping[str, Any], supports: Supports) -> Any:
    if type(guide).__name__ == "AutoNormal":  # AutoNormal has these for each site
        key = f"{{}}_{guide.prefix}_{{}}".format

        def side_by_side(part):
            return [_wide(params[key(n, part)]).ravel() for n in supports.tree]

        mean, scale = (np.concatenate(side_by_side(part)) for part in ("loc", "scale"))
        return DiagonalGaussian.from_standard(mean, scale**2)
    params = {name: jnp.asarray(value) for name, value in params.items()}
    with warnings.catch_warnings():  # a guide only warns of a Hessian that is not positive
        warnings.filterwarnings("ignore", message="Hessian of log posterior")
        normal = guide.get_posterior(params)
    if not hasattr(normal, "scale_tril"):
        return DiagonalGaussian.from_standard(_wide(normal.mean), _wide(normal.variance))
    root = _wide(normal.scale_tril)
    if not np.diag(root).all():
        raise ParameterError(
            found="a Hessian that is not positive definite at the guide",
            expected="a mode with curvature in every direction, of a guide fitted for long enough",
        )
    return Gaussian.from_standard(_wide(normal.mean), root @ root.T)


def _in_order(guide: Any, params: Mapping[str, Any], supports: Supports) -> Supports:
    """Return the sites in the order of the guide's vector, from medians of a rising vector."""
    loc = f"{guide.prefix}_loc"
    rising = np.linspace(-1.0, 1.0, np.size(params[loc]), dtype=np.float32)
    medians = guide.median({**params, loc: jnp.asarray(rising)})

    def of(own, value):
        return float(np.mean(own.inverse(namespace(value), value)))

    heights = {name: of(own, _wide(medians[name])) for name, own in supports.tree.items()}
    return Supports({name: supports.tree[name] for name in sorted(heights, key=heights.get)})  # type: ignore[arg-type]


def _wide(values: object) -> np.ndarray:
    return np.asarray(values, dtype=float)


def _coordinates(supports: Supports) -> list[str]:
    """Return names of the unconstrained coordinates, in order: ``scale``, ``beta[0]``, ``m[1,2]``.

    Those of a simplex are stick-breaking coordinates, one fewer than its entries; those of a matrix
    are along one axis.
    """
    return [
        label
        for name, support in supports.tree.items()
        for label in entry_names(name, support.free_shape)
    ]
