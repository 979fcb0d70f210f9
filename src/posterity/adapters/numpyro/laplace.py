"""A Laplace approximation of a NumPyro model, from a point that was found elsewhere."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.adapters.numpyro.models import joint
from posterity.errors import ParameterError, UsageError
from posterity.families.gaussian import Gaussian
from posterity.families.transformed import Supports
from posterity.families.unconstrained import Bijection

STEPS = 50
CONVERGED = 1e-14
"""The Newton decrement, in nats, at which the mode is reached."""
HALVINGS = 30


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
    supports = Supports.of({name: target.supports.tree[name] for name in start})
    bijection = Bijection(supports.tree)

    def density(u: Any) -> Any:
        parts = bijection.unravel(u)
        return target.log_density(bijection.forward(parts)) + bijection.log_det(parts)

    begin = bijection.ravel(bijection.inverse(_inside(start, supports)))
    with jax.enable_x64(True):
        mode, precision = _newton(density, jnp.asarray(begin))
    return Gaussian.from_standard(mode, np.linalg.inv(precision)), supports


def _newton(density: Callable[[Any], Any], u: Any) -> tuple[np.ndarray, np.ndarray]:
    value = jax.jit(density)
    derivatives = jax.jit(lambda at: (jax.grad(density)(at), -jax.hessian(density)(at)))
    for _ in range(STEPS):
        slope, precision = map(np.asarray, derivatives(u))
        if not (np.isfinite(slope).all() and np.isfinite(precision).all()):
            break
        # Away from the mode curvature may be negative: its size still says how far to go.
        sizes, axes = np.linalg.eigh(precision)
        least = max(1e-12 * float(abs(sizes).max()), float(np.finfo(float).tiny))
        step = axes @ ((axes.T @ slope) / np.maximum(abs(sizes), least))
        gain = float(slope @ step) / 2
        if gain < CONVERGED and sizes.min() > 1e-10 * sizes.max():
            return np.asarray(u), (precision + precision.T) / 2
        here, size = float(value(u)), 1.0
        for _ in range(HALVINGS):
            if float(value(u + size * step)) > here - 1e-12 * abs(here):
                break
            size /= 2
        u = u + size * step
    raise ParameterError(
        found="a density without a mode, or with one that is flat in some direction, near the "
        "point of the guide",
        expected="a mode with curvature in every direction",
        fix="Fit the guide for longer; or take out of the model what the data say nothing about.",
    )


def _inside(start: Mapping[str, Any], supports: Supports) -> dict[str, Any]:
    """Simplices that float32 left a little off."""
    return {
        name: value / value.sum(-1, keepdims=True) if support.axes == 1 else value
        for (name, support), value in zip(supports.tree.items(), start.values(), strict=True)
    }
