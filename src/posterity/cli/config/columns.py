"""The columns of all sites' records in one order, and what is odd about them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.artifact.columns import unnamed
from posterity.cli.config.site_files import TARGET, Table, has_header, read_site
from posterity.errors import ArtifactError, StructureError
from posterity.families.names import order, some

INTERCEPT = "intercept"
"""The name of the column of ones that a configuration asks for."""


class Columns(NamedTuple):
    """What models are given: data by site, and the names of the columns of ``x`` if any has."""

    data: dict[str, Any]
    names: tuple[str, ...]
    notes: tuple[str, ...]


def read_tables(paths: Mapping[str, Path], target: str | None, intercept: bool) -> dict[str, Table]:
    """Every site's records, each with the columns and the order of its own file.

    Raises:
        ArtifactError: if a file cannot be read, has no header, or holds something else.
        StructureError: if a table lacks the ``target``, or has nothing beside it.
    """
    _check_headers(paths)
    tables = {}
    for site, path in paths.items():
        table = read_site(path, target)
        try:
            tables[site] = _with_intercept(table) if intercept else table
            _check_target(tables[site], target or TARGET)
        except StructureError as error:
            raise error.at(f"data {str(path)!r} of site {site!r}") from error
    return tables


def in_one_order(
    tables: Mapping[str, Table], wanted: Sequence[str], target: str | None, regression: bool
) -> Columns:
    """All in the order that is ``wanted``, or else that of the first site whose columns have names.

    Raises:
        StructureError: that names a site with other columns.
    """
    named = {site: table for site, table in tables.items() if table.names}
    first = next(iter(named), "")
    of = "the prior or ledger" if wanted else f"site {first!r}"
    names = tuple(wanted) or (tables[first].names if named else ())
    label = (target or TARGET,) if any(t.y is not None for t in named.values()) else ()
    _check_apart(label, names, of)
    ordered = dict(tables)
    for site, table in named.items():
        mine = (*table.names, *(label if table.y is not None else ()))
        places = order(mine, (*names, *label), f"site {site!r}", of)[: len(names)]
        ordered[site] = table._replace(x=table.x[..., places] if table.x.ndim > 1 else table.x)
    bare = unnamed({site: table.names for site, table in tables.items()}, names)
    odd = oddities([table.x for table in ordered.values()], names) if regression else ()
    data = {site: table.data for site, table in ordered.items()}
    return Columns(data, names, (*bare, *odd))


def oddities(inputs: Sequence[np.ndarray], names: Sequence[str]) -> Iterator[str]:
    """What a regression's inputs, one array (n, d) a site, make worth a word: constant columns."""
    filled = [x for x in inputs if len(x) and x.ndim == 2 and x.dtype.kind in "biuf"]
    if sum(map(len, filled)) < 2 or len({x.shape[1] for x in filled}) > 1:
        return
    low, high = np.min([x.min(0) for x in filled], 0), np.max([x.max(0) for x in filled], 0)
    called = names if len(names) == len(low) else [str(index) for index in range(len(low))]
    value = {called[n]: float(low[n]) for n in np.flatnonzero(low == high).tolist()}
    zero = [name for name in value if value[name] == 0]
    level = [name for name in value if value[name] != 0]
    if zero:
        yield f"0 in every record: {some(zero)}; the prior alone speaks of the coefficients"
    if not level:
        yield "no intercept: set intercept = true in [model] unless that is what you want"
    elif [value[name] for name in level] != [1.0]:
        yield f"the same in every record: {some(level)}, which an intercept is too"


def _check_headers(paths: Mapping[str, Path]) -> None:
    bare = [site for site, path in paths.items() if not has_header(path)]
    if bare:
        others = [site for site, path in paths.items() if path.suffix != ".npz"]
        others = [site for site in others if site not in set(bare)]
        where = f", where there is one at {some(others)}" if others else ""
        raise ArtifactError(
            found=f"no header, but numbers in the first line of {str(paths[bare[0]])!r}, at "
            f"{some(bare)}{where}",
            expected="a first line that names the columns of every table, none by a number",
            fix="Put the names above the records.",
        )


def _check_target(table: Table, label: str) -> None:
    if table.y is None:
        return
    _check_apart([label], table.names, "x")
    if np.shape(table.x)[1:] == (0,):
        raise StructureError(
            found=f"the column {label!r} alone, which is the target",
            expected="columns to predict it from, or model.intercept = true",
            fix="Add columns, or name another one in model.target.",
        )


def _check_apart(label: Sequence[str], names: Sequence[str], of: str) -> None:
    """Raise a StructureError if the target's name is one of the inputs' too."""
    if both := set(label) & set(names):
        raise StructureError(
            found=f"the target {both.pop()!r} among the columns of {of}",
            expected="one that is not predicted from itself",
            fix="Name another one in model.target, or rename a column.",
        )


def _with_intercept(table: Table) -> Table:
    """With a column of ones in front."""
    if INTERCEPT in table.names:
        raise StructureError(
            found=f"a column {INTERCEPT!r}, and model.intercept = true",
            expected="one of them",
            fix="Leave model.intercept out, or rename the column.",
        )
    if table.y is None or np.ndim(table.x) != 2:
        return table  # what is wrong with it the model says
    names = (INTERCEPT, *table.names) if table.names or not table.x.shape[1] else ()
    return Table(np.column_stack([np.ones(len(table.x)), table.x]), table.y, names)
