"""Targets of pursuits: a log density up to a constant, or a model, a prior and records."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families import Distribution
from posterity.families.checks import check_prior
from posterity.families.unconstrained import Supports
from posterity.models import Model, Records
from posterity.models.tables import columns_of
from posterity.runtime.tracing import Operations, traced


class Target(eqx.Module):
    """A log density ``log L(z)`` in nats, up to a constant, as a pytree that holds its data."""

    @abc.abstractmethod
    def log_density(self, z: PyTree) -> Float[jax.Array, ""]:
        """Return ``log L(z)`` of one event, in nats; traced."""


class Function(Target):
    """A function of one event as a target."""

    function: Callable[[Any], Any]

    def log_density(self, z: PyTree) -> Any:
        """Return the value of the function; a StructureError unless it is one number."""
        value = jnp.asarray(self.function(z))
        if value.shape != ():
            raise StructureError(
                found=f"a log density of shape {value.shape}",
                expected="one number for one event, summed over records and coordinates",
            )
        return value


class Joint(Target):
    """The target ``log p(z) + Σ log p(record | z)`` in nats, of a model, a prior and records.

    ``prior`` is one proper law of the model's parameters, else a UsageError, and ``data`` are in
    the model's format. Columns of a data frame are put in the order of the prior's names; if it has
    none, they keep their own order.

    >>> from posterity.families import Gaussian
    >>> from posterity.models import LogisticRegression
    >>> data = (np.array([[1.0], [-1.0]]), np.array([1.0, 0.0]))
    >>> joint = Joint(LogisticRegression(), Gaussian.from_standard([0.0], [[1.0]]), data)
    >>> round(float(joint.log_density(np.zeros(1))), 3)
    -2.305
    """

    model: Model
    prior: Any
    data: Records

    def __init__(self, model: Model, prior: Distribution, data: Any):
        check_prior(prior)
        self.model = model
        self.prior = prior
        self.data = Records.of_model(model, data, columns_of(prior)).widened()

    def log_density(self, z: PyTree) -> Float[jax.Array, ""]:
        """Return the log density with all records, in nats."""
        return self.prior.log_prob(z) + self.model.total(z, self.data)


class Free(Target):
    """A target over flat vectors, the unconstrained coordinates of events with supports."""

    inner: Target
    supports: Supports = eqx.field(static=True)

    def log_density(self, z: PyTree) -> Any:
        """Return the log density, including the log Jacobian of unconstrained coordinates."""
        u = self.supports.unravel(z)
        return self.inner.log_density(self.supports.forward(u)) + self.supports.log_det(u)


class Traced(Target):
    """A target that JAX has traced: programs of it are compiled once for all targets that differ in
    their data alone, and what the caller changes later has no effect.
    """

    data: Any
    """The arrays of the log density."""
    operations: Operations = eqx.field(static=True)

    def log_density(self, z: PyTree) -> Any:
        """Return the log density of an event of the traced shape, in nats."""
        return self.operations(self.data, z)


def as_target(target: object) -> Target:
    """Return a target unchanged, or a function of one event as a target; else a UsageError."""
    if isinstance(target, Target):
        return target
    if callable(target):
        return Function(target)
    raise UsageError(
        found=f"a target that is a {type(target).__name__}",
        expected="a function from an event to its log density, or Joint(model, prior, data)",
    )


def traced_at(target: Target, z: PyTree, base: PyTree) -> Traced:
    """Trace a target at an event ``z`` of a base, in double precision; raise an error unless the
    log density is traceable and one real number.
    """
    target = jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array(leaf) else leaf, target)
    try:
        operations, data = traced(target.log_density, z)
    except StructureError:
        raise
    except Exception as error:  # whatever the user's function raises
        raise UsageError(
            found=f"{type(error).__name__}: {error} from the log density at an event of {base!r}",
            expected="a function of one event that JAX can trace and differentiate",
        ) from error
    kind = operations.outputs.dtype
    if not np.issubdtype(kind, np.floating):
        raise ParameterError(found=f"a log density of {kind}", expected="a real number in nats")
    return Traced(jax.tree.map(jnp.asarray, data), operations)
