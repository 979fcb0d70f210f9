"""A Laplace approximation of a NumPyro model, from a point that was found elsewhere."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from posterity.adapters.numpyro.models import joint
from posterity.arrays.search import newton, step_by_curvature
from posterity.errors import ParameterError, UsageError
from posterity.families.gaussian import Gaussian
from posterity.families.unconstrained import Supports

STEPS = 50
CONVERGED = 1e-4
"""The distance from the mode, in standard deviations, at which it is reached."""


def at_mode(
    model: Callable[..., Any], start: Mapping[str, Any], args: Any, kwargs: Any
) -> tuple[Gaussian, Supports]:
    """The Gaussian of mode and curvature of the unconstrained numbers, and the sites' supports.

    Newton's method with halved steps, in double precision.

    Raises:
        UsageError: for a model that does not run with these arguments.
        ParameterError: where there is no mode with curvature in every direction near the start.
    """
    try:
        target = joint(model, *args, **kwargs)
    except UsageError as error:
        if args or kwargs:
            raise
        raise UsageError(
            found=f"an AutoDelta without its data ({error.found})",
            expected="from_guide(guide, params, *args) with the arguments of the model: a point "
            "alone says nothing of the spread around it",
            fix="Pass them as SVI.run had them.",
        ) from error
    supports = Supports({name: target.supports.tree[name] for name in start})

    def density(u: Any) -> Any:
        parts = supports.unravel(u)
        return target.log_density(supports.forward(parts)) + supports.log_det(parts)

    begin = supports.ravel(supports.inverse(_inside(start, supports)))
    with jax.enable_x64(True):
        value = jax.jit(density)
        derivatives = jax.jit(lambda at: (jax.grad(density)(at), -jax.hessian(density)(at)))

        def curved(at: Any) -> tuple[np.ndarray, np.ndarray]:
            slope, precision = map(np.asarray, derivatives(at))
            return slope, (precision + precision.T) / 2

        end = newton(
            lambda at: float(value(at)),
            lambda at: step_by_curvature(*curved(at)),
            begin,
            most=STEPS,
        )
        precision = curved(end.at)[1]
    sizes = np.linalg.eigvalsh(np.nan_to_num(precision))
    if not (end.distance <= CONVERGED and sizes.min() > 1e-10 * sizes.max()):
        raise ParameterError(
            found="a density without a mode, or with one that is flat in some direction, near the "
            "point of the guide",
            expected="a mode with curvature in every direction",
            fix="Fit the guide for longer; or take out of the model what the data say nothing "
            "about.",
        )
    return Gaussian.from_standard(end.at, np.linalg.inv(precision)), supports


def _inside(start: Mapping[str, Any], supports: Supports) -> dict[str, Any]:
    """Simplices that float32 left a little off."""
    return {
        name: value / value.sum(-1, keepdims=True) if support.axes == 1 else value
        for (name, support), value in zip(supports.tree.items(), start.values(), strict=True)
    }
