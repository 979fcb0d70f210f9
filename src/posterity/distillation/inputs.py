"""Inputs D' on which a student listens to its teacher, without labels.

Source: korattikara2015, section 3, for perturbed data and boxes; zhang2018 for mixtures.
"""

import abc
import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from posterity.arguments import COUNT, POSITIVE, Constraint
from posterity.distillation.sampling import noise
from posterity.distillation.sampling.schedules import NONNEGATIVE
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.models.data import real_numbers

SPREAD = 0.1  # Noise on inputs by default, in standard deviations of their columns
SHARES = Constraint("a share from 0 to 1", lambda share: 0 <= float(share) <= 1)
MANY = 64  # Columns from which noise is drawn by counting bits, as a chain's is


class Inputs(eqx.Module):
    """A law of inputs to draw from."""

    @abc.abstractmethod
    def sample(self, n: int, *, key: jax.Array) -> Any:
        """``n`` inputs (n, ...), in single precision; traced."""

    def data(self) -> Any:
        """Inputs (n, ...) without noise, by which columns are scaled; None where none are known."""

    def harder(self, x: Any, gap: Callable[[Any], Any]) -> Any:
        """Inputs instead of ``x`` on which the student has more to learn, given its gap (n,)."""
        del gap
        return x


class Pool(Inputs):
    """Unlabelled finite inputs (n, ...) as they are, picked at random."""

    x: Any

    def __init__(self, x: Any):
        self.x = _single(real_numbers(x, "the inputs"))

    def sample(self, n: int, *, key: jax.Array) -> Any:
        return self._picked(key, n)

    def _picked(self, key: jax.Array, *shape: int) -> Any:
        return self.x[noise.indices(key, shape, len(self.x))]

    def _mixtures(self, key: jax.Array, n: int, concentration: float = 1.0) -> Any:
        """Points between pairs of records, each mixed by a share of a symmetric Beta law."""
        first, second = jax.random.split(key)
        one, other = self._picked(first, 2, n)
        shape = n, *[1] * (one.ndim - 1)
        if concentration == 1:  # a Beta law's draws take seconds to compile
            u = jax.random.uniform(second, shape)
        else:
            u = jax.random.beta(second, concentration, concentration, shape)
        return u * one + (1 - u) * other

    def data(self) -> Any:
        return self.x


class Perturbed(Pool):
    """Inputs of a data set, with Gaussian noise added.

    ``noise`` is a standard deviation in the units of ``x``, one for all or one a column; by default
    a tenth of each column's own. A share ``mixed`` is first mixed with other records, as by
    :class:`Mixup`; a share ``plain`` stays as it is. Errors are those of :class:`Pool`, and a
    UsageError for a noise that is negative and shares that are none.

    >>> from posterity.distillation import Perturbed
    >>> Perturbed(np.zeros((10, 3)), noise=0.05).sample(4, key=jax.random.key(0)).shape
    (4, 3)
    """

    noise: Any
    mixed: Any
    plain: Any

    def __init__(self, x: Any, noise: Any = None, mixed: float = 0.0, plain: float = 0.0):
        SHARES.check(mixed=mixed, plain=plain)
        SHARES.check(**{"mixed + plain": round(mixed + plain, 9)})
        x = real_numbers(x, "the inputs")
        noise = SPREAD * x.std(0, dtype=np.float64) if noise is None else noise
        noise = real_numbers(noise, "the noise", records=False)
        NONNEGATIVE.check(noise=float(noise.min(initial=np.inf)))
        _check_columns(noise, "the noise", x)
        self.x, self.noise = _single(x), _single(noise)
        self.mixed, self.plain = np.float32(mixed), np.float32(plain)

    def sample(self, n: int, *, key: jax.Array) -> Any:
        keys = [jax.random.fold_in(key, number) for number in range(3)]
        picked = self._picked(keys[0], n)
        place = jnp.arange(n).reshape(-1, *[1] * (picked.ndim - 1))
        mixed = place < jnp.round(self.mixed * n)
        picked = jnp.where(mixed, self._mixtures(keys[2], n), picked)
        # Of many columns exact normals would take as long as all the rest of a step.
        white = noise.normal(keys[1], picked, "normal" if self.x[0].size < MANY else "binomial")
        noisy = place < n - jnp.round(self.plain * n)
        return jnp.where(noisy, picked + self.noise * white, picked)


class Images(Pool):
    """Images of a data set, each changed in one of four ways: with noise, as of :class:`Perturbed`;
    its blocks in another order; a smooth random field in its place or on it, from a grid of four by
    four normals; or mixed with another record. Pixels stay between the least and the largest.

    ``x`` are (n, height, width), with channels after these or not; or flattened, with the ``shape``
    of an image. Errors are those of :class:`Pool`.
    """

    shape: tuple[int, ...] = eqx.field(static=True)
    noise: Any
    ends: Any

    def __init__(self, x: Any, shape: Any = None):
        x = real_numbers(x, "the images")
        shape = tuple(x.shape[1:] if shape is None else shape)
        whole = len(shape) in (2, 3) and all(map(COUNT.allows, shape))
        if not whole or math.prod(shape) != x[0].size:
            raise StructureError(
                found=f"records of shape {x.shape[1:]} as images of shape {shape}",
                expected="height and width, and channels if there are several",
                fix="Pass Images(x, shape=(28, 28)).",
            )
        height, width, channels = map(int, shape if len(shape) == 3 else (*shape, 1))
        self.shape = (height, width, channels)
        self.x, self.noise = _single(x), _single(SPREAD * x.std(0, dtype=np.float64))
        self.ends = _single(np.array([x.min(), x.max()]))

    def sample(self, n: int, *, key: jax.Array) -> Any:
        keys = [jax.random.fold_in(key, number) for number in range(6)]
        pairs = self._picked(keys[0], 2, n)
        one = pairs[0] + self.noise * noise.normal(keys[1], pairs[0])
        one = one.reshape(n, *self.shape)
        u, (low, high) = jax.random.uniform(keys[2], (3, n, 1, 1, 1)), self.ends
        mixed = u[0] * one + (1 - u[0]) * pairs[1].reshape(one.shape)
        field = noise.normal(keys[3], jnp.zeros((n, 4, 4, self.shape[2])))
        smooth = low + (high - low) * (jax.image.resize(field, one.shape, "linear") / 2 + 0.5)
        smooth = jnp.where(u[1] < 0.5, smooth, one + u[2] * (smooth - one))
        kind = jax.random.randint(keys[4], (n, 1, 1, 1), 0, 4)
        shuffled = _shuffled(one, keys[5])
        changed = jnp.select([kind == 1, kind == 2, kind == 3], [mixed, smooth, shuffled], one)
        return jnp.clip(changed, low, high).reshape(n, *self.x.shape[1:])


class Mixup(Pool):
    """Points between two inputs of a data set, picked at random: ``u x + (1 - u) x'``.
    ``concentration`` is that of the symmetric Beta law of ``u``; 1 is uniform. Errors are those of
    :class:`Pool`, and a UsageError for a concentration that is not positive.
    """

    concentration: float = eqx.field(static=True)

    def __init__(self, x: Any, concentration: float | int = 1.0):
        POSITIVE.check(concentration=concentration)
        super().__init__(x)
        self.concentration = float(concentration)

    def sample(self, n: int, *, key: jax.Array) -> Any:
        return self._mixtures(key, n, self.concentration)


class Box(Inputs):
    """The uniform law on a box, whose corners are ``low`` and ``high``, both (d,); a ParameterError
    unless ``low`` is below ``high`` everywhere.

    >>> Box([-6.0, -6.0], [6.0, 6.0]).sample(5, key=jax.random.key(0)).shape
    (5, 2)
    """

    low: Any
    high: Any

    def __init__(self, low: Any, high: Any):
        low, high = (real_numbers(bound, "the bounds", records=False) for bound in (low, high))
        if low.ndim < 1 or low.shape != high.shape or not (low < high).all():
            raise ParameterError(
                found=f"a box from {low} to {high}",
                expected="two arrays of the shape of one input, the first below the second",
                fix="Pass Box([low of each column], [high of each column]).",
            )
        self.low, self.high = _single(low), _single(high)

    def sample(self, n: int, *, key: jax.Array) -> Any:
        u = jax.random.uniform(key, (n, *self.low.shape))
        return self.low + u * (self.high - self.low)

    def data(self) -> Any:
        return jnp.stack([self.low, self.high])


class Generated(Inputs):
    """A user's own: a traceable function of a key and a number, random by the key alone."""

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
        return jnp.asarray(self.function(key, n), jnp.float32)


class Adversarial(Inputs):
    """Inputs of another law, each moved to where the student is further from its teacher.

    One step of ``size``, one for all or one a column, in the direction of the sign of the gradient
    of their divergence; every other input stays where it is. A negative size is a UsageError.

    Source: goodfellow2015.
    """

    inputs: Inputs
    size: Any

    def __init__(self, inputs: Any, size: Any):
        size = real_numbers(size, "the size", records=False)
        NONNEGATIVE.check(size=float(size.min(initial=np.inf)))
        self.inputs, self.size = as_inputs(inputs), _single(size)

    def sample(self, n: int, *, key: jax.Array) -> Any:
        return self.inputs.sample(n, key=key)

    def data(self) -> Any:
        return self.inputs.data()

    def harder(self, x: Any, gap: Callable[[Any], Any]) -> Any:
        """Half of the inputs moved; a StructureError for sizes that are not one a column."""
        _check_columns(self.size, "the size", x)
        slope = jnp.sign(jax.grad(lambda x: gap(x).sum())(x))
        moved = jnp.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1)) % 2 == 0
        return jnp.where(moved & jnp.isfinite(slope), x + self.size * slope, x)


def usual(x: Any, image: tuple[int, ...]) -> Inputs:
    """The inputs of a student whose teacher knows the inputs ``x``, which are flattened images of
    that shape if it has three axes; a UsageError if there are none.
    """
    if x is None:
        raise UsageError(
            found="a teacher that does not know any inputs",
            expected="where the student is to listen to it",
            fix="Pass inputs=Perturbed(x), Pool(x), Box(low, high), or a function of a key and a "
            "number.",
        )
    image = image if np.ndim(x) == 2 else np.shape(x)[1:]
    return Images(x, image) if len(image) == 3 else Perturbed(x, mixed=0.25, plain=0.5)


def checked(inputs: Inputs, n: int, key: jax.Array) -> np.ndarray:
    """So many inputs of a law, a ParameterError unless they are finite, of shape (n, ...)."""
    x = np.asarray(_sampled(inputs, n, key))
    if not np.isfinite(x).all() or x.ndim < 2:
        raise ParameterError(
            found=f"generated inputs of shape {x.shape}, not all finite",
            expected="finite numbers of shape (n, ...)",
            fix="Mend the function or the noise that makes them.",
        )
    return x


@functools.partial(jax.jit, static_argnums=1)
def _sampled(inputs: Inputs, n: int, key: jax.Array) -> Any:
    return inputs.sample(n, key=key)


def as_inputs(value: object) -> Inputs:
    """Inputs as they are, a function as :class:`Generated`, an array as a :class:`Pool`."""
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


def _shuffled(x: Any, key: jax.Array) -> Any:
    """Each image with its blocks in a random order, four by four where sides allow."""
    n, height, width, channels = x.shape
    rows, columns = (math.gcd(side, 4) for side in (height, width))
    sides = n, rows, height // rows, columns, width // columns, channels
    blocks = x.reshape(sides).swapaxes(2, 3)
    flat = blocks.reshape(n, rows * columns, -1)
    order = jnp.argsort(jax.random.uniform(key, flat.shape[:2]))
    flat = jnp.take_along_axis(flat, order[..., None], axis=1)
    return flat.reshape(blocks.shape).swapaxes(2, 3).reshape(x.shape)


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
