"""Text for people: names and numbers on one line, whatever they hold."""

import importlib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any, Literal

MOST = 200
"""Characters of a line that describes a value."""
SHOWN = 3
"""Names or numbers that such a line lists."""
LONGEST = 24
"""Letters of a name in such a line."""
RENDERERS = "posterity.summary.html"
"""The module that draws tables: far above what they are of, so it is imported when one is shown."""
JOINED = re.compile(r"(?<=[^\x00-\x7f])[\u200c\u200d](?=[^\x00-\x7f])")
"""Joiners and non-joiners between letters or emoji that need them, as in Persian and Hindi."""


def clean(text: str) -> str:
    """The text on one line: what cannot be printed is escaped."""
    joined = {place.start() for place in JOINED.finditer(text)}
    escape = lambda c: c.encode("unicode_escape").decode()
    return "".join(c if c.isprintable() or k in joined else escape(c) for k, c in enumerate(text))


def seam(text: str, place: int) -> int:
    """The last place, at or before this one, at which a text can be cut between two characters
    as people see them: not before a mark, nor beside a joiner.
    """
    marked = lambda k: unicodedata.category(text[k])[0] == "M" or "\u200d" in text[k - 1 : k + 1]
    while 0 < place < len(text) and marked(place):
        place -= 1
    return place


def cut(text: str) -> str:
    """The text in at most :data:`MOST` characters."""
    return text if len(text) <= MOST else f"{text[: MOST - 4]}...)"


def short_name(name: str) -> str:
    """A name in at most :data:`LONGEST` letters."""
    name = clean(name)
    return name if len(name) <= LONGEST else f"{name[: seam(name, LONGEST - 3)]}..."


def listed(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(short_name(name) for name in names[:SHOWN]) + more


def html(value: Any, kind: Literal["law", "ledger", "run", "fusion", "line"]) -> str:
    """A value in HTML: its line, and where its kind has one, its table."""
    return importlib.import_module(RENDERERS).render(value, kind)
