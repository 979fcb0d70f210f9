"""Text for people: names and numbers on one line, whatever they hold."""

from collections.abc import Iterable

MOST = 200
"""Characters of a line that describes a value."""
SHOWN = 3
"""Names or numbers that such a line lists."""
LONGEST = 24
"""Letters of a name in such a line."""


def clean(text: str) -> str:
    """The text on one line: what cannot be printed is escaped."""
    escape = lambda c: c.encode("unicode_escape").decode()
    return "".join(c if c.isprintable() else escape(c) for c in text)


def cut(text: str) -> str:
    """The text in at most :data:`MOST` characters."""
    return text if len(text) <= MOST else f"{text[: MOST - 4]}...)"


def short_name(name: str) -> str:
    """A name in at most :data:`LONGEST` letters."""
    name = clean(name)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."


def listed(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(short_name(name) for name in names[:SHOWN]) + more
