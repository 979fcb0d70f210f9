"""Sites' tables with named columns, matched to the names of the prior's coordinates."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from posterity.artifact.aligned import is_topics
from posterity.artifact.provenance import unnamed
from posterity.errors import ParameterError, StructureError
from posterity.families import Distribution
from posterity.families.gaussian import AnyGaussian
from posterity.families.names import joined, names_of, order, unfit
from posterity.families.normal_gamma import NormalGamma
from posterity.families.normal_wishart import NormalWishart
from posterity.ledger import Ledger

COLUMNS = AnyGaussian | NormalGamma | NormalWishart
"""Families with one coordinate per column: of coefficients, or of components of a mixture."""
Base = TypeVar("Base", bound=Distribution | Ledger)
SPREAD = "log_spread"
"""The block of a :func:`~posterity.models.hierarchical` prior with coordinates for some columns."""


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


def in_order(sites: Mapping[str, Any], prior: Base) -> tuple[dict[str, Any], Base]:
    """Return sites' data as arrays, with columns of data frames in the order of the prior's names.

    A prior without names gets those of the first data frame. Arrays, which have no names, are
    assumed to be in that order, with a warning. Raises StructureError if columns have other names,
    or names are not distinct strings, and ParameterError if columns are not numeric.
    """
    frames = {site: frame for site, data in sites.items() if (frame := _frame(data)) is not None}
    if not frames:
        return dict(sites), prior
    columns = {site: _columns(frame, site) for site, frame in frames.items()}
    first = next(iter(columns.values()))
    prior = with_columns(prior, first)
    wanted = columns_of(prior) or first
    named = {s: wanted if s in frames or d is None else () for s, d in sites.items()}
    for line in unnamed(named, wanted):
        warnings.warn(line, stacklevel=4)
    return {site: _ordered(data, wanted, site) for site, data in sites.items()}, prior


def of_one_site(data: Any, names: Sequence[str], site: str) -> Any:
    """Return one site's data as arrays, with columns of a data frame in the order of ``names``.
    Without names they keep their order. Errors are those of :func:`in_order`.
    """
    frame = _frame(data)
    return data if frame is None else _ordered(data, names or _columns(frame, site), site)


def _ordered(data: Any, wanted: Sequence[str], site: str) -> Any:
    if (frame := _frame(data)) is None:
        return data
    places = order(_columns(frame, site), wanted, f"site {site!r}", "the prior")
    x = _numbers(frame, site)[:, places]
    return type(data)((x, *data[1:])) if isinstance(data, tuple | list) else x


def _frame(data: Any) -> Any:
    x = data[0] if isinstance(data, tuple | list) and len(data) else data
    return x if hasattr(x, "columns") and hasattr(x, "to_numpy") else None


def _columns(frame: Any, site: str) -> tuple[str, ...]:
    names = tuple(map(str, frame.columns))
    if why := unfit(names):
        raise StructureError(
            found=f"columns of which {why} in the data of site {site!r}",
            expected="a name for each column, no two the same",
            fix="Rename the columns.",
        )
    return names


def _numbers(frame: Any, site: str) -> np.ndarray:
    try:
        return np.asarray(frame.to_numpy(), dtype=float)
    except (TypeError, ValueError) as error:
        wrong = [str(name) for name in frame.columns if frame[name].dtype.kind not in "biuf"]
        raise ParameterError(
            found=f"columns {wrong} of site {site!r} that hold no numbers",
            expected="numbers",
            fix="Code categories as indicators (0 and 1), the same at every site.",
        ) from error
