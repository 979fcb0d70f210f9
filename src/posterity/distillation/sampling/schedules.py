"""Step sizes: a number, or a schedule. A schedule is a hashable callable from the step number, an
int32 that may be traced, to the step size, as in optax; the one below compares by value.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from posterity.arguments import NOT_NEGATIVE, POSITIVE, Constraint
from posterity.distillation.pytrees import leaves
from posterity.errors import UsageError

Number = float | int | np.number | jax.Array
StepSize = float | int | jax.Array | Callable[[Any], Any]
"""A step size, or a function from the step number to the step size."""


def _is_schedule(x: Any) -> bool:
    return callable(x) and getattr(type(x), "__hash__", None) is not None


STEP_SIZE = Constraint(
    "a positive number, or a hashable function of the number of the step, as optax's or a frozen "
    "dataclass; None to find one",
    lambda x: x is None or _is_schedule(x) or POSITIVE.allows(x),
)


@leaves("a", "b", "gamma")
@dataclasses.dataclass(frozen=True)
class Polynomial:
    """The schedule ``a (b + t)^(-gamma)``, with positive ``a`` and ``b`` and nonnegative ``gamma``.
    For ``gamma`` in (1/2, 1] the sum of sizes is infinite and that of their squares finite, so that
    averages over the chain, each draw weighted by its size, converge to the posterior's.

    Source: welling2011, section 4.

    >>> float(Polynomial(a=1.0, b=100, gamma=0.5)(0))
    0.1...
    """

    a: float | int
    b: float | int = 1.0
    gamma: float | int = 0.55

    def __post_init__(self) -> None:
        POSITIVE.check(a=self.a, b=self.b)
        NOT_NEGATIVE.check(gamma=self.gamma)

    def __call__(self, step: ArrayLike) -> jax.Array:
        """The size of step ``step``."""
        number = jnp.asarray(step).astype(jnp.float32)
        return jnp.float32(self.a) * (jnp.float32(self.b) + number) ** -jnp.float32(self.gamma)


def adam(rate: Number, steady: Number, steps: Number) -> optax.GradientTransformation:
    """Return Adam with a rate constant for ``steady`` steps, then zero by half a cosine."""
    length = jnp.maximum(jnp.asarray(steps - steady), 1).astype(jnp.float32)

    def negative(count: Any) -> jax.Array:
        late = jnp.minimum(count - steady, length)
        falling = rate * (0.5 * (1 + jnp.cos(jnp.pi * late * (1 / length))))
        return -jnp.where(count < steady, rate, falling)

    return optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(negative))


def size_at(step_size: StepSize | None, step: ArrayLike) -> jax.Array:
    """Return the size of step ``step``, as float32; a UsageError if ``step_size`` is None, or if a
    schedule returns more than one number.
    """
    if step_size is None:
        raise UsageError(
            found="a kernel whose step_size is None, which is still to be found",
            expected="a size or a schedule, or a kernel within posterity.distillation.Langevin",
        )
    size = step_size(step) if callable(step_size) else step_size
    size = jnp.asarray(size).astype(jnp.float32)
    if size.shape:
        raise UsageError(
            found=f"a schedule that gives an array of shape {size.shape}",
            expected="one number, and sizes of parameters by `scale` of the kernel's init",
        )
    return size
