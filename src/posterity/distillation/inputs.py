"""Inputs D' on which a student listens to its teacher: generated, as labels are not needed.

Source: korattikara2015, section 3, for perturbed data and boxes; zhang2018 for mixtures.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from posterity.arguments import POSITIVE
from posterity.distillation.sampling import noise
from posterity.distillation.sampling.schedules import NONNEGATIVE
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.models.data import real_numbers

SPREAD = 0.1
"""Noise on inputs, in standard deviations of their columns, unless told otherwise."""
MANY = 64
"""Columns from which noise is drawn by counting bits, as a chain's is."""


class Inputs(eqx.Module):
    """A law of inputs to draw from."""

    @abc.abstractmethod
    def sample(self, n: int, *, key: jax.Array) -> Any:
        """``n`` inputs (n, ...), in single precision; traced."""

    def harder(self, x: Any, gap: Callable[[Any], Any]) -> Any:
        """Inputs instead of ``x`` on which the student has more to learn, given its gap (n,)."""
        del gap
        return x


class Perturbed(Inputs):
    """Inputs of a data set, with Gaussian noise added.

    ``noise`` is a standard deviation in the units of ``x``, one for all or one a column; by default
    a tenth of each column's own.

    >>> from posterity.distillation import Perturbed
    >>> Perturbed(np.zeros((10, 3)), noise=0.05).sample(4, key=jax.random.key(0)).shape
    (4, 3)
    """

    x: Any
    noise: Any

    def __init__(self, x: Any, noise: Any = None):
        """Raises a StructureError for what are no inputs, a ParameterError unless all is finite, a
        UsageError for a noise that is negative.
        """
        x = real_numbers(x, "the inputs")
        if noise is None:
            noise = SPREAD * x.std(0, dtype=np.float64)
        noise = real_numbers(noise, "the noise", records=False)
        NONNEGATIVE.check(noise=float(noise.min(initial=np.inf)))
        _check_columns(noise, "the noise", x)
        self.x, self.noise = _single(x), _single(noise)

    def sample(self, n: int, *, key: jax.Array) -> Any:
        """Records picked at random, each with noise of its own."""
        picked = self.x[noise.indices(jax.random.fold_in(key, 0), (n,), len(self.x))]
        # Of many columns exact normals would take as long as all the rest of a step.
        kind = "normal" if self.x[0].size < MANY else "binomial"
        return picked + self.noise * noise.normal(jax.random.fold_in(key, 1), picked, kind)


class Mixup(Inputs):
    """Points between two inputs of a data set, picked at random: ``u x + (1 - u) x'``.

    ``concentration`` is that of the symmetric Beta law of ``u``; 1 is uniform.
    """

    x: Any
    concentration: float = eqx.field(static=True)

    def __init__(self, x: Any, concentration: float | int = 1.0):
        """Raises a StructureError for what are no inputs, a ParameterError unless finite."""
        POSITIVE.check(concentration=concentration)
        self.x, self.concentration = _single(real_numbers(x, "the inputs")), float(concentration)

    def sample(self, n: int, *, key: jax.Array) -> Any:
        """Pairs, each mixed in a ratio of its own."""
        first, second = jax.random.split(key)
        pairs = self.x[noise.indices(first, (2, n), len(self.x))]
        u = jax.random.beta(second, self.concentration, self.concentration, (n,))
        u = u.reshape(n, *[1] * (pairs.ndim - 2))
        return u * pairs[0] + (1 - u) * pairs[1]


class Box(Inputs):
    """The uniform law on a box, whose corners are ``low`` and ``high``, both (d,).

    >>> from posterity.distillation import Box
    >>> Box([-6.0, -6.0], [6.0, 6.0]).sample(5, key=jax.random.key(0)).shape
    (5, 2)
    """

    low: Any
    high: Any

    def __init__(self, low: Any, high: Any):
        """Raises a ParameterError unless ``low`` is below ``high`` everywhere."""
        low, high = (real_numbers(bound, "the bounds", records=False) for bound in (low, high))
        if low.ndim < 1 or low.shape != high.shape or not (low < high).all():
            raise ParameterError(
                found=f"a box from {low} to {high}",
                expected="two arrays of the shape of one input, the first below the second",
                fix="Pass Box([low of each column], [high of each column]).",
            )
        self.low, self.high = _single(low), _single(high)

    def sample(self, n: int, *, key: jax.Array) -> Any:
        """Points anywhere in the box."""
        u = jax.random.uniform(key, (n, *self.low.shape))
        return self.low + u * (self.high - self.low)


class Pool(Inputs):
    """Unlabelled inputs as they are, picked at random."""

    x: Any

    def __init__(self, x: Any):
        """Raises a StructureError for what are no inputs, a ParameterError unless finite."""
        self.x = _single(real_numbers(x, "the inputs"))

    def sample(self, n: int, *, key: jax.Array) -> Any:
        """Records picked at random."""
        return self.x[noise.indices(key, (n,), len(self.x))]


class Generated(Inputs):
    """A user's own: a traceable function of a key and a number of inputs.

    Raises:
        UsageError: for a function whose random numbers are not of its key.
    """

    function: Callable[[jax.Array, int], Any] = eqx.field(static=True)

    def __check_init__(self) -> None:
        # Compiled, numbers of NumPy's would be drawn once, and be the same at every step.
        one, other = (np.asarray(self.function(jax.random.key(0), 2)) for _ in range(2))
        if not np.array_equal(one, other, equal_nan=True):
            raise UsageError(
                found="a function that gives other inputs for the same key",
                expected="one whose random numbers come from its key",
                fix="Draw by jax.random with the key; of inputs that you have, pass Pool(x).",
            )

    def sample(self, n: int, *, key: jax.Array) -> Any:
        """The inputs that the function gives."""
        return jnp.asarray(self.function(key, n), jnp.float32)


class Adversarial(Inputs):
    """Inputs of another law, each moved to where the student is further from its teacher.

    One step of ``size``, one for all or one a column, in the direction of the sign of the gradient
    of their divergence; every other input stays where it is.

    Source: goodfellow2015.
    """

    inputs: Inputs
    size: Any

    def __init__(self, inputs: Any, size: Any):
        """Raises a UsageError for a size that is negative."""
        size = real_numbers(size, "the size", records=False)
        NONNEGATIVE.check(size=float(size.min(initial=np.inf)))
        self.inputs, self.size = as_inputs(inputs), _single(size)

    def sample(self, n: int, *, key: jax.Array) -> Any:
        """Inputs of the other law, not moved yet."""
        return self.inputs.sample(n, key=key)

    def harder(self, x: Any, gap: Callable[[Any], Any]) -> Any:
        """Half of the inputs moved.

        Raises:
            StructureError: for a size that is neither one number nor one a column.
        """
        _check_columns(self.size, "the size", x)
        slope = jnp.sign(jax.grad(lambda x: gap(x).sum())(x))
        moved = jnp.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1)) % 2 == 0
        return jnp.where(moved & jnp.isfinite(slope), x + self.size * slope, x)


def as_inputs(value: object) -> Inputs:
    """Inputs as they are; a function as :class:`Generated`, an array as a :class:`Pool`.

    Raises:
        UsageError: for anything else.
    """
    if isinstance(value, Inputs):
        return value
    if callable(value):
        return Generated(value)
    if hasattr(value, "shape"):
        return Pool(value)
    raise UsageError(
        found=f"inputs that are a {type(value).__name__}",
        expected="Perturbed(x), Mixup(x), Box(low, high), Pool(x), an array, or a function of a "
        "key and a number",
        fix="Say where the student is to listen to its teacher.",
    )


def _check_columns(values: np.ndarray | jax.Array, what: str, x: np.ndarray | jax.Array) -> None:
    if values.shape not in ((), (1,), x.shape[1:]):
        raise StructureError(
            found=f"{what} of shape {values.shape}",
            expected=f"one number, or one a column: shape {x.shape[1:]}",
            fix="Pass one number for all columns, as 0.1.",
        )


def _single(array: np.ndarray) -> jax.Array:
    """In single precision on the device: not copied again at every call."""
    return jax.device_put(array.astype(np.float32))
