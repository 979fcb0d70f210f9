"""Features of inputs that are fixed before any data are seen: seeded, the same at every site.

What a conjugate learner knows is sums of features, so these must not depend on the data. Random
units are drawn by a generator whose numbers NumPy promises never to change; a digest of features
tells whether two learners have the same ones.
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

from posterity.arguments import COUNT, NATURAL, Constraint
from posterity.arrays.tree import leaves
from posterity.artifact.architecture import Architecture
from posterity.errors import StructureError, UsageError
from posterity.models.data import real_numbers, warn_of_scale

Array = np.ndarray

VECTOR_WIDTH = 300
NAME = Constraint("a text that names it", lambda name: isinstance(name, str) and name != "")
ROWS = 4096


class Features(abc.ABC):
    """A function from inputs (n, *shape) to features (n, size), in float64."""

    shape: tuple[int, ...] | None = None  # The shape of one input; None where any will do
    size: int  # How many features there are
    own_units: int = 0  # How many of them, the first ones, are in units of their own

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """Equal for two that say the same of all inputs."""

    @abc.abstractmethod
    def of(self, x: Array) -> Float[Array, "n size"]:
        """The features of inputs that were checked."""

    def __call__(self, x: Any) -> Float[Array, "n size"]:
        """The features of inputs; a StructureError or ParameterError for what are none."""
        x = self.checked(x)
        features = np.asarray(self.of(x), np.float64)
        if features.shape != (len(x), self.size):
            raise StructureError(
                found=f"features of shape {features.shape} for {len(x)} inputs",
                expected=f"shape {(len(x), self.size)}",
                fix="A function of features takes a batch, and gives a row an input.",
            )
        return real_numbers(features, "the features", records=False)

    def checked(self, x: Any) -> Array:
        """The inputs as an array."""
        x = real_numbers(x, "the inputs", records=False)
        if x.ndim < 1 or self.shape not in (None, x.shape[1:]):
            raise StructureError(
                found=f"inputs of shape {x.shape}",
                expected="(n, ...)"
                if self.shape is None
                else f"{('n', *self.shape)}, as the first task had",
                fix="Pass x[None] for a single input; every task and site has the same columns.",
            )
        return x

    def warn_of_scale(self, x: Array) -> None:
        """Warn of inputs in units that the features are not meant for."""
        del x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Features) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@dataclasses.dataclass(frozen=True, eq=False)
class VectorFeatures(Features):
    """The columns themselves, and random rectified units of them; the default of vectors.

    The columns themselves are fitted whatever their units; the random units, ``width`` of them, are
    meant for columns of a scale near one. ``shift`` and ``scale``, one for all or one a column,
    make them so, and must be what all sites know beforehand (a normal range, a physical constant):
    what was learned would depend on moments of somebody's data also after these were forgotten.

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
        NATURAL.check(width=self.width, seed=self.seed)
        for name in ("shift", "scale"):
            given = getattr(self, name)
            try:
                value = np.array(given, np.float64)
            except (TypeError, ValueError):  # NumPy's, for what are no numbers
                value = np.full(1, np.nan)
            fits = value.shape in ((), (self.columns,)) and np.isfinite(value).all()
            if not fits or (name == "scale" and not (value > 0).all()):
                raise UsageError(
                    found=f"{name}={given!r} for {self.columns} columns",
                    expected="one finite number, or one a column; positive ones of a scale",
                    fix="Give as many as there are columns, 1 as the scale of a constant one.",
                )
            object.__setattr__(self, name, value)
        sizes = {"shape": (self.columns,), "size": self.columns + self.width}
        for name, value in {**sizes, "own_units": self.columns}.items():
            object.__setattr__(self, name, value)

    @property
    def digest(self) -> str:
        """A digest of the arguments."""
        own = (self.columns, self.shift.tolist(), self.scale.tolist(), self.width, self.seed)
        return digest_of("vectors", own)

    def of(self, x: Array) -> Float[Array, "n size"]:
        """The columns, and random units of them."""
        z = (np.asarray(x, np.float64) - self.shift) / self.scale
        if not self.width:
            return z
        units = rectified(np.asarray(z, np.float32), self.width, self.seed, slope=1.0, offset=1.0)
        return np.concatenate([z, units], 1)

    def warn_of_scale(self, x: Array) -> None:
        """Warn of columns far larger, or all far smaller, than one."""
        if not x.size or not self.width:
            return
        use = (
            "random features are meant. Pass features=VectorFeatures(columns, shift, scale) with "
            "what all sites know of the columns beforehand, or width=0 for a linear rule that "
            "needs no units."
        )
        x = (np.asarray(x, np.float64) - self.shift) / self.scale
        warn_of_scale(x, "inputs", use, stacklevel=4)


@dataclasses.dataclass(frozen=True, eq=False)
class OwnFeatures(Features):
    """The features that any function of a batch gives, such as a pretrained network that nobody
    trains on.

    The ``function`` gives features (n, size), always the same ones, of inputs (n, ...); an
    :class:`~posterity.artifact.architecture.Architecture` can be saved, another function not.
    Learners merge only where names are equal.

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
        """A digest of the name and, of an architecture, of its options and parameters."""
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
        """The values of the function."""
        parts = [np.asarray(self._call(x[at : at + ROWS])) for at in range(0, max(len(x), 1), ROWS)]
        return np.concatenate(parts)


def default_features(x: Any) -> Features:
    """The features of vectors (n, d), by shape alone; a StructureError for other axes."""
    shape: tuple[int, ...] = np.shape(x)[1:]
    if len(shape) == 1 and shape[0]:
        return VectorFeatures(shape[0])
    raise StructureError(
        found=f"inputs of shape {np.shape(x)}",
        expected="vectors (n, d)",
        fix="Pass x.reshape(len(x), -1), or features=OwnFeatures(function, size, name); for images "
        "experiments/pursuit/image_features.py has oriented gradients.",
    )


def rectified(
    x: Float[Array, "n d"], width: int, seed: int, *, slope: float, offset: float
) -> Float[Array, "n width"]:
    """``max(0, x W + b)`` with random ``W`` and ``b``; ``x`` itself if ``width`` is 0."""
    if not width:
        return x
    weights, offsets = _units(x.shape[1], width, seed)
    return np.maximum(x @ (np.float32(slope) * weights) + np.float32(offset) * offsets, 0)


@functools.lru_cache(maxsize=8)
def _units(inputs: int, width: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.RandomState(seed)  # frozen by NumPy: the same numbers in every release
    weights = rng.standard_normal((inputs, width)) / math.sqrt(inputs)
    return weights.astype(np.float32), rng.standard_normal(width).astype(np.float32)


def digest_of(kind: str, values: object) -> str:
    """A digest of a kind of features and its options."""
    return hashlib.sha256(repr((kind, values)).encode()).hexdigest()
