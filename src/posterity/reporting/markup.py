"""HTML and SVG that nothing in a file can break out of: all text is escaped where it is put in."""

import html
import itertools
import math
from collections.abc import Iterable, Sequence

from posterity.text import clean

VOID = {"br", "meta", "input", "link"}
"""Elements of HTML that have no end tag."""


class Markup(str):
    """Text that is markup already, so that it is not escaped again."""


def escaped(value: object) -> Markup:
    """A value as markup: escaped, and what cannot be printed made visible, unless it is markup."""
    return value if isinstance(value, Markup) else Markup(html.escape(clean(str(value))))


def join(parts: Iterable[object]) -> Markup:
    """Parts one after the other; None is left out."""
    return Markup("".join(escaped(part) for part in parts if part is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; an attribute that is None or False is left out, one that is True has no value.

    Underscores in names of attributes stand for hyphens, one at the end for nothing.

    >>> tag("td", "a < b", class_="low", data_site=3)
    '<td class="low" data-site="3">a &lt; b</td>'
    """
    written = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            value = key if value is True else value
            written += f' {key.rstrip("_").replace("_", "-")}="{html.escape(clean(str(value)))}"'
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def shown(value: float | None, digits: int = 4) -> str:
    """A number in a few digits, with a minus as long as a plus; a dash if it is not known.

    >>> shown(-0.33333), shown(None)
    ('−0.3333', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.{digits}g}".replace("-", "−")


def signed(value: float | None) -> str:
    """A number with its sign, in three digits."""
    sign = "+" if value is not None and value > 0 else ""
    return sign + shown(value, 3)


def count(number: int, what: str) -> str:
    """A number of things, in words.

    >>> count(1, "site"), count(1200, "site")
    ('1 site', '1,200 sites')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Names in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    names = list(names)
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1:,} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def capital(text: str) -> str:
    """With a capital letter."""
    return text[:1].upper() + text[1:]


class Ids:
    """Identifiers of elements, each of which a page has once."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, what: str) -> str:
        """The next one."""
        return f"{what}-{next(self._numbers)}"


def paragraph(*parts: object, class_: str | None = None) -> Markup:
    """A paragraph."""
    return tag("p", *parts, class_=class_)


def bullets(items: Iterable[object]) -> Markup:
    """A list."""
    return tag("ul", *(tag("li", item) for item in items))


def table(
    caption: str,
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    hidden: int = 0,
    class_: str | None = None,
) -> Markup:
    """A table; the first cell of each row is its heading, and ``hidden`` rows are left out."""
    head = tag("tr", *(tag("th", name, scope="col") for name in headers))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in rows
    ]
    if hidden > 0:
        more = tag("td", f"and {hidden:,} more", colspan=len(headers))
        body.append(tag("tr", more))
    return scrolling(caption, head, body, class_=class_)


def scrolling(caption: str, head: Markup, body: Iterable[Markup], **attributes: object) -> Markup:
    """A table of these rows, which scrolls in itself where it is wider than the page."""
    parts = tag("caption", caption), tag("thead", head), tag("tbody", *body)
    inner = tag("table", *parts, **attributes)
    return tag("div", inner, class_="scroll", tabindex=0, role="group", aria_label=caption)


def behind(what: str, inner: object) -> Markup:
    """A part that a click opens: the numbers behind a picture."""
    return tag("details", tag("summary", what), inner)


def figure(picture: object, caption: object, numbers: object = None) -> Markup:
    """A picture with its caption, and the table behind it."""
    below = None if numbers is None else behind("Numbers behind this picture", numbers)
    return tag("figure", picture, tag("figcaption", caption), below)
