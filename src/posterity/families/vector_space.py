"""The vector space of the natural parameters of a family.

Natural parameters add, subtract and scale; a difference of two posteriors, a *factor*, is an
element of the same space that need not be a distribution.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from posterity.arrays.functions import Namespace
from posterity.arrays.leaves import as_leaf, as_leaves, frozen
from posterity.arrays.namespace import is_traced, namespace
from posterity.arrays.tree import LABEL, Node, labelled, leaves, map_leaves, static_names
from posterity.arrays.typing import ArrayLike, Flat, Index, Int, Real, Shape
from posterity.errors import ParameterError, StructureError
from posterity.families.coordinates import (
    Coordinates,
    checked,
    common_batch,
    common_size,
    place,
    symmetrized,
)
from posterity.families.distribution import Distribution, unsaid
from posterity.families.names import alike, names_of

Law = TypeVar("Law", bound=Distribution)


def concatenate(members: Sequence[Law]) -> Law:
    """Concatenate batches along the first batch axis; a StructureError if there are none, or they
    differ in family or dimensions.

    >>> import numpy as np
    >>> from posterity.families import Beta
    >>> concatenate([Beta(np.zeros(2), np.zeros(2)), Beta(np.ones(1), np.ones(1))]).batch_shape
    (3,)
    """
    _check_all_alike(members)
    if not members[0].batch_shape or len({member.batch_shape[1:] for member in members}) > 1:
        raise StructureError(
            found=f"members of batch shapes {[member.batch_shape for member in members[:3]]}",
            expected="batches that agree but for their first axis",
        )
    xp = namespace(*leaves(members[0])).np
    return map_leaves(lambda *arrays: xp.concatenate(arrays), *members)


def stack(members: Sequence[Law]) -> Law:
    """Stack members of equal shape along a new first batch axis; a StructureError if there are
    none, or they differ in family or shape.

    >>> from posterity.families import Beta
    >>> stack([Beta(1.0, 2.0), Beta(3.0, 4.0)]).a
    array([2., 4.])
    """
    _check_all_alike(members, batch=True)
    xp = namespace(*leaves(members[0])).np
    return map_leaves(lambda *arrays: xp.stack(arrays), *members)


def at_rest(law: Law) -> Law:
    """Return the law with NumPy float64 arrays, without negative zeros."""
    if all(_rests(leaf) for leaf in leaves(law)):
        return law
    # Adding 0 turns -0 into 0: parameters that are equal then have equal bytes.
    return map_leaves(lambda leaf: np.asarray(np.asarray(leaf, np.float64) + 0.0), law)


def _check_all_alike(members: Sequence[Any], batch: bool = False) -> None:
    kinds = [(m.outline(), m.batch_shape if batch else None, names_of(m)) for m in members]
    if not kinds or any(kind != kinds[0] for kind in kinds):
        raise StructureError(
            found=f"{len(members)} members {[repr(member) for member in members[:3]]}",
            expected="members of one family, blocks, dimensions and names, at least one",
        )


def _rests(leaf: ArrayLike) -> bool:
    """True if an array is NumPy's, of float64, and without a signed zero."""
    if type(leaf) is not np.ndarray or leaf.dtype != np.float64:
        return False
    whole = np.count_nonzero(leaf) == leaf.size
    return bool(whole or not np.any((leaf == 0) & np.signbit(leaf)))


def broadcasts(mine: Shape, theirs: Shape) -> bool:
    """True if two batch shapes broadcast."""
    try:
        np.broadcast_shapes(mine, theirs)
    except ValueError:
        return False
    return True


class VectorSpace(Distribution):
    """Base class of laws whose parameters, named in ``coordinates``, are a vector space."""

    coordinates: ClassVar[Coordinates]
    standard: ClassVar[Coordinates]

    __array_ufunc__ = None  # a NumPy scalar or array on the left leaves the product to us

    # --- making one --------------------------------------------------------------------------

    def __post_init__(self) -> None:
        owner = type(self).__name__
        made = as_leaves({name: self.__dict__[name] for name in self.coordinates})
        common_size(self.coordinates, made, owner)
        common_batch(self.coordinates, made, owner)
        for name, leaf in made.items():
            leaf = symmetrized(leaf, self.coordinates[name], f"{name} of a {owner}")
            object.__setattr__(self, name, leaf)

    @classmethod
    def _of(cls, **parts: Real) -> Self:
        """Make a law from new arrays of fitting shapes, without checks; they become read-only."""
        return cls.of_children([frozen(parts[name]) for name in cls.coordinates])

    def _with(self, **parts: Real) -> Self:
        """Make a law like this one from new arrays, as :meth:`_of`."""
        return type(self).of_children([frozen(parts[n]) for n in self.coordinates], self.kept())

    @classmethod
    def _checked(cls, **values: Any) -> dict[str, Real]:
        """Textbook parameters as arrays, by :func:`checked`."""
        return checked(cls.standard, values, cls.__name__)

    def _held(self) -> Self:
        """Return the law, or raise a ParameterError if rounding made it improper."""
        if not any(map(is_traced, leaves(self))) and not np.all(self.is_proper()):
            raise ParameterError(
                found=f"parameters of a {type(self).__name__} that are improper once rounded",
                expected="magnitudes that floating point can hold together: other units, or origin",
            )
        return self

    def standard_parameters(self) -> dict[str, Any]:
        """Return the parameters in ``standard`` and static fields; a UsageError if the family
        defines none, or lacks one of them.
        """
        names = (*getattr(self, "standard", ()), *static_names(type(self)))
        lacking = [name for name in names if not hasattr(self, name)]
        if lacking or not names:
            has = f"the properties {lacking}" if lacking else "`standard`, their names and kinds"
            raise unsaid(self, "its textbook parameters", has)
        return {name: getattr(self, name) for name in names}

    # --- shapes ------------------------------------------------------------------------------

    @property
    def batch_shape(self) -> Shape:
        name, axes = _first(type(self))
        shape = getattr(self.__dict__[name], "shape", ())
        return shape[: len(shape) - axes]

    @property
    def own_size(self) -> int:
        """The length ``d`` of a member's own axes; 1 without any."""
        name = _with_own_axes(type(self))
        return 1 if name is None else self.__dict__[name].shape[-1]

    @property
    def named_size(self) -> int | None:
        return self.own_size

    @property
    def event_size(self) -> int:
        return self.own_size

    def reordered(self, places: Int[np.ndarray, " d"]) -> Self:
        """Return the law with permuted coordinates; a matrix is permuted along both axes."""
        if len(places) == 1:
            return self
        return self._relabel_axis(np.argsort(places), len(places), len(self.batch_shape))

    @property
    def dimension(self) -> int:
        """Length of the flat vector of natural parameters."""
        return _spans(type(self), self.own_size)[-1][1].stop

    def outline(self, *, plates: bool = True) -> Any:
        """Return the properties, without the batch, that two laws must share to be added; with
        ``plates=False`` without the number of members of a plate.
        """
        del plates
        return (type(self), self.own_size)

    @property
    def xp(self) -> Namespace:
        """The array functions that fit the leaves."""
        return namespace(*([self.__dict__[name] for name in self.coordinates] or leaves(self)))

    def __getitem__(self, index: Index) -> Self:
        """Members of the batch, by NumPy's indexing rules."""
        index = index if isinstance(index, tuple) else (index,)
        batch = len(self.batch_shape)

        def some(leaf):
            own = (slice(None),) * (leaf.ndim - batch)  # which no index may take
            return leaf[(*index, *own)]

        return map_leaves(some, self)

    # --- the vector space --------------------------------------------------------------------

    def __add__(self, other: Self) -> Self:
        return self._zip(operator.add, other)

    def __sub__(self, other: Self) -> Self:
        return self._zip(operator.sub, other)

    def __mul__(self, scalar: int | float | Real) -> Self:
        return self._scale(operator.mul, scalar)

    __rmul__ = __mul__

    def __truediv__(self, scalar: int | float | Real) -> Self:
        return self._scale(operator.truediv, scalar)

    def __neg__(self) -> Self:
        return map_leaves(operator.neg, self)

    def zero(self) -> Self:
        """Return the factor of zeros, which changes nothing when added."""
        return map_leaves(lambda leaf: namespace(leaf).np.zeros_like(leaf), self)

    def _zip(self, operation: Callable[..., Any], other: Any) -> Any:
        if type(self) is not type(other):
            return NotImplemented
        mine = self.__dict__
        theirs = other.__dict__
        if self.coordinates and LABEL not in mine and LABEL not in theirs:  # as nearly always
            pairs = [(mine[name], theirs[name]) for name in self.coordinates]
            kept = self.kept()
            if all(a.shape == b.shape for a, b in pairs) and kept == other.kept():
                return self.of_children([frozen(operation(*pair)) for pair in pairs], kept)
        self._check_alike(other)
        return map_leaves(operation, *alike(self, other))

    def _check_alike(self, other: Any) -> None:
        """Batches broadcast, own axes never."""
        if type(self) is type(other):
            mine = self.batch_shape
            theirs = other.batch_shape
            if self.outline() == other.outline() and (mine == theirs or broadcasts(mine, theirs)):
                return
        raise StructureError(
            found=f"{self!r} and {other!r}",
            expected="members of one family, blocks and dimensions, whose batch shapes broadcast",
        )

    def _scale(self, operation: Callable[..., Any], scalar: Any) -> Any:
        if isinstance(scalar, Node):
            return NotImplemented
        if not np.ndim(scalar):
            return map_leaves(lambda leaf: operation(leaf, scalar), self)
        # An array of scalars goes along the batch, never along a member's own axes.

        def own(leaf):
            return (1,) * (np.ndim(leaf) - len(self.batch_shape))

        def along(leaf):
            return operation(leaf, scalar.reshape(scalar.shape + own(leaf)))

        return map_leaves(along, self)

    def relabel(self, labels: Int[np.ndarray, " k"], size: int, axes: Sequence[int] = (0,)) -> Self:
        """Return a factor whose entry ``k`` along ``axes`` becomes entry ``labels[k]``.

        Several axes are relabelled together, such as rows and columns of transitions. Axes of the
        batch come first, then a member's own. Each gets ``size`` entries: entries with the same
        label are summed, entries with label -1 are left out, and others are zero.

        Raises:
            StructureError: if an axis does not exist, or does not have ``k`` entries.

        >>> import numpy as np
        >>> from posterity.families import Dirichlet
        >>> counts = Dirichlet(np.array([5.0, 2.0, 1.0]))
        >>> counts.relabel(np.array([2, 0, -1]), 4).natural_parameters
        array([2., 0., 5., 0.])
        """

        def one(law, axis):
            return law._relabel_axis(np.asarray(labels), size, axis)

        return functools.reduce(one, axes, self)

    def _relabel_axis(self, labels: np.ndarray, size: int, axis: int) -> Self:
        batch = len(self.batch_shape)
        shape = (*self.batch_shape, self.own_size)
        own = any(coordinate.axes for coordinate in self.coordinates.values())
        if not 0 <= axis < batch + own or shape[axis] != len(labels):
            raise StructureError(
                found=f"{len(labels)} labels for axis {axis} of {self!r}",
                expected=f"a label for each entry of one of the axes of {shape[: batch + own]}",
            )
        parts = {}
        for name, coordinate in self.coordinates.items():
            # A matrix has its own axis twice.
            moved = [axis] if axis < batch else [batch + n for n in range(coordinate.axes)]
            parts[name] = getattr(self, name)
            for one in moved:
                parts[name] = place(parts[name], labels, size, one)
        return self._with(**parts)

    @property
    def natural_parameters(self) -> Flat:
        """The natural parameters ``eta``, flat.

        >>> from posterity.families import Gaussian
        >>> Gaussian.from_standard([3.0], [[0.5]]).natural_parameters
        array([6., 2.])
        """
        return self.flatten(**{name: getattr(self, name) for name in self.coordinates})

    def with_natural_parameters(self, vector: Flat) -> Self:
        """Return the law with these flat natural parameters.

        >>> from posterity.families import Gamma
        >>> like = Gamma.from_standard(1.0, 1.0)
        >>> like.with_natural_parameters(np.array([2.0, 4.0])).rate.item()
        4.0
        """
        self._check_length(vector)
        made = self._with(**self.unflatten(as_leaf(vector)))
        return labelled(made, self.__dict__.get(LABEL, ()))

    def _check_length(self, vector: Real) -> None:
        if np.shape(vector)[-1:] != (self.dimension,):
            raise StructureError(
                found=f"a flat vector of shape {np.shape(vector)} for {self!r}",
                expected=f"{self.dimension} numbers on its last axis",
            )

    def flatten(self, **parts: Real) -> Flat:
        """Return one flat vector from arrays named and shaped like the leaves."""
        xp = namespace(*parts.values()).np
        columns = [kind.to_columns(parts[name]) for name, kind in self.coordinates.items()]
        if len({column.shape[:-1] for column in columns}) > 1:
            batch = np.broadcast_shapes(*(column.shape[:-1] for column in columns))
            columns = [xp.broadcast_to(column, batch + column.shape[-1:]) for column in columns]
        return xp.concatenate(columns, axis=-1)

    def unflatten(self, vector: Flat) -> dict[str, Real]:
        """Return arrays named and shaped like the leaves from one flat vector."""
        size = self.own_size
        spans = zip(self.coordinates.values(), _spans(type(self), size), strict=True)
        return {n: kind.from_columns(vector[..., span], size) for kind, (n, span) in spans}


@functools.cache
def _spans(family: type[VectorSpace], size: int) -> list[tuple[str, slice]]:
    """The columns of each coordinate in a flat vector, of members of a size."""
    ends = list(itertools.accumulate(k.length(size) for k in family.coordinates.values()))
    return list(zip(family.coordinates, map(slice, [0, *ends], ends), strict=False))


@functools.cache
def _first(family: type[VectorSpace]) -> tuple[str, int]:
    """The first coordinate, and its own axes."""
    name, coordinate = next(iter(family.coordinates.items()))
    return name, coordinate.axes


@functools.cache
def _with_own_axes(family: type[VectorSpace]) -> str | None:
    """The first coordinate that is no number."""
    return next((name for name, kind in family.coordinates.items() if kind.axes), None)
