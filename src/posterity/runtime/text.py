"""Readable text: names and numbers on one line of limited length."""

import csv
import io
import re
import shlex
import unicodedata
from collections.abc import Iterable

SHOWN = 3
"""Largest number of names or numbers in such a line."""
JOINED = re.compile(r"(?<=[^\x00-\x7f])[\u200c\u200d](?=[^\x00-\x7f])")
"""Joiners and non-joiners between non-ASCII characters, as in Persian, Hindi and emoji."""


def clean(text: str) -> str:
    """Return the text on one line, with characters that are not printable escaped."""
    joined = {place.start() for place in JOINED.finditer(text)}

    def escape(c):
        return c.encode("unicode_escape").decode()

    return "".join(c if c.isprintable() or k in joined else escape(c) for k, c in enumerate(text))


def seam(text: str, place: int) -> int:
    """Return the last index, at most ``place``, at which a text can be cut without separating a
    combining mark or a joiner from its character.
    """

    def marked(k):
        return unicodedata.category(text[k])[0] == "M" or "\u200d" in text[k - 1 : k + 1]

    while 0 < place < len(text) and marked(place):
        place -= 1
    return place


def cut(text: str, most: int = 200) -> str:
    """Return the text in at most so many characters: two lines of a terminal, and the rest."""
    return text if len(text) <= most else f"{text[: most - 4]}...)"


def typed(option: str, value: object) -> str:
    """Return an option, or a command, with its value as one types them in a shell, which
    needs quotes around some.

    >>> typed("--without", "age"), typed("--rename", "ldl=LDL (mg/dL)")
    ('--without age', "--rename 'ldl=LDL (mg/dL)'")
    """
    return f"{option} {shlex.quote(str(value))}"


def as_row(texts: Iterable[str]) -> str:
    """Return texts with commas between them, and quotes around those with commas.

    >>> as_row(["nein", "ja, oft"])
    'nein,"ja, oft"'
    """
    row = io.StringIO()
    csv.writer(row, lineterminator="").writerow(texts)
    return row.getvalue()


def natural(name: str) -> list[str | int]:
    """Return a sort key that orders 2 before 10."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split(r"(\d+)", name))]


def short_name(name: str, most: int = 24) -> str:
    """Return a name in at most so many characters."""
    name = clean(name)
    return name if len(name) <= most else f"{name[: seam(name, most - 3)]}..."


def count(number: int, what: str) -> str:
    """Return a number of things, in words.

    >>> count(1, "site"), count(1200, "site")
    ('1 site', '1,200 sites')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def listed(names: Iterable[str], most: int = SHOWN, longest: int = 24) -> str:
    """Return the first ``most`` names, each in at most ``longest`` characters, and the number of
    further ones.
    """
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(short_name(name, longest) for name in names[:most]) + more
