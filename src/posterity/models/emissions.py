"""What the states of a chain emit: log densities, and what observations add to a posterior.

Families say it themselves (:class:`~posterity.families.emitting.Emitting`), so that a user's own
can be emitted too.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from posterity.arrays.linear_algebra import quadratic
from posterity.arrays.typing import Float, Real
from posterity.errors import StructureError
from posterity.families import ExponentialFamily
from posterity.families.emitting import Emitting
from posterity.families.gaussian import LOG_2PI


def check_emissions(members: ExponentialFamily) -> None:
    """Raise a StructureError unless it is known what such states emit."""
    if not isinstance(members, Emitting):
        raise StructureError(
            found=f"emissions {members!r}",
            expected="NormalWishart or NormalGamma for vectors, Dirichlet for symbols",
            fix="Use one of these families, or your own kind of "
            "posterity.families.emitting.Emitting, for the members of the emissions' plate.",
        )


def symbols(members: Any) -> bool:
    """Whether they emit symbols 0, 1, …, rather than vectors."""
    return members.emits_symbols


def expected_log_density(members: Any, x: Real) -> Float[Real, "*shape k"]:
    """``E_q[log p(x | state)]`` in nats, of vectors (..., d) or symbols (...)."""
    return members.expected_log_likelihood(x)


def plugged_log_density(members: Any, x: np.ndarray) -> Float[np.ndarray, "*shape k"]:
    """``log p(x | state)`` at expected means, precisions or probabilities."""
    return members.plugged_log_likelihood(x)


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


def statistics(like: Any, x: Real, weights: Float[Real, "n k"]) -> Any:
    """What weighted observations add to the posterior of each state: a factor (K,)."""
    return like.observed(x, weights)
