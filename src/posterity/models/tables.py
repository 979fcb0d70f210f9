"""What people pass as records, read as arrays: data frames by the names of their columns.

Every verb reads records by :func:`array` (of one table) or :func:`arrays` (of a site's data).
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from posterity.arrays.leaves import kind_of
from posterity.arrays.tree import tree_map
from posterity.artifact.aligned import is_topics
from posterity.artifact.provenance import unnamed
from posterity.errors import ParameterError, StructureError
from posterity.families import Distribution
from posterity.families.gaussian import AnyGaussian
from posterity.families.names import joined, names_of, order, some, unfit
from posterity.families.normal_gamma import NormalGamma
from posterity.families.normal_wishart import NormalWishart
from posterity.ledger import Ledger

COLUMNS = AnyGaussian | NormalGamma | NormalWishart
"""Families with one coordinate per column: of coefficients, or of components of a mixture."""
Base = TypeVar("Base", bound=Distribution | Ledger)
Names = Sequence[str] | None
"""Names of the columns that are wanted, in order; none if a frame may have any in its own order;
None if no names are known where columns have a meaning already, so that a frame is refused."""
SPREAD = "log_spread"
"""The block of a :func:`~posterity.models.hierarchical` prior with coordinates for some columns."""
INDICATORS = (
    "Code categories as indicators (0 and 1), the same at every site, and texts as numbers."
)
IMPUTE = "Impute missing values before they reach the model, or leave their records out."
RAGGED = "Give rows of one length; inputs and observations as a tuple, (x, y)."
FIXES = {
    "M": "Count days from a date that all sites share: (x - origin) / np.timedelta64(1, 'D').",
    "m": "Count them in one unit: x / np.timedelta64(1, 'D').",
    "c": "Pass real and imaginary parts as columns of their own.",
}
"""By the kind of a type that holds no real numbers, how to make numbers of it."""
LARGEST = np.iinfo(np.int64).max
TOO_WIDE = (np.uint64, np.longdouble)
"""Types with numbers that 64-bit integers and floats, to which records are widened, do not hold."""

# --- names ---------------------------------------------------------------------------------------


def with_columns(prior: Base, names: Sequence[str]) -> Base:
    """Return the prior, or ledger, with its coordinates named after the data's columns.

    The named parts are Gaussians (of coefficients, or of the components of a mixture),
    Normal-gammas and Normal-Wisharts, but no part of a network. Existing names are kept.

    >>> from posterity.families import Gaussian
    >>> with_columns(Gaussian.from_standard([0.0], [[1.0]]), ["age"]).names
    ('age',)
    """
    law = prior.prior if isinstance(prior, Ledger) else prior
    unnamed_parts = [path for path in by_column(law, len(names)) if path not in names_of(law)]
    if not unnamed_parts:
        return prior
    return prior.named({path: list(names) for path in unnamed_parts})  # pyright: ignore[reportReturnType]


def by_column(law: Distribution, size: int | None = None, path: str = "") -> list[str]:
    """Return the paths of parts with a coordinate per column, of ``size`` columns or any number."""
    if isinstance(law, COLUMNS) and law.network_layers is None and size in (None, law.own_size):
        return [path]
    paths: list[str] = []
    for name, part in law.named_parts().items():
        at = joined(path, name)
        if is_topics(law) and size in (None, part.own_size):
            paths.append(at)
        elif name != SPREAD:
            paths += by_column(part, size, at)
    return paths


def columns_of(prior: Distribution | Ledger) -> tuple[str, ...]:
    """Return the names of the columns of a prior or ledger; empty if it has none."""
    law = prior.prior if isinstance(prior, Ledger) else prior
    return next((own for path in by_column(law) if (own := names_of(law).get(path))), ())


def columns_in(data: Any) -> tuple[str, ...]:
    """Return the names of the columns of a data frame, or of the frame that comes first in a site's
    data; empty if it has none. Names that are no texts are taken as texts. Errors are those of
    :func:`distinct`.
    """
    x: Any = data[0] if isinstance(data, tuple | list) and len(data) else data
    return distinct([*map(str, x.columns)]) if _is_frame(x) else ()


def distinct(columns: Sequence[str]) -> tuple[str, ...]:
    """Return names of columns; a StructureError unless they are texts, not empty, and distinct."""
    why = unfit(columns)
    if why:
        raise StructureError(
            found=f"columns of which {why}", expected="a name for each column, no two the same"
        )
    return tuple(columns)


def in_common(sites: Mapping[str, Any], prior: Base) -> tuple[tuple[str, ...], Base]:
    """Return the names of the columns of sites' data, and the prior with these names.

    A prior without names gets those of the first data frame. Arrays, which have no names, are
    assumed to be in that order, with a warning. Errors are those of :func:`columns_in`.
    """
    columns = {site: columns_in(data) for site, data in sites.items() if data is not None}
    first = next(filter(None, columns.values()), ())
    if not first:
        return columns_of(prior), prior
    prior = with_columns(prior, first)
    names = columns_of(prior) or first
    for line in unnamed(columns, names):
        warnings.warn(line, stacklevel=4)
    return names, prior


# --- records -------------------------------------------------------------------------------------


def arrays(data: Any, names: Names = ()) -> Any:
    """Return a site's data as a tree of arrays; None if there are none.

    A tuple or a dictionary is a tree; a list of numbers, or of such lists, is an array. A frame
    that is the data, or comes first in a tuple, is read by ``names``; one elsewhere is refused,
    since the order of its columns has a meaning. Raises the errors of :func:`array`, and those of
    :func:`check_labels`.
    """
    if isinstance(data, list) and _is_array(data):
        return array(data, names)
    if isinstance(data, tuple | list) and len(data):
        check_labels(*data)
        parts = [arrays(data[0], names), *(arrays(part, None) for part in data[1:])]
        return type(data)(parts) if type(data) in (tuple, list) else type(data)(*parts)
    if type(data) is dict:
        return {name: arrays(part, None) for name, part in data.items()}
    return tree_map(lambda leaf: array(leaf, names if leaf is data else None), data)


def array(value: Any, names: Names = (), what: str = "records") -> np.ndarray:
    """Return one table as an array of real numbers, which may be NaN.

    Columns of a data frame (of pandas, polars and others with ``columns`` and ``to_numpy``) are
    put in the order of ``names``, which must be all of them, as float64; without names they keep
    their own. ``what`` names the table in errors.

    Raises:
        StructureError: for other columns, a frame where ``names`` is None, sparse matrices, rows of
            unequal lengths, and values that are not real numbers, such as dates and categories.
        ParameterError: for masked values.
    """
    if _is_frame(value):
        return _of_frame(value, names, what)
    if hasattr(value, "toarray") or hasattr(value, "__dataframe__"):
        raise StructureError(
            found=f"{what} that are a {type(value).__module__}.{type(value).__name__}",
            expected="an array, x.toarray() of a sparse matrix, or a frame of pandas or polars",
        )
    rows = value if isinstance(value, tuple | list) else [value]
    masks = [np.ma.getmaskarray(row).sum() for row in rows if isinstance(row, np.ma.MaskedArray)]
    if any(masks):
        raise _missing(f"{sum(masks)} masked values among {what}")
    try:
        made = np.asarray(value)
    except ValueError as error:
        raise _unreal(f"{what} whose rows have different lengths", RAGGED) from error
    strange = odd_kinds(value, made)
    if strange:
        found = f"{what} of shape {made.shape} and dtype {_dtype(value, made)}"
        raise _unreal(found, _fix(strange))
    if made.dtype == np.uint64 and made.max(initial=0) <= LARGEST:
        return made.astype(np.int64)
    return made.astype(np.float64) if made.dtype in TOO_WIDE else made


def check_labels(*tables: Any) -> None:
    """Raise a StructureError if the rows of two tables of pandas have different labels."""
    found: list[Any] = [getattr(table, "index", None) for table in tables]
    labels = [own for own in found if hasattr(own, "equals")]
    if any(not own.equals(labels[0]) for own in labels[1:]):
        raise StructureError(
            found="tables whose rows have other labels, or the same ones in another order",
            expected="equal indices, y.loc[x.index]; or y.to_numpy(), if they do belong together",
        )


def _of_frame(frame: Any, names: Names, what: str) -> np.ndarray:
    labels = list(frame.columns)
    if names is None:
        raise StructureError(
            found=f"{what} that are a data frame, with columns {some(labels)}",
            expected="an array, frame[names].to_numpy() with names in the order of the model",
        )
    own = columns_in(frame)
    places = order(own, names or own, what, "the model")
    made = np.empty((len(frame), len(places)))
    wrong = {}
    kinds = ""
    for at, place in enumerate(places):
        column = frame[labels[place]]
        values = np.asarray(column)
        strange = odd_kinds(column, values)
        if strange:
            wrong[own[place]] = str(_dtype(column, values))
            kinds += strange
        else:
            made[:, at] = values
    if wrong:
        types = ", ".join(dict.fromkeys(wrong.values()))
        found = f"columns {some([*wrong])} of {what}, of dtype {types}, that hold no numbers, or "
        raise _unreal(found + "lack some", _fix(kinds))
    return made


def _dtype(value: Any, made: np.ndarray) -> Any:
    return getattr(value, "dtype", made.dtype)


def odd_kinds(value: Any, made: np.ndarray) -> str:
    """Return the kinds of declared and stored types that are not those of real numbers."""
    kinds = kind_of(_dtype(value, made)) + kind_of(made.dtype)
    return kinds.strip("biuf")


def _fix(kinds: str) -> str:
    return next((FIXES[kind] for kind in kinds if kind in FIXES), INDICATORS)


def _unreal(found: str, fix: str) -> StructureError:
    return StructureError(found=found, expected="real numbers, as many in every row", fix=fix)


def check_numbers(values: Any, what: str, fix: str = IMPUTE) -> None:
    """Raise a ParameterError for NaN or infinity in an array: how many, and where the first is."""
    wrong = ~np.isfinite(values)
    if wrong.any():
        first = np.argwhere(wrong)[0].tolist()
        count = int(wrong.sum())
        raise _missing(f"NaN or infinity among {what} ({count} such, the first at {first})", fix)


def _missing(found: str, fix: str = IMPUTE) -> ParameterError:
    return ParameterError(found=found, expected="finite numbers", fix=fix)


def _is_frame(value: Any) -> bool:
    return hasattr(value, "to_numpy") and hasattr(value, "columns")


def _is_array(rows: Any) -> bool:
    """Return whether nested lists hold numbers, and not arrays."""
    while isinstance(rows, list) and rows:
        rows = rows[0]
    return isinstance(rows, list) or np.isscalar(rows)
