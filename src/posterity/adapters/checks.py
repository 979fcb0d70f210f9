"""Checks that adapters share: what is installed, what is fitted, what data and names have to be."""

import importlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.errors import MissingExtraError, ParameterError, StructureError, UsageError
from posterity.families.names import some

Array = np.ndarray
Names = Iterable[str] | None
SAME = "Pass the data that the model was fitted with."


class Data(NamedTuple):
    """What a model was fitted with, beside the model: records, responses and their weights.

    ``names`` are other names for coordinates than the model's own.
    """

    x: Any = None
    y: Any = None
    weight: Any = None
    names: Names = None


def library(*modules: str, extra: str, package: str = "") -> Any:
    """The package of these modules, all of them imported.

    Raises:
        MissingExtraError: if one is not installed; it names the extra that brings ``package``.
    """
    name = modules[0].partition(".")[0]
    try:
        for module in modules:
            importlib.import_module(module)
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError.of(package or name, extra) from error


def unsupported(found: Any, expected: str, fix: str) -> UsageError:
    """The error of an object that an adapter does not take, which names its type."""
    kind = found if isinstance(found, type) else type(found)
    return UsageError(found=f"{kind.__module__}.{kind.__qualname__}", expected=expected, fix=fix)


def check_fitted(model: Any, *attributes: str) -> None:
    """Raise a UsageError for a model that lacks one of the attributes that its ``fit`` sets."""
    if not all(hasattr(model, name) for name in attributes):
        raise UsageError(
            found=f"a {type(model).__name__} that is not fitted",
            expected="a fitted one",
            fix="Call fit first.",
        )


def check_no_prior(model: Any, prior: Any) -> None:
    """Raise a UsageError for a prior beside a model that was fitted with one of its own."""
    if prior is not None:
        raise UsageError(
            found=f"prior={prior!r} for a {type(model).__name__}, which has its own",
            expected="none",
            fix="Fit it with the prior that it should have.",
        )


def check_undetermined(parameters: Collection[str], determined: Iterable[str]) -> None:
    """Raise a UsageError for constructor arguments that a posterior already determines."""
    if taken := sorted(set(parameters) & set(determined)):
        raise UsageError(
            found=f"parameters {taken}",
            expected="only parameters that the posterior does not determine",
            fix="Leave them out.",
        )


def check_one(law: Any) -> None:
    """Raise a StructureError for a batch of laws."""
    if law.batch_shape:
        raise StructureError(
            found=f"a batch of shape {law.batch_shape} of {type(law).__name__}",
            expected="one law: other libraries have no arrays of these",
            fix="Take them one by one: law[0].",
        )


def numbers(values: Any, what: str, *, names: Sequence[str] = ()) -> Array:
    """Finite numbers as float64; ``names`` are those of the columns, which an error repeats.

    Raises:
        ParameterError: for texts, rows that are not as long as each other, NaN and infinity.
    """
    try:
        made = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(
            found=f"{what} that are no array of numbers ({str(error)[:80]})",
            expected="numbers, in rows of one length",
            fix="Encode texts as the fit had them, or leave them out.",
        ) from error
    wrong = ~np.isfinite(made)
    if wrong.any():
        columns = at(names, wrong.any(0)) if len(names) and made.ndim == 2 else []
        where = f"columns {some(columns)} of " if columns else ""
        raise ParameterError(
            found=f"NaN or infinity in {where}{what}", expected="finite numbers", fix=SAME
        )
    return made


def table(x: Any, names: Sequence[str], place: str) -> Array:
    """Data (n, d) of a fit with columns of these names, as float64; errors name the column.

    Raises:
        StructureError: for another shape.
        ParameterError: as :func:`numbers`.
    """
    if hasattr(x, "toarray"):  # sparse, of which the curvature is dense all the same
        x = x.toarray()
    shape = np.shape(x)
    if len(shape) == 2 and shape[1] == len(names) and shape[0]:
        return numbers(x, f"the data of {place}", names=names)
    raise StructureError(
        found=f"data of shape {np.shape(numbers(x, f'the data of {place}'))} for {place}",
        expected=f"records (n, {len(names)}), with columns {some(names)}",
        fix=SAME,
    )


def in_columns(x: Any, own: Any, place: str) -> Any:
    """A data frame with its columns in the order of the fit's; all else as it is.

    ``own`` are the names of the fit, or None where it was without.

    Raises:
        StructureError: for a frame without one of them.
    """
    found = getattr(x, "columns", None)
    if found is None or own is None:
        return x
    own = [str(name) for name in own]
    missing = [name for name in own if name not in set(map(str, found))]
    if missing:
        raise StructureError(
            found=f"data without columns {some(missing)}, of {place}",
            expected=f"columns {some(own)}",
            fix="Pass data with the columns that the model was fitted with.",
        )
    return x[own]


def columns_of(estimator: Any, size: int) -> list[str]:
    """The names of the columns that an estimator was fitted with; ``x0``, ``x1`` without."""
    own = getattr(estimator, "feature_names_in_", None)
    return [f"x{k}" for k in range(size)] if own is None else [str(name) for name in own]


def at(names: Sequence[str], places: Any) -> list[str]:
    """The names at which ``places``, one a name, are true."""
    return [name for name, found in zip(names, places, strict=True) if found]
