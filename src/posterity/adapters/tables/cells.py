"""Delimited text as people's programs write it: cells with the lines that they stand in."""

import csv
import io
import unicodedata
from pathlib import Path
from typing import NamedTuple

from posterity.errors import ArtifactError
from posterity.families.names import some, unfit

DELIMITERS = (",", ";", "\t")
LARGEST = 2**31
"""Bytes of a table that is read into memory as text."""


FORMULAS = ("=", "+", "-", "@")
"""How cells begin that spreadsheets compute."""
TEXT = "'"
"""What spreadsheets write before a cell that is text, whatever it looks like."""


class Cells(NamedTuple):
    """A header and the rows under it, each as long; ``lines`` are where rows start, from 1."""

    header: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]
    delimiter: str


def read_cells(path: Path, *, unnamed: bool = False) -> Cells:
    """The cells of a table whose columns are parted by commas, semicolons or tabs.

    A byte order mark, blank lines, blanks about a cell and delimiters that end all lines are no
    matter; names are in Unicode's composed form. ``unnamed`` lets the first column have no name,
    as R's and pandas' indices.

    Raises:
        ArtifactError: that names the file and the line, for what is no such table.
    """
    text = read_text(path)
    try:
        return _cells(text, unnamed)
    except (ValueError, csv.Error) as error:
        raise ArtifactError(
            found=f"table {str(path)!r} with {error}",
            expected="a line of column names, and rows of as many cells, parted by one of "
            "comma, semicolon and tab",
            fix="Mend the file there.",
        ) from error


def read_text(path: Path) -> str:
    """The text of a regular file in UTF-8, without a byte order mark.

    Raises:
        ArtifactError: if there is no such file, or something else in it.
    """
    if path.exists() and not path.is_file():
        raise _unreadable(path, "it is a folder, a pipe or a device")
    content = b""
    try:
        if path.stat().st_size > LARGEST:
            raise _unreadable(path, f"it is longer than {LARGEST} bytes")
        content = path.read_bytes()
        if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
            return content.decode("utf-16")  # as Excel's "Unicode text"
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise _unreadable(path, f"line {line} is not UTF-8: save it as 'CSV UTF-8'") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unreadable(path, getattr(error, "strerror", None) or str(error)) from error
    if "\0" in text:
        raise _unreadable(path, "it holds NUL characters: it is no text")
    return text


def clean(name: str) -> str:
    """Without blanks about it; one accented letter is one character, however it was typed.

    The mark that :func:`as_text` sets is taken off.
    """
    name = unicodedata.normalize("NFC", name.strip())
    return name[1:] if name[:1] == TEXT and name[1:].startswith(FORMULAS) else name


def as_text(name: str) -> str:
    """A name as a cell that spreadsheets show and do not compute: ``=1+1`` becomes ``'=1+1``.

    >>> as_text("=1+1"), as_text("age"), clean(as_text("@sum"))
    ("'=1+1", 'age', '@sum')
    """
    return TEXT + name if name.startswith(FORMULAS) else name


def _cells(text: str, unnamed: bool) -> Cells:
    first = next((line for line in text.splitlines() if line.strip()), None)
    if first is None:
        raise ValueError("nothing in it")
    delimiter = max(DELIMITERS, key=lambda mark: _count(first, mark))
    rows, lines, end = [], [], 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise ValueError(f"{error} in line {reader.line_num}") from error
        if row is None:
            break
        start, end = end + 1, reader.line_num
        if any(map(str.strip, row)):
            rows.append(row)
            lines.append(start)
    rows = _without_ends(rows)
    header = tuple(map(clean, rows[0]))
    if unnamed and len(rows) > 1 and len(rows[1]) == len(header) + 1:
        header = ("", *header)  # R's write.table names no column of row names
    _check_header(header, lines[0], unnamed)
    for row, line in zip(rows[1:], lines[1:], strict=True):
        if len(row) != len(header):
            raise ValueError(
                f"{len(row)} cells in line {line} under {len(header)} names"
                + (f" (columns are parted by {delimiter!r})" if len(header) == 1 else "")
            )
    return Cells(header, rows[1:], lines[1:], delimiter)


def _without_ends(rows: list[list[str]]) -> list[list[str]]:
    """Without the empty cells that a delimiter at the end of every line makes."""
    blank = lambda row: len(row) > 1 and not row[-1].strip()
    while all(map(blank, rows)) and len({*map(len, rows)}) == 1:
        rows = [row[:-1] for row in rows]
    head, *rest = rows
    if rest and all(map(blank, rest)) and {*map(len, rest)} == {len(head) + 1}:
        return [head, *(row[:-1] for row in rest)]
    return rows


def _count(line: str, mark: str) -> int:
    """How often a mark parts cells: outside of quotes."""
    return sum(part.count(mark) for part in line.split('"')[::2])


def _check_header(header: tuple[str, ...], line: int, unnamed: bool) -> None:
    named = header[1:] if unnamed and header[0] == "" else header
    if any(map(is_number, named)):
        raise ValueError(f"a first line {some(header)} (line {line}) of numbers, no names")
    if why := unfit(named):
        raise ValueError(f"a first line {some(header)} (line {line}) of unfit names: {why}")


def is_number(text: str) -> bool:
    """Whether it is one as programs write them; not with underscores, as Python allows."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _unreadable(path: Path, why: str) -> ArtifactError:
    return ArtifactError(
        found=f"table {str(path)!r} that cannot be read ({why})",
        expected="a text file in UTF-8",
        fix="Mend the path or the file.",
    )
