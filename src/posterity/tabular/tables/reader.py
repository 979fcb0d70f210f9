"""Reader of delimited text: cells with their line numbers, and numbers from them.

Columns are separated by commas, semicolons or tabs. The decimal mark is never guessed: ``1.5`` and
``1,5`` each determine it, ``1,234.5`` and ``1.234,5`` do by their order. ``1,234`` is ambiguous,
and is read only if other cells or the caller determine the mark. So is ``1.234`` between
semicolons.
"""

import csv
import importlib
import io
import itertools
import re
import shlex
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.errors import ArtifactError, MissingExtraError, StructureError
from posterity.families.names import some, unfit
from posterity.runtime.text import typed
from posterity.tabular.tables.numbers import (
    COMMA,
    DECIMAL,
    AmbiguousNumber,
    decimal_mark,
    is_number,
    is_numeric,
    number,
)

DELIMITERS = (",", ";", "\t")
FORMULAS = ("=", "+", "-", "@")
"""First characters of cells that spreadsheets evaluate."""
TEXT = "'"
"""Mark that spreadsheets write before a cell that is text, whatever its form."""
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "."})
"""Spellings of a missing value, in any case: R, pandas, SQL, Stata."""
CORRECT = "Correct the file there."

FRAMES = {
    ".dta": ("pandas", "read_stata"),
    ".sav": ("pandas", "read_spss"),
    ".sas7bdat": ("pyreadstat", "read_sas7bdat"),
    ".xpt": ("pyreadstat", "read_xport"),
    ".parquet": ("pandas", "read_parquet"),
}
"""Functions that read tables of Stata, SPSS, SAS and Arrow, by ending."""
NEEDED = {".parquet": "pyarrow", ".xlsx": "openpyxl", ".dta": "pandas"}
"""Packages that read tables, by ending; pyreadstat reads the others."""
OTHERS = {
    **dict.fromkeys(
        (".rds", ".rda", ".rdata"), ("a table of R", "In R: write.csv(d, FILE, row.names = FALSE).")
    ),
    ".safetensors": ("arrays, such as a posterior's", "Name the table of records here."),
    **dict.fromkeys((".npz", ".npy"), ("arrays", "Save them as .csv, under the columns' names.")),
    **dict.fromkeys((".xls", ".ods"), ("an old or open workbook", "Save it as .xlsx or .csv.")),
    **dict.fromkeys(
        (".nc", ".zarr"),
        (
            "draws, not records",
            "Read them by arviz.from_netcdf, and posterity.adapters.from_samples.",
        ),
    ),
    **dict.fromkeys(
        (".pkl", ".pickle"), ("code, which is not run", "Save it by to_csv or to_parquet.")
    ),
    **dict.fromkeys(
        (".feather", ".db", ".sqlite"), ("another format", "Save it as .csv or .parquet.")
    ),
}
"""Formats that are not read, with what they are and what to do, by ending."""


WHOLE = re.compile(r"^([+-]?\d+)\.0+$")
"""Whole numbers as programs write those of floats."""


class Cells(NamedTuple):
    """The texts of a table: a header, and rows of the same length.

    ``lines`` are the line numbers, from 1, at which the rows start; ``notes`` are pairs of a
    column's name and a remark on it.
    """

    path: Path
    header: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]
    delimiter: str
    notes: tuple[tuple[str, str], ...] = ()

    def column(self, name: str) -> list[str]:
        """Return the texts of one column; a StructureError if the table has none of this name."""
        found = f"no column {name!r} in '{self.path}', which has {some(self.header)}"
        StructureError.check((name not in self.header, found, "a column of the table"))
        place = self.header.index(name)
        return [row[place] for row in self.rows]

    def at(self, places: Sequence[int] | np.ndarray) -> "Cells":
        """Return the table of the rows at these places."""
        rows, lines = ([own[place] for place in places] for own in (self.rows, self.lines))
        return self._replace(rows=rows, lines=lines)

    def numbers(
        self,
        columns: Any,
        decimal: str | None = None,
        *,
        expected: str = "a finite number",
        of_text: str = CORRECT,
    ) -> np.ndarray:
        """Return the finite numbers (rows, columns) of some columns, in the requested order.

        Args:
            columns: names in the header.
            decimal: decimal mark, ``"."`` or ``","``; by default the one on which the cells agree.
            expected: description of a valid cell in errors.
            of_text: next step where a cell is a text, which replaces ``{cell}`` in it, quoted.

        Raises:
            UsageError: for any other ``decimal``.
            ArtifactError: for a cell that is no number, missing or ambiguous, with its place.
        """
        DECIMAL.check(decimal=decimal)
        texts = [self.column(name) for name in columns]
        if decimal != COMMA and self.delimiter != ";":  # parsed by Python, which is fast
            plain = all(all(map(str.isascii, own)) and "_" not in "".join(own) for own in texts)
            try:
                values = np.array([list(map(float, cells)) for cells in texts])
            except ValueError:
                values = np.array(np.nan)
            if plain and np.isfinite(values).all():
                return values.reshape(len(columns), len(self.rows)).T
        values = np.empty((len(self.rows), len(columns)))
        name = ""
        cell = ""
        where = ""
        try:
            mark = decimal or decimal_mark(itertools.chain(*texts), self.delimiter)
            for place, (name, cells) in enumerate(zip(columns, texts, strict=True)):
                for row, (line, cell) in enumerate(zip(self.lines, cells, strict=True)):
                    where = f" in line {line}, column {name!r}"
                    if is_missing(cell):
                        raise ValueError("no value")
                    values[row, place] = number(cell, mark)
        except ValueError as error:
            wanted = expected
            fix = CORRECT
            if isinstance(error, AmbiguousNumber):
                wanted = "one decimal mark, or the option --decimal"
            elif not is_numeric(cell):
                fix = of_text.replace("{cell}", shlex.quote(cell.strip()))
            raise table_error(self.path, f"{error}{where}", wanted, fix) from error
        return values


def read_cells(path: Path, *, unnamed: bool = False) -> Cells:
    """Read the cells of a table with a header; also of a ``.parquet``, ``.xlsx``, or of
    :data:`FRAMES`, with labels in place of codes.

    A byte order mark, lines without a cell, blank rows before and after all others (of a
    ``.parquet`` none), blanks around cells and delimiters at the end of all lines are ignored;
    names are in Unicode's composed form. With ``unnamed`` the first column may have no name, as
    indices of R and pandas. Anything else is an ArtifactError with the file and line.
    """
    expected = "column names, then records"
    try:
        ending = path.suffix.lower()
        if ending in (*FRAMES, ".xlsx"):
            return _of_frame(path, unnamed)
        if ending in OTHERS:
            what, fix = OTHERS[ending]
            read = f".csv, .xlsx, {', '.join(FRAMES)}"
            raise ArtifactError(found=f"'{path}', {what}", expected=read, fix=fix)
        expected = "a line of column names, then rows of as many cells, separated by commas, "
        expected += "semicolons or tabs"
        return _of_text(path, read_text(path), unnamed)
    except (ValueError, csv.Error) as error:
        raise table_error(path, str(error), expected) from error


def _of_frame(path: Path, unnamed: bool) -> Cells:
    """Return the cells of the only sheet with any, of a file that pandas reads."""
    notes: list[tuple[str, str]] = []
    ending = path.suffix.lower()
    try:
        import pandas

        if ending == ".xlsx":
            options: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
            frames = pandas.read_excel(path, sheet_name=None, header=None, **options)
            sheets = {name: _texts(frame) for name, frame in frames.items()}
        else:
            library, function = FRAMES[ending]
            made = getattr(importlib.import_module(library), function)(path)
            frame = made[0] if isinstance(made, tuple) else made  # beside what a file says of it
            index = [n for n in frame.index.names if n is not None and n not in frame.columns]
            for name in map(str, index):
                use = f"is read as a column ({typed('--without', name)} leaves it out of a fit)"
                notes.append((clean(name), f"the index {name!r} of the table {use}"))
            frame = frame.reset_index(index)
            sheets = {"": [[*map(str, frame.columns)], *_texts(frame)]}
    except ImportError as error:
        missing = error.name or NEEDED.get(ending, "pyreadstat")  # pandas does not name it
        raise MissingExtraError.of(missing, "tables") from error
    except Exception as error:  # each library that pandas calls has its own errors
        raise _unreadable(path, str(error)[:200], path.suffix) from error
    own = {name: rows for name, rows in sheets.items() if any(map(any, rows))}
    if len(own) > 1:
        found = f"{len(own)} sheets {some([*own])} with cells"
        raise table_error(path, found, "one sheet with cells", "Keep one, or save it as .csv.")
    rows = next(iter(own.values()), [])
    lines = [*range(1, len(rows) + 1)]
    cells = _cells(path, rows, lines, ",", unnamed, stored=ending == ".parquet")
    return cells._replace(notes=(*notes,))


def _texts(frame: Any) -> list[list[str]]:
    """Return the rows of a data frame as texts, of which those of missing values are empty."""
    columns = (zip(column, column.isna(), strict=True) for _, column in frame.items())
    texts = [["" if gap else _cell(value) for value, gap in column] for column in columns]
    return [list(row) for row in zip(*texts, strict=True)]


def _cell(value: Any) -> str:
    """Return the text of a value; a whole number has no decimal point, so that levels match."""
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return str(int(value)) if whole else str(value)


def read_text(path: Path, *, most: int = 2**31) -> str:
    """Return the text of a regular UTF-8 file, without a byte order mark, or an ArtifactError.

    A file of more than ``most`` bytes would need several times as much memory.
    """
    if path.exists() and not path.is_file():
        raise _unreadable(path, "it is a folder, a pipe or a device")
    content = b""
    try:
        if path.stat().st_size > most:
            raise _unreadable(path, f"it is longer than {most} bytes")
        content = path.read_bytes()
        if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
            return content.decode("utf-16")  # such as Excel's "Unicode text"
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise _unreadable(path, f"line {line} is not UTF-8: save it as 'CSV UTF-8'") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unreadable(path, getattr(error, "strerror", None) or str(error)) from error
    if "\0" in text:
        raise _unreadable(path, "it contains NUL characters, so it is not text")
    return text


def clean(name: str) -> str:
    """Return the text without surrounding blanks and the mark of :func:`as_text`, in Unicode's
    composed form, in which an accented letter is one character.
    """
    name = unicodedata.normalize("NFC", name.strip())
    return name[1:] if name.startswith(TEXT) and name[1:].startswith(FORMULAS) else name


def as_level(text: str) -> str:
    """Return the text of a level without blanks, and of a whole number without its decimals.

    >>> as_level(" 1.0"), as_level("1.5"), as_level("II")
    ('1', '1.5', 'II')
    """
    return WHOLE.sub(r"\1", clean(text))


def as_text(name: str) -> str:
    """Return a name as a cell that spreadsheets do not evaluate: ``=1+1`` becomes ``'=1+1``.

    >>> as_text("=1+1"), as_text("age"), clean(as_text("@sum"))
    ("'=1+1", 'age', '@sum')
    """
    return TEXT + name if name.startswith(FORMULAS) else name


def table_error(path: Path, found: str, expected: str, fix: str = CORRECT) -> ArtifactError:
    """Return the error for a defect of a table, with its place in ``found``."""
    return ArtifactError(found=f"{found} in table '{path}'", expected=expected, fix=fix)


def _unreadable(path: Path, why: str, kind: str = "") -> ArtifactError:
    return ArtifactError(
        found=f"table '{path}' that cannot be read ({why})",
        expected=f"a complete {kind} file" if kind else "a text file in UTF-8",
    )


def _of_text(path: Path, text: str, unnamed: bool) -> Cells:
    if stated := re.match(r"(?i)sep=([,;\t])\r?\n", text):  # a line for Excel
        text = "\n" + text[stated.end() :]
    first = next((line for line in text.splitlines() if line.strip()), "")
    outside = "".join(first.split('"')[::2])  # within quotes, marks do not separate cells
    delimiter = stated[1] if stated else max(DELIMITERS, key=outside.count)
    rows = []
    lines = []
    end = 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            start = end + 1
            end = reader.line_num
            if len(row) > 1 or (row and not row[0].isspace()):
                rows.append(row)
                lines.append(start)
    except csv.Error as error:
        raise ValueError(f"{error} in line {reader.line_num}") from error
    return _cells(path, rows, lines, delimiter, unnamed)


def _cells(
    path: Path,
    rows: list[list[str]],
    lines: list[int],
    delimiter: str,
    unnamed: bool,
    stored: bool = False,
) -> Cells:
    """Return the table of rows, of which the first is the header, and of their line numbers.

    Only a table whose names the file has ``stored`` as such has names that are numbers. Others
    begin and end with rows that are not blank; a blank row between them is a record.
    """
    filled = [place for place, row in enumerate(rows) if any(map(str.strip, row))]
    if not filled:
        raise ValueError("no rows")
    if not stored:
        within = slice(filled[0], filled[-1] + 1)
        rows = rows[within]
        lines = lines[within]
    rows = _without_ends(rows, unnamed)
    header = tuple(map(clean, rows[0]))
    if unnamed and len(rows) > 1 and len(rows[1]) == len(header) + 1:
        header = ("", *header)  # R's write.table does not name the column of row names
    named = header[1:] if unnamed and header[0] == "" else header
    # A first record taken as a header would be lost silently.
    if not stored and any(map(is_number, named)):
        raise ValueError(f"a header {some(header)} (line {lines[0]}) of numbers, not names")
    why = unfit(named)
    if why:
        raise ValueError(f"a header {some(header)} (line {lines[0]}) without valid names: {why}")
    for row, line in zip(rows[1:], lines[1:], strict=True):
        if len(row) != len(header):
            marks = f" (columns are separated by {delimiter!r})" * (len(header) == 1)
            raise ValueError(f"{len(row)} cells in line {line} under {len(header)} names{marks}")
    return Cells(path, header, rows[1:], lines[1:], delimiter)


def _without_ends(rows: list[list[str]], unnamed: bool) -> list[list[str]]:
    """Drop the empty cells from a delimiter at the end of every line, or of all but the header.

    Raise a ValueError if rows that may begin with ``unnamed`` numbers of their own, as R writes
    them, are longer than the header: they may end with a column without values instead.
    """
    head, *rest = rows
    numbers = [int(row[0]) for row in rest if row[0].isdecimal()]
    numbered = unnamed and len(numbers) == len(rest) and numbers == sorted({*numbers})
    while rest and all(len(row) > 1 and not row[-1].strip() for row in rest):
        longer = {*map(len, rest)} == {len(head) + 1}
        if longer and numbered:
            raise ValueError(
                "rows of one cell more than the header, which begin with ascending numbers and end "
                "with an empty cell: name the numbers in the header, or drop the last delimiters"
            )
        if not longer and ({*map(len, rest)} != {len(head)} or head[-1].strip()):
            break
        rest = [row[:-1] for row in rest]
        head = head if longer else head[:-1]
    return [head, *rest]


def is_missing(text: str) -> bool:
    """Return whether a cell denotes a missing value."""
    return not text[:1].isdigit() and text.strip().lower() in MISSING  # most cells are numbers
