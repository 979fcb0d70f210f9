"""Where a posterior is, and of what shape: its mode and the curvature there, in double precision.

Chains in those coordinates see a law of about unit scale, whatever the units of the data.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import PyTree

from posterity.arrays.search import root_of_inverse
from posterity.families import Distribution
from posterity.families.unconstrained import unconstrained
from posterity.models import Model

DENSE = 500
"""Parameters up to which the whole curvature is computed; beyond it, its diagonal."""
MOST = 50_000
"""Records that the mode is sought with; they stand for all."""
STEPS = 500
WIDEST = 1e3
"""Standard deviations, in unconstrained coordinates, that nothing is wider than at a mode where
the curvature says nothing."""


def laplace(model: Model, prior: Distribution, data: PyTree) -> tuple[Any, Any]:
    """The mode (d,) in unconstrained coordinates, and a factor of the covariance there.

    The factor is a triangle (d, d), or a diagonal (d,) where there are many parameters. Directions
    along which the density does not fall are as wide as the curvature's size would have them.
    """
    count = len(jax.tree.leaves(data)[0])
    some = np.random.default_rng(0).permutation(count)[:MOST] if count > MOST else slice(None)
    with jax.enable_x64(True):
        seen = jax.tree.map(lambda leaf: _double(leaf[some]), data)
        share = count / len(jax.tree.leaves(seen)[0])
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), prior)
        bijection = unconstrained(wide)
        size = bijection.size

        def energy(u: Any, data: PyTree) -> Any:
            tree = bijection.unravel(u)
            z = bijection.forward(tree)
            density = wide.log_prob(z) + bijection.log_det(tree)
            return -density - share * model.log_likelihood(z, data).sum()

        value = jax.jit(jax.value_and_grad(energy))
        # One program for every curvature that is asked for: compiling takes longer than all else.
        products = jax.jit(lambda u, rows: _products(energy, u, rows, seen))

        # In the units of the curvature at the start, as columns may differ by orders of magnitude.
        at = np.zeros(size)
        scale = 1 / np.sqrt(np.maximum(np.abs(_diagonal(products, at)), 1 / WIDEST**2))
        for _ in range(3):

            def inside(
                v: np.ndarray, at: PyTree = at, scale: PyTree = scale
            ) -> tuple[Any, np.ndarray]:
                found, slope = value(jnp.asarray(at + scale * v), seen)
                if not (np.isfinite(found) and np.isfinite(slope).all()):
                    return 1e300, np.zeros_like(v)
                return float(found), scale * np.asarray(slope)

            end = scipy.optimize.minimize(
                inside, np.zeros(size), jac=True, method="L-BFGS-B", options={"maxiter": STEPS}
            )
            at = at + scale * end.x
            scale = 1 / np.sqrt(np.maximum(np.abs(_diagonal(products, at)), 1 / WIDEST**2))
        if size > DENSE:
            return at.astype(np.float32), scale.astype(np.float32)
        hessian = np.asarray(products(at, np.eye(size)))
    return at.astype(np.float32), root_of_inverse(hessian, scale).astype(np.float32)


def _products(energy: Any, u: Any, rows: Any, data: PyTree) -> Any:
    """The curvature times each row (k, d): (k, d); one after another where they are long."""
    slope = lambda u: jax.grad(energy)(u, data)
    product = lambda row: jax.jvp(slope, (u,), (row,))[1]
    return jax.vmap(product)(rows) if rows.shape[1] <= DENSE else jax.lax.map(product, rows)


def _diagonal(products: Any, at: np.ndarray) -> np.ndarray:
    """The diagonal of the curvature, exactly for few parameters, else by random signs."""
    size = len(at)
    if size <= DENSE:
        return np.diagonal(products(at, np.eye(size))).copy()
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (32, size))
    return np.mean(signs * np.asarray(products(at, signs)), axis=0)


def _double(leaf: Any) -> Any:
    return jnp.asarray(leaf, jnp.float64 if np.asarray(leaf).dtype.kind == "f" else jnp.int64)
