"""Kinds of arrays in a site's data, and their checks."""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.tree import tree_leaves
from posterity.arrays.typing import ArrayLike, PyTree
from posterity.errors import FitWarning, ParameterError, ScaleWarning, StructureError
from posterity.models.tables import Names, array, check_numbers

# --- the table ---------------------------------------------------------------------------------


class Column(NamedTuple):
    """A kind of array (n, *axes) in the data; None is an axis of any length."""

    shape: str
    axes: tuple[int | None, ...] = ()
    values: str = "finite numbers"
    holds: Callable[[np.ndarray], Any] = np.isfinite


FLIPS = Column("shape (n,)", (), "records in {0, 1}", lambda x: (x == 0) | (x == 1))
COUNTS = Column("shape (n,)", (), "counts 0, 1, 2, …", lambda x: (x >= 0) & (x % 1 == 0))
TIMES = Column("shape (n,)", (), "waiting times that are not negative", lambda x: x >= 0)
VECTORS = Column("shape (n, d)", (None,))
INPUTS = Column("x of shape (n, d)", (None,))
TARGETS = Column("y of shape (n,)")
POSITIVE_TARGETS = Column("y of shape (n,)", (), "positive values", lambda y: y > 0)
BINARY_LABELS = Column("y of shape (n,)", (), "labels in {0, 1}", FLIPS.holds)
COUNTS_AND_EXPOSURES = Column(
    "y of shape (n, 2), of counts and exposures",
    (2,),
    "counts 0, 1, 2, …, and exposures that are positive",
    lambda y: np.stack([COUNTS.holds(y[:, 0]), y[:, 1] > 0], 1),
)


def vectors(size: int) -> Column:
    """Return the column of vectors of this length."""
    return Column(f"shape (n, {size})", (size,))


def labels(categories: int, shape: str = "shape (n,)") -> Column:
    """Return the column of labels from 0 to ``categories - 1``."""

    def among(x):
        return np.isin(x, np.arange(categories))

    return Column(shape, (), f"labels from 0 to {categories - 1}", among)


# --- the checks --------------------------------------------------------------------------------


def check_data(data: PyTree, columns: tuple[Column, ...]) -> None:
    """Raise an error unless data are finite numbers, and match ``columns`` if there are any."""
    for leaf in map(array, tree_leaves(data)):
        check_numbers(leaf, "the records")
    parts = pair(data) if len(columns) == 2 else (data,) * len(columns)
    if len(columns) == 1 and isinstance(data, tuple | list):
        raise StructureError(found=f"{len(data)} arrays", expected=f"one array, {columns[0].shape}")
    for part, column in zip(parts, columns, strict=True):
        check_column(part, column)


def check_column(part: ArrayLike, column: Column) -> None:
    """Raise a StructureError for a wrong shape, a ParameterError for wrong values."""
    values = np.asarray(part)
    pairs = zip(values.shape[1:], column.axes, strict=False)
    if values.ndim != 1 + len(column.axes) or any(size not in (n, None) for n, size in pairs):
        raise StructureError(found=f"an array of shape {values.shape}", expected=column.shape)
    valid = column.holds(values)
    if not valid.all():
        wrong = values[~valid]
        raise ParameterError(
            found=f"{wrong.flat[0]} among the records ({wrong.size} such)", expected=column.values
        )


def pair(data: PyTree) -> tuple[Any, Any]:
    """Return inputs and observations; a StructureError unless the data are two arrays."""
    several = isinstance(data, tuple | list)
    if several and len(data) == 2:
        return data[0], data[1]
    raise StructureError(
        found=f"data that are a {type(data).__name__}" + (f" of {len(data)}" if several else ""),
        expected="a pair (x, y) of inputs and what was observed",
    )


# --- arrays by themselves, and their scale -----------------------------------------------------


def real_numbers(value: Any, what: str, names: Names = (), *, records: bool = True) -> np.ndarray:
    """Return a table as a finite array, read by :func:`~posterity.models.tables.array`, whose
    errors are raised; with ``records`` it is not empty and has at least two axes.
    """
    made = array(value, names, what)
    if records and (made.ndim < 2 or not made.size):
        raise StructureError(
            found=f"{what} of shape {made.shape} and dtype {made.dtype}",
            expected="real numbers (n, d), or images; x[:, None] of a single column",
        )
    check_numbers(made, what)
    return made


def inputs(x: Any, names: Names = None, size: int | None = None) -> np.ndarray:
    """Return inputs (n, ...) as a finite array, with this ``size`` of one input if it is known.
    Errors are those of :func:`real_numbers`, and a StructureError for another shape.
    """
    made = real_numbers(x, "the inputs", names, records=False)
    if made.ndim < 1 or size not in (None, math.prod(made.shape[1:])):
        raise StructureError(
            found=f"inputs of shape {made.shape}",
            expected=f"an axis of inputs, as x[None] has, then {size or 'the'} numbers each",
        )
    return made


WEIGHTS = (
    "priors of weights and first steps are meant. Subtract a mean and divide by a deviation of "
    "each column, the same ones at all sites and in all that is predicted."
)


def warn_of_scale(
    x: np.ndarray,
    what: str,
    use: str = WEIGHTS,
    *,
    stacklevel: int,
    least: float = 1e-2,
    most: float = 10.0,
) -> None:
    """Emit a ScaleWarning if the root mean square of a column of ``x`` (n, d) is above ``most``, or
    the largest below ``least``. ``use`` says what columns of scale one are for, and what to do.
    """
    size = np.sqrt(np.einsum("nd,nd->d", x, x, dtype=np.float64) / len(x))
    worst = int(size.argmax())
    if size[worst] and not least <= size[worst] <= most:
        warnings.warn(
            f"found {what} whose column {worst} has a root mean square of {size[worst]:.3g}; "
            f"expected about 1, for which {use}",
            ScaleWarning,
            stacklevel=stacklevel + 1,
        )


def warn_of_classes(y: np.ndarray, classes: int, *, stacklevel: int, few: int = 3) -> None:
    """Emit a FitWarning for classes with fewer than ``few`` records among labels (n,)."""
    counts = np.bincount(np.asarray(y, np.int64), minlength=classes)
    rare = np.flatnonzero(counts < few)
    if len(rare):
        pairs = [f"{counts[own]} of class {own}" for own in rare[:5]]
        more = f", ... ({len(rare)} such classes)" if len(rare) > len(pairs) else ""
        warnings.warn(
            f"found {', '.join(pairs)}{more} among {len(y)} records; expected at least {few} of "
            "each: with fewer the prior determines a class's probability. Add records, or "
            "leave the class out.",
            FitWarning,
            stacklevel=stacklevel + 1,
        )
