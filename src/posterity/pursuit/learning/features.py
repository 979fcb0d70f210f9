"""Features of inputs that do not depend on data: seeded, and the same at every site.

A conjugate learner stores sums of features, so these must be fixed before any data. Random units
are drawn by NumPy's ``RandomState``, whose stream is frozen. Features are compared by a digest.
"""

import abc
import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from posterity.arguments import COUNT, NATURAL, POSITIVE, Constraint, check_shape
from posterity.arrays.tree import leaves
from posterity.artifact.architecture import Architecture
from posterity.errors import StructureError
from posterity.models.data import inputs, real_numbers, warn_of_scale

Array = np.ndarray

VECTOR_WIDTH = 300
NAME = Constraint("a text that names it", lambda name: isinstance(name, str) and name != "")
SEED = Constraint(
    "a whole number, from 0 to 2**32 - 1", lambda seed: NATURAL.allows(seed) and seed < 2**32
)
ROWS = 4096


class Features(abc.ABC):
    """A function from inputs (n, *shape) to features (n, size), in float64."""

    shape: tuple[int, ...] | None = None  # Shape of one input; None for any
    size: int  # Number of features
    own_units: int = 0  # Number of features, at the start, in units of their own

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """A digest that is equal for equal features."""

    @abc.abstractmethod
    def of(self, x: Array) -> Float[Array, "n size"]:
        """Return the features of checked inputs."""

    def __call__(self, x: Any) -> Float[Array, "n size"]:
        """Return the features of inputs; a StructureError or ParameterError for invalid inputs."""
        x = self.checked(x)
        features = np.asarray(self.of(x), np.float64)
        check_shape("features", features, len(x), self.size)
        return real_numbers(features, "the features", records=False)

    def checked(self, x: Any) -> Array:
        """Return the inputs as an array, or raise an error for a wrong shape or wrong values."""
        x = inputs(x, ())
        if self.shape is not None:
            check_shape("inputs", x, None, *self.shape)
        return x

    def warn_of_scale(self, x: Array) -> None:
        """Warn of inputs whose units do not suit the features."""
        del x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Features) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@dataclasses.dataclass(frozen=True, eq=False)
class VectorFeatures(Features):
    """The columns of vectors and ``width`` random rectified units of them; the default.

    Units of the columns are arbitrary for the linear part, but the random units need columns of a
    scale near one. ``shift`` and ``scale``, one number or one per column, standardise them. They
    must be constants known to all sites beforehand, such as a normal range: moments of a site's
    data would remain in the learner after the data were forgotten.

    Source: rahimi2008.

    >>> VectorFeatures(3, width=50)(np.zeros((2, 3))).shape
    (2, 53)
    """

    columns: int
    shift: Any = 0.0
    scale: Any = 1.0
    width: int = VECTOR_WIDTH
    seed: int = 0

    def __post_init__(self) -> None:
        COUNT.check(columns=self.columns)
        NATURAL.check(width=self.width)
        SEED.check(seed=self.seed)
        units = Constraint(
            f"one finite number, or one for each of {self.columns} columns",
            lambda own: np.shape(own) in ((), (self.columns,)) and np.isfinite(own).all(),
        )
        units.check(shift=self.shift, scale=self.scale)
        POSITIVE.check(scale=float(np.min(self.scale)))
        own = {"shift": np.array(self.shift, float), "scale": np.array(self.scale, float)}
        sizes = {"shape": (self.columns,), "size": self.columns + self.width}
        for name, value in {**own, **sizes, "own_units": self.columns}.items():
            object.__setattr__(self, name, value)

    @property
    def digest(self) -> str:
        """The digest of the arguments."""
        own = (self.columns, self.shift.tolist(), self.scale.tolist(), self.width, self.seed)
        return digest_of("vectors", own)

    def of(self, x: Array) -> Float[Array, "n size"]:
        """Return the columns, and random units of them."""
        z = self._standardised(x)
        if not self.width:
            return z
        weights, offsets = _units(self.columns, self.width, self.seed)
        return np.concatenate([z, np.maximum(z.astype(np.float32) @ weights + offsets, 0)], 1)

    def _standardised(self, x: Array) -> Array:
        return (np.asarray(x, np.float64) - self.shift) / self.scale

    def warn_of_scale(self, x: Array) -> None:
        """Warn if a column is far larger than one, or all columns are far smaller."""
        if not x.size or not self.width:
            return
        use = (
            "random features are meant. Pass features=VectorFeatures(columns, shift, scale) with "
            "what all sites know of the columns beforehand, or width=0 for a linear rule that "
            "needs no units."
        )
        warn_of_scale(self._standardised(x), "inputs", use, stacklevel=4)


@dataclasses.dataclass(frozen=True, eq=False)
class OwnFeatures(Features):
    """Features from a function of a batch, such as a pretrained network with fixed weights.

    ``function`` is deterministic, from inputs (n, ...) to features (n, size). Only an
    :class:`~posterity.artifact.architecture.Architecture` can be saved to a file. Learners merge
    only if their features' names are equal.

    >>> OwnFeatures(lambda x: x.reshape(len(x), -1) ** 2, 4, "squares")(np.ones((3, 2, 2))).shape
    (3, 4)
    """

    function: Callable[[Array], Any]
    size: int
    name: str

    def __post_init__(self) -> None:
        COUNT.check(size=self.size)
        NAME.check(name=self.name)

    @property
    def digest(self) -> str:
        """The digest of the name and, for an architecture, of its options and parameters."""
        own = self.function
        if isinstance(own, Architecture):
            arrays = [np.asarray(leaf).tobytes().hex() for leaf in leaves(dict(own.parameters))]
            parts = self.name, own.name, sorted(own.options.items()), arrays
            return digest_of("architecture", parts)
        return digest_of("own", (self.name, self.size))

    @functools.cached_property
    def _call(self) -> Callable[[Array], Any]:
        own = self.function
        return own.build() if isinstance(own, Architecture) else own

    def of(self, x: Array) -> Float[Array, "n size"]:
        """Return the values of the function."""
        rows = np.split(x, range(ROWS, len(x), ROWS))
        return np.concatenate([np.asarray(self._call(own)) for own in rows])


def default_features(x: Any) -> Features:
    """Return the default features of vectors (n, d); a StructureError for other shapes."""
    shape: tuple[int, ...] = np.shape(x)[1:]
    if len(shape) == 1 and shape[0]:
        return VectorFeatures(shape[0])
    raise StructureError(
        found=f"inputs of shape {np.shape(x)}",
        expected="vectors (n, d), or features=OwnFeatures(function, size, name)",
    )


@functools.lru_cache(maxsize=8)
def _units(inputs: int, width: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.RandomState(seed)  # frozen by NumPy: the same numbers in every release
    weights = rng.standard_normal((inputs, width)) / math.sqrt(inputs)
    return weights.astype(np.float32), rng.standard_normal(width).astype(np.float32)


def digest_of(kind: str, values: object) -> str:
    """Return the digest of a kind of features and its options."""
    return hashlib.sha256(repr((kind, values)).encode()).hexdigest()
