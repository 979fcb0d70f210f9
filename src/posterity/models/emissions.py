"""What the states of a chain emit: log densities, and what observations add to a posterior."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from posterity.arrays.linear_algebra import quadratic, symmetric
from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Float, Real
from posterity.errors import StructureError
from posterity.families import Dirichlet, ExponentialFamily, NormalGamma, NormalWishart
from posterity.families.gaussian import LOG_2PI

EMISSIONS = (NormalWishart, NormalGamma, Dirichlet)


def check_emissions(members: ExponentialFamily) -> None:
    """Raise a StructureError unless it is known what such states emit."""
    if not isinstance(members, EMISSIONS):
        raise StructureError(
            found=f"emissions {members!r}",
            expected="NormalWishart or NormalGamma for vectors, Dirichlet for symbols",
            fix="Use one of these families for the members of the emissions' plate.",
        )


def symbols(members: ExponentialFamily) -> bool:
    """Whether they emit symbols 0, 1, …, rather than vectors."""
    return isinstance(members, Dirichlet)


def expected_log_density(members: Any, x: Real) -> Float[Real, "*shape k"]:
    """``E_q[log p(x | state)]`` in nats, of vectors (..., d) or symbols (...).

    Squares are of distances from the mean, so no digits are lost far from the origin.
    """
    if isinstance(members, Dirichlet):
        return jnp.moveaxis(members.mean_parameters, -1, 0)[x]
    if isinstance(members, NormalGamma):
        every, axis = members.coordinatewise, x[..., None, :]
        log, kappa = every.wishart.expected_log_determinant(), every.mean_precision
        gap = axis - members.mean
        terms = log - 1 / kappa - every.wishart.mean[..., 0, 0] * gap**2 - LOG_2PI
        return terms.sum(-1) / 2
    gap, wishart, size = x[..., None, :] - members.mean, members.wishart, members.own_size
    spread = size / members.mean_precision + quadratic(wishart.mean, gap)
    return (wishart.expected_log_determinant() - spread - size * LOG_2PI) / 2


def plugged_log_density(members: Any, x: np.ndarray) -> Float[np.ndarray, "*shape k"]:
    """``log p(x | state)`` at expected means, precisions or probabilities."""
    if isinstance(members, Dirichlet):
        return np.moveaxis(np.log(members.mean), -1, 0)[x]
    gap = x[..., None, :] - members.mean
    if isinstance(members, NormalGamma):
        precision = members.degrees_of_freedom / members.inverse_scale
        return (np.log(precision) - precision * gap**2 - LOG_2PI).sum(-1) / 2
    precision, size = members.wishart.mean, members.own_size
    _, logdet = np.linalg.slogdet(precision)
    return (logdet - quadratic(precision, gap) - size * LOG_2PI) / 2


def log_density(z: Any, x: Real) -> Float[Real, "*shape k"]:
    """``log p(x | state)`` for an event of the emissions' family, a state along its first axis."""
    if not isinstance(z, tuple):
        return jnp.log(jnp.moveaxis(z, -1, 0))[x]
    mean, precision = z
    gap = x[..., None, :] - mean
    if precision.ndim == mean.ndim:
        return (jnp.log(precision) - precision * gap**2 - LOG_2PI).sum(-1) / 2
    _, logdet = jnp.linalg.slogdet(precision)
    return (logdet - quadratic(precision, gap) - mean.shape[-1] * LOG_2PI) / 2


def statistics(like: ExponentialFamily, x: Real, weights: Float[Real, "n k"]) -> Any:
    """What weighted observations add to the posterior of each state: a factor (K,)."""
    count, np_ = weights.sum(0), namespace(weights, x).np
    if isinstance(like, Dirichlet):
        return Dirichlet(weights.T @ np_.eye(like.own_size, dtype=weights.dtype)[x])
    total = weights.T @ x
    if isinstance(like, NormalGamma):
        wide = count[:, None] * np_.ones_like(total)
        return NormalGamma(wide, wide, total, weights.T @ x**2)
    # A state at a time: all products of frames would be d times the data.
    scatter = np_.stack([(x.T * weights[:, k]) @ x for k in range(weights.shape[1])])
    return NormalWishart(count, count, total, symmetric(scatter))
