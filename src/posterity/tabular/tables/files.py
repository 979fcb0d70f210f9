"""Reading of tables with one parameter per row, and writing of them and of JSON."""

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from posterity.errors import StructureError, UsageError, within
from posterity.families import DiagonalGaussian, ExponentialFamily
from posterity.families.names import in_order, order, some
from posterity.ledger import Ledger
from posterity.runtime.files import alongside, write_file
from posterity.tabular.tables import numbers, reader
from posterity.tabular.tables.headers import roles_of
from posterity.tabular.tables.laws import from_table, to_ledger, to_table

Name = str | os.PathLike[str]

TEXTS = {"site", "name"}
"""Roles of columns that are no numbers."""
EFFECT = "effect"
"""Name of the only parameter of a table of studies without a column of names."""
DRAWS = {"lp__", "chain", ".chain", ".draw"}
"""Columns that only tables of draws have."""


class Moments(NamedTuple):
    """The contents of a table: names, means (d,), and deviations (d,) or a covariance (d, d).

    ``notes`` are remarks on what was read. ``sites`` has the study of each row, if a column names
    it: then a name may come once in each.
    """

    names: tuple[str, ...]
    mean: Any
    sd: Any = None
    covariance: Any = None
    notes: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()


def read(
    path: Name,
    *,
    covariance: Name | None = None,
    decimal: str | None = None,
) -> ExponentialFamily:
    r"""Return the law whose moments a file holds.

    Args:
        path: path of a ``.csv`` (or ``.tsv``, ``.txt``) with one row per parameter, under headers
            of :data:`HEADERS`.
        covariance: path of a second table, with names on its rows and columns, in any order.
        decimal: ``"."`` or ``","``, if the numbers do not determine it.

    A file that cannot be read, or a cell that is not a number, is an ArtifactError, which names the
    file, the line and the column.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "coefficients.csv"
    >>> _ = file.write_text('"","Estimate","Std. Error"\n"age",0.31,0.05\n')
    >>> read(file).mean
    array([0.31])
    """
    return law_of(read_moments(path, covariance=covariance, decimal=decimal), path)


def read_sites(path: Name, *, decimal: str | None = None, **options: Any) -> Ledger:
    r"""Return the ledger of a table of several studies' estimates, with a row for each study and
    parameter: ``study`` (or ``site``), the parameter's name if there are several, estimate and
    standard error. ``options`` are those of :func:`of_sites`, errors are as of :func:`read`.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "trials.csv"
    >>> _ = file.write_text("study,estimate,se\nA,-0.4,0.2\nB,-0.9,0.3\n")
    >>> read_sites(file).sites
    ('A', 'B')
    """
    return of_sites(read_moments(path, decimal=decimal), path, **options)


def of_sites(found: Moments, path: Name, *, prior: Any = None, flat_sd: float = 1e6) -> Ledger:
    """Return the ledger of the studies in a table, whose estimates are their factors.

    ``prior`` is a diagonal Gaussian over the parameters by name, by default ``N(0, flat_sd²)``.
    """
    if not found.sites or found.covariance is not None:
        raise UsageError(
            found=f"table '{path}' without a column of studies, or with a covariance",
            expected="columns study, estimate and standard error",
        )
    names = tuple(dict.fromkeys(found.names))
    rows: dict[str, list[Any]] = {}
    for site, *row in zip(found.sites, found.names, found.mean, found.sd, strict=True):
        rows.setdefault(site, []).append(row)
    factors = {}
    widest = Ledger(from_table(names, np.zeros(len(names)), np.full(len(names), flat_sd)))
    for site, each in rows.items():
        own, mean, sd = zip(*each, strict=True)
        with within(f"study {site!r} of table '{path}'"):
            law = from_table(own, mean, sd)
            to_ledger(law, site, prior=prior, flat_prior=True, flat_sd=flat_sd)
        places = [names.index(name) for name in own]
        wide = np.zeros((2, len(names)))
        wide[:, places] = law.precision_mean, law.precision  # pyright: ignore
        factors[site] = DiagonalGaussian._of(precision_mean=wide[0], precision=wide[1])
    ledger = widest if prior is None else Ledger(in_order(prior, {"": names}, "the prior", "table"))
    return ledger.extend(factors, independent=True)


def law_of(found: Moments, path: Name) -> ExponentialFamily:
    """Return the law of moments that were read; errors name the file."""
    with within(f"table '{path}'"):
        return from_table(found.names, found.mean, found.sd, covariance=found.covariance)


def read_moments(
    path: Name, *, covariance: Name | None = None, decimal: str | None = None
) -> Moments:
    """Read the moments in a table, with notes on it. Errors as of :func:`read`."""
    numbers.DECIMAL.check(decimal=decimal)
    path = Path(path)
    result = _csv(path, decimal, covariance)
    if covariance is None:
        return result
    cells = reader.read_cells(Path(covariance), unnamed=True)
    across = cells.header[1:]
    down = tuple(reader.clean(row[0]) for row in cells.rows)
    _check_names(Path(covariance), down, cells.lines)
    columns = order(across, result.names, f"the columns of '{covariance}'", "the means")
    rows = order(down, result.names, f"the rows of '{covariance}'", "the means")
    matrix = cells.numbers(across, decimal)[np.ix_(rows, columns)]
    if result.sd is not None:  # tables of one fit agree; rounded ones agree to three digits
        wide = np.sqrt(np.maximum(np.diagonal(matrix), 0))
        for name, one, other in zip(result.names, result.sd, wide, strict=True):
            found = f"sd {one:g} of {name!r} in '{path}', {other:g} by the covariance"
            apart = not abs(one - other) <= 0.005 * max(abs(one), other)
            StructureError.check((apart, found, "two tables of the same fit"))
    return result._replace(sd=None, covariance=matrix)


def write(
    law: Any, path: Name, *, covariance: Name | None = None, recipe: Mapping[str, Any] | None = None
) -> None:
    """Write the moments of a law: as a ``.csv``, which :func:`read` reads, or a ``.json``.

    Numbers that were read from a table with up to 14 digits are written unchanged; all others
    with all digits of float64. A CSV holds only standard deviations: to keep correlations, pass
    ``covariance``, the path of a second file. JSON also holds a ``recipe``, if there is one.

    Raises:
        StructureError: for a law that has no such table (:func:`to_table`).
        UsageError: for ``covariance`` with a law that has none, or with JSON.
        ArtifactError: if a file cannot be written; it is then unchanged.
    """
    table = to_table(law)
    path = Path(path)
    as_json = path.suffix.lower() == ".json"
    if covariance is not None and (as_json or "covariance" not in table):
        raise UsageError(
            found=f"a file '{covariance}' for a covariance"
            + (" beside a .json, which includes it" if as_json else f" of a {table['family']} law"),
            expected="it only for a Gaussian that is not diagonal, beside a .csv",
        )
    if as_json:
        table |= {} if recipe is None else {"recipe": recipe}
        write_file(path, json.dumps(table, indent=2, ensure_ascii=False).encode() + b"\n")
        return
    names = table["names"]
    sd = table["sd"] if "sd" in table else np.sqrt(np.diagonal(table["covariance"])).tolist()
    rows = zip(names, table["mean"], sd, strict=True)
    with contextlib.ExitStack() as both:
        if covariance is not None:
            each = ([name, *row] for name, row in zip(names, table["covariance"], strict=True))
            content = as_csv([["name", *names], *each]).encode()
            both.enter_context(alongside(Path(covariance), content))
        write_file(path, as_csv([["name", "mean", "sd"], *rows]).encode())


def as_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows of texts and numbers, separated by commas; spreadsheets do not evaluate texts."""
    text = io.StringIO()
    each = ([reader.as_text(cell) if isinstance(cell, str) else cell for cell in r] for r in rows)
    csv.writer(text, lineterminator="\n").writerows(each)
    return text.getvalue()


def _csv(path: Path, decimal: str | None, covariance: Name | None) -> Moments:
    cells = reader.read_cells(path, unnamed=True)
    if any(name.startswith("#") or name in DRAWS for name in cells.header):
        raise StructureError(
            found=f"draws in table '{path}', whose header is {some(cells.header)}",
            expected="a table of means and standard deviations, a row for each parameter",
            fix="Read them in Python, and pass them to posterity.adapters.from_samples.",
        )
    with within(f"table '{path}'"):
        roles, unused = roles_of(cells.header)
        vague = not {"sd", "variance", "upper"} & roles.keys() and covariance is None
        means = f"means without standard deviations: columns {some(cells.header)}"
        expected = "a row for each parameter, with its standard deviation or limits"
        StructureError.check(
            (vague, means, expected), (not cells.rows, "a header without rows", expected)
        )
    columns = {role: place for role, place in roles.items() if role not in TEXTS}
    read = cells.numbers([cells.header[place] for place in columns.values()], decimal)
    values = dict(zip(columns, read.T, strict=True))

    def texts(role: str) -> tuple[str, ...]:
        return tuple(reader.clean(row[roles[role]]) for row in cells.rows)

    sites = texts("site") if "site" in roles else ()
    names = texts("name") if "name" in roles else (EFFECT,) * len(sites)
    _check_names(path, names, cells.lines, sites)
    if "lower" in values:
        _check_interval(path, names, cells, columns, values)
    others = [name for name in unused if name]
    notes = [f"columns that were not used: {', '.join(others)}"] if others else []
    sd = values.get("sd")
    if "variance" in values:
        sd = np.sqrt(np.maximum(values["variance"], 0))
    elif sd is None and covariance is None:
        sd = (values["upper"] - values["lower"]) / (2 * NormalDist().inv_cdf(0.975))
        notes.append(
            "limits are taken as those of normal 95 % intervals: t limits, as of R's confint of "
            "few records, are wider, and need standard errors"
        )
    return Moments(names, values["mean"], sd, notes=tuple(notes), sites=sites)


def _check_names(path: Path, names: Sequence[str], lines: Any, sites: Sequence[str] = ()) -> None:
    """Raise unless there are names, and each comes once: in each study, if a table has some."""
    seen: dict[tuple[str, str], int] = {}
    for name, line, site in zip(names, lines, sites or ("",) * len(names), strict=True):
        if sites and not site:
            raise reader.table_error(path, f"no study in line {line}", "its name")
        known = seen.setdefault((site, name), line)
        if not name or known != line:
            where = f" of study {site!r}" * bool(sites)
            twice = f"{name!r}{where} in line {known} and again in line {line}"
            found = twice if name else f"no name in line {line}"
            raise reader.table_error(path, found, "a name for each parameter, once")


def _check_interval(
    path: Path,
    names: Sequence[str],
    cells: reader.Cells,
    columns: Mapping[str, int],
    values: Any,
    *,
    lopsided: float = 0.04,
) -> None:
    """Raise unless limits are centred at the estimate, up to rounding and a share of the width.

    Limits of skewed draws (``Q2.5``) beside their standard deviation need not be centred.
    """
    alone = not {"sd", "variance"} & values.keys()
    drawn = cells.header[columns["lower"]].lower().startswith("q") and not alone
    for row, line, name, low, mean, high in zip(
        cells.rows,
        cells.lines,
        names,
        *(values[key] for key in ("lower", "mean", "upper")),
        strict=True,
    ):
        unit = min(numbers.last_digit(row[columns[role]]) for role in ("lower", "mean", "upper"))
        rounding = 0.0 if alone else 2 * unit
        centred = drawn or abs(low + high - 2 * mean) <= lopsided * (high - low) + rounding
        if not (low < mean < high and centred):
            raise reader.table_error(
                path,
                f"{name!r} in line {line}: {mean:g} within {low:g} to {high:g}",
                "limits alike on both sides of the estimate (for odds ratios use logarithms: "
                "exponentiate = FALSE), or a column of standard errors",
            )
