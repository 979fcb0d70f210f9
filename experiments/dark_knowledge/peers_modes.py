"""Plug-in networks: one vector of weights, by the likelihood or with the prior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from numpy.typing import NDArray

Array = NDArray[np.float64]
STARTS = 5


def mode(
    log_density: Callable[[Any], Any],
    size: int,
    *,
    seed: int,
    starts: int = STARTS,
    steps: int = 5000,
) -> Array:
    """(size,) the best of several climbs by L-BFGS, in double precision."""
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        value = jax.jit(jax.value_and_grad(lambda z: -log_density(z)))

        def both(z: Array) -> tuple[float, Array]:
            found, slope = value(jnp.asarray(z))
            return float(found), np.asarray(slope, np.float64)

        found = [
            scipy.optimize.minimize(
                both,
                0.5 * rng.normal(size=size),
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": steps},
            )
            for _ in range(starts)
        ]
    return min(found, key=lambda end: end.fun).x
