"""Unlabelled inputs D' on which a student is trained.

Source: korattikara2015, section 3, for perturbed data and boxes; zhang2018 for mixtures.
"""

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from posterity.arguments import COUNT, NOT_NEGATIVE, Constraint
from posterity.distillation.sampling import noise
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families.names import some
from posterity.models.data import real_numbers
from posterity.models.tables import array, columns_in
from posterity.runtime.programs import jitted

SPREAD = 0.1  # Default noise on inputs, in standard deviations of their columns
SHARES = Constraint("a share from 0 to 1", lambda share: 0 <= float(share) <= 1)

GRIDS = Constraint(
    "one number or more of normals a side", lambda grids: grids and all(map(COUNT.allows, grids))
)


class Inputs(eqx.Module):
    """A law of inputs on which a student is trained. A subclass defines :meth:`sample`; a law with
    data of its own also defines :meth:`data`.
    """

    columns: tuple[str, ...] = eqx.field(static=True, default=(), kw_only=True)
    """Names of the columns, if they are known: those of a data frame, in its order."""

    @abc.abstractmethod
    def sample(self, n: int, *, key: jax.Array) -> Any:
        """Draw ``n`` inputs (n, ...), in single precision; traced."""

    def data(self) -> Any:
        """Return inputs (n, ...) without noise, from which columns are scaled, or None."""


class Pool(Inputs):
    """Finite inputs (n, ...), picked at random with replacement and unchanged.

    >>> x = np.arange(6.0).reshape(3, 2)
    >>> Pool(x).sample(4, key=jax.random.key(0)).shape
    (4, 2)
    """

    x: Any

    def __init__(self, x: Any):
        self.x, self.columns = _single(real_numbers(x, "the inputs")), columns_in(x)

    def sample(self, n: int, *, key: jax.Array) -> Any:
        return self._picked(key, n)

    def _picked(self, key: jax.Array, *shape: int) -> Any:
        return self.x[noise.indices(key, shape, len(self.x))]

    def _mixtures(self, key: jax.Array, n: int) -> Any:
        """Draw points between pairs of records, mixed by a uniform share."""
        first, second = jax.random.split(key)
        one, other = self._picked(first, 2, n)
        u = jax.random.uniform(second, (n, *[1] * (one.ndim - 1)))
        return u * one + (1 - u) * other

    def data(self) -> Any:
        return self.x


class Perturbed(Pool):
    """Inputs of a data set with Gaussian noise added (binomial for 64 columns and more).

    ``noise`` is a standard deviation in the units of ``x``, one number or one per column; by
    default a tenth of each column's. A share ``mixed`` is first mixed with other records, as by
    :class:`Mixup`; a share ``plain`` is left unchanged. Errors are those of :class:`Pool`, and a
    UsageError for negative noise or shares outside of [0, 1].

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
        self.columns = columns_in(x)
        x = real_numbers(x, "the inputs")
        noise = SPREAD * x.std(0, dtype=np.float64) if noise is None else noise
        noise = real_numbers(noise, "the noise", records=False)
        NOT_NEGATIVE.check(noise=float(noise.min(initial=np.inf)))
        _check_columns(noise, "the noise", x)
        self.x, self.noise = _single(x), _single(noise)
        self.mixed, self.plain = np.float32(mixed), np.float32(plain)

    def sample(self, n: int, *, key: jax.Array, many: int = 64) -> Any:
        """Draw inputs; from ``many`` columns on their noise is binomial, as in chains."""
        keys = [jax.random.fold_in(key, number) for number in range(3)]
        picked = self._picked(keys[0], n)
        place = jnp.arange(n).reshape(-1, *[1] * (picked.ndim - 1))
        mixed = place < jnp.round(self.mixed * n)
        picked = jnp.where(mixed, self._mixtures(keys[2], n), picked)
        # For many columns exact normals would take as long as the rest of the step.
        white = noise.normal(keys[1], picked, "normal" if self.x[0].size < many else "binomial")
        noisy = place < n - jnp.round(self.plain * n)
        return jnp.where(noisy, picked + self.noise * white, picked)


class Images(Pool):
    """Images of a data set, and what is like none of them, as students are to doubt.

    A share ``plain`` have noise alone. The others are, in equal shares, mixtures of two; mixtures
    with their blocks in a random order; and smooth random fields, from grids of these numbers of
    normals a side, alone or blended in. Half of them have another contrast, up to black and white,
    and some are negatives. Pixels are clipped to the range of the data.

    ``x`` is (n, height, width) or (n, height, width, channels), or flattened images of this
    ``shape``. Errors are those of :class:`Pool`, and for a share outside of [0, 1].
    """

    shape: tuple[int, ...] = eqx.field(static=True)
    grids: tuple[int, ...] = eqx.field(static=True)
    plain: float = eqx.field(static=True)
    noise: Any
    ends: Any

    def __init__(
        self, x: Any, shape: Any = None, *, plain: float = 0.25, grids: Sequence[int] = (4, 7, 14)
    ):
        SHARES.check(plain=plain)
        GRIDS.check(grids=grids)
        x = real_numbers(x, "the images")
        shape = tuple(x.shape[1:] if shape is None else shape)
        whole = len(shape) in (2, 3) and all(map(COUNT.allows, shape))
        if not whole or math.prod(shape) != x[0].size:
            raise StructureError(
                found=f"records of shape {x.shape[1:]} as images of shape {shape}",
                expected="height and width, and channels if there are several: shape=(28, 28)",
            )
        height, width, channels = map(int, shape if len(shape) == 3 else (*shape, 1))
        self.shape = (height, width, channels)
        self.grids = tuple(grids)
        self.plain = float(plain)
        self.x, self.noise = _single(x), _single(SPREAD * x.std(0, dtype=np.float64))
        self.ends = _single(np.array([x.min(), x.max()]))

    def sample(self, n: int, *, key: jax.Array) -> Any:
        keys = jax.random.split(key, 5)
        low, high = self.ends
        plain = round(self.plain * n)
        third = (n - plain) // 3
        u = jax.random.uniform(keys[2], (5, n - plain, 1, 1, 1))
        pairs = self._picked(keys[0], 2, n)
        one = pairs[0] + self.noise * noise.normal(keys[1], pairs[0])
        one = one.reshape(n, *self.shape)
        others = one[plain:]
        mixed = u[0] * others + (1 - u[0]) * pairs[1].reshape(one.shape)[plain:]
        shuffled = _shuffled(mixed[third : 2 * third], keys[4])
        share = jnp.minimum(2 * u[1, 2 * third :], 1)  # half of the fields are alone
        fields = low + (high - low) * (self._fields(len(share), keys[3]) / 2 + 0.5)
        smooth = share * fields + (1 - share) * others[2 * third :]
        changed = jnp.concatenate([mixed[:third], shuffled, smooth])
        level = (changed - low) / (high - low) - u[2]
        sharp = jnp.exp(3 * u[3]) * jnp.where(u[3] < 0.3, -4, 4)
        contrast = low + (high - low) * jax.nn.sigmoid(sharp * level)
        changed = jnp.where(u[4] < 0.5, contrast, changed)
        images = jnp.concatenate([one[:plain], changed]).reshape(n, *self.x.shape[1:])
        return jnp.clip(images, low, high)

    def _fields(self, n: int, key: jax.Array) -> Any:
        """Draw a smooth field for each image, as many from each grid."""
        height, width, channels = self.shape
        fields = []
        rows = np.array_split(np.arange(n), len(self.grids))
        for side, own in zip(self.grids, rows, strict=True):
            nothing = jnp.zeros((len(own), side, side, channels))
            draws = noise.normal(jax.random.fold_in(key, side), nothing)
            fields.append(jax.image.resize(draws, (len(own), height, width, channels), "linear"))
        return jnp.concatenate(fields)


class Mixup(Pool):
    """Mixtures ``u x + (1 - u) x'`` of two inputs of a data set, picked at random, by a uniform
    share ``u``. Errors are those of :class:`Pool`.

    >>> Mixup(np.array([[0.0], [1.0]])).sample(3, key=jax.random.key(0)).shape
    (3, 1)
    """

    def sample(self, n: int, *, key: jax.Array) -> Any:
        return self._mixtures(key, n)


class Box(Inputs):
    """The uniform law on a box with corners ``low`` and ``high``, arrays of the shape of one input.
    A ParameterError unless ``low < high`` everywhere.

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
            )
        self.low, self.high = _single(low), _single(high)

    def sample(self, n: int, *, key: jax.Array) -> Any:
        u = jax.random.uniform(key, (n, *self.low.shape))
        return self.low + u * (self.high - self.low)

    def data(self) -> Any:
        return jnp.stack([self.low, self.high])


class Generated(Inputs):
    """Inputs of a traceable ``function(key, n)``; a UsageError if it is random beyond its key.

    >>> normal = Generated(lambda key, n: jax.random.normal(key, (n, 2)))
    >>> normal.sample(3, key=jax.random.key(0)).shape
    (3, 2)
    """

    function: Callable[[jax.Array, int], Any] = eqx.field(static=True)

    def __check_init__(self) -> None:
        # NumPy's random numbers would be drawn once, at compilation, and repeated at every step.
        one, other = (np.asarray(self.function(jax.random.key(0), 2)) for _ in range(2))
        if not np.array_equal(one, other, equal_nan=True):
            raise UsageError(
                found="a function that gives other inputs for the same key",
                expected="one that draws by its key, or Pool(x) of inputs that you have",
            )

    def sample(self, n: int, *, key: jax.Array) -> Any:
        return jnp.asarray(self.function(key, n), jnp.float32)


def usual(x: Any, image: tuple[int, ...]) -> Inputs:
    """Return the default law of inputs for a teacher fitted to ``x``: ``Images`` of images, of the
    shape ``image`` if they are flattened, and of columns that are :func:`pixels`; else
    ``Perturbed``. A UsageError if ``x`` is None.
    """
    if x is None:
        return as_inputs(None)
    shape = np.shape(x)[1:]
    if len(shape) == 1:
        shape = image if len(image) == 3 else pixels(np.asarray(x))
    return Images(x, shape) if len(shape) == 3 else Perturbed(x, mixed=0.25, plain=0.5)


def pixels(
    x: np.ndarray,
    *,
    alike: float = 0.4,  # Least correlation of neighbours: .5 to .9 in sets of images
    least: int = 8,  # Least side of an image: eight columns of a table may be alike by chance
    most: int = 1000,  # Most records that are looked at
) -> tuple[int, ...]:
    """Return the shape of square images whose flattened pixels the columns of ``x`` (n, d) are, or
    an empty tuple. Pixels one row apart are alike: more so than those of opposite halves, and than
    the last of a row and the first of the next, which are neighbours in a series or a spectrum.

    >>> pixels(np.random.default_rng(0).normal(size=(100, 784)))
    ()
    """
    for channels in (1, 3):
        side = math.isqrt(x.shape[1] // channels)
        if side < least or side**2 * channels != x.shape[1]:
            continue
        some = x[:: -(-len(x) // most)]
        away = (some - some.mean(0)).reshape(-1, side, side, channels)
        near, far = ((away[:, rows:] * away[:, :-rows]).mean() for rows in (1, side // 2))
        along = (away[:, 1:, 0] * away[:, :-1, -1]).mean()
        if near > max(alike * (away**2).mean(), 2 * far, along):
            return side, side, channels
    return ()


def checked(inputs: Inputs, n: int, key: jax.Array) -> np.ndarray:
    """Draw ``n`` inputs of a law; errors of :func:`real_numbers` unless they are finite, of shape
    (n, ...).
    """
    return real_numbers(np.asarray(_sampled(inputs, n, key)), "generated inputs")


@functools.partial(jitted, static_argnums=1)
def _sampled(inputs: Inputs, n: int, key: jax.Array) -> Any:
    return inputs.sample(n, key=key)


def as_inputs(value: object, columns: Sequence[str] = ()) -> Inputs:
    """Return inputs unchanged, a function as :class:`Generated`, an array or a data frame as
    :class:`Pool`, with its columns in the order of these names if there are any. Inputs of other
    names, or in another order, are a StructureError.
    """
    if isinstance(value, Inputs):
        if columns and value.columns not in ((), tuple(columns)):
            raise StructureError(
                found=f"inputs whose columns are {some(value.columns)}",
                expected=f"frame[names] as the teacher, {some(columns)}",
            )
        return value
    if callable(value):
        return Generated(value)
    if hasattr(value, "shape") or isinstance(value, list):
        return Pool(array(value, columns, "the inputs") if columns else value)
    known = value is not None
    raise UsageError(
        found=f"inputs that are a {type(value).__name__}" if known else "a teacher without inputs",
        expected="Perturbed(x), Mixup(x), Box(low, high), Pool(x), or a function (key, number)",
    )


def _shuffled(x: Any, key: jax.Array) -> Any:
    """Shuffle the blocks of each image, 4 x 4 of them where the sides are divisible by four."""
    n, height, width, channels = x.shape
    rows, columns = (math.gcd(side, 4) for side in (height, width))
    sides = n, rows, height // rows, columns, width // columns, channels
    blocks = x.reshape(sides).swapaxes(2, 3)
    flat = blocks.reshape(n, rows * columns, math.prod(blocks.shape[3:]))
    order = jnp.argsort(jax.random.uniform(key, flat.shape[:2]))
    flat = jnp.take_along_axis(flat, order[..., None], axis=1)
    return flat.reshape(blocks.shape).swapaxes(2, 3).reshape(x.shape)


def _check_columns(values: np.ndarray | jax.Array, what: str, x: np.ndarray | jax.Array) -> None:
    if values.shape not in ((), (1,), x.shape[1:]):
        raise StructureError(
            found=f"{what} of shape {values.shape}", expected=f"one, or one a column: {x.shape[1:]}"
        )


def _single(array: np.ndarray) -> jax.Array:
    """Put an array on the device in single precision, so that calls do not copy it again."""
    return jax.device_put(array.astype(np.float32))
