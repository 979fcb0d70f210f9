"""HTML and SVG that nothing in a file can break out of: all text is escaped where it is put in."""

import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from posterity.text import clean, seam

VOID = {"br", "col", "meta", "input", "link"}
"""Elements of HTML that have no end tag."""
HEBREW_TO_ARABIC = r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]+"
RIGHT_TO_LEFT = re.compile(rf"{HEBREW_TO_ARABIC}([\s\u200c\u200d]+{HEBREW_TO_ARABIC})*")
"""Words in letters that are written from right to left."""
LONGEST, ENDING = 24, 9
"""Letters of a name that is shown whole, and of the end that a longer one keeps."""


class Markup(str):
    """Text that is markup already, so that it is not escaped again."""


def visible(text: str) -> str:
    """A text in which what cannot be printed is escaped.

    Words that are written from right to left are isolated, so that they do not turn the numbers
    that stand beside them.
    """
    return RIGHT_TO_LEFT.sub(lambda words: f"\u2068{words[0]}\u2069", clean(text))


def escaped(value: object) -> Markup:
    """A value as markup: visible and escaped, unless it is markup."""
    return value if isinstance(value, Markup) else Markup(html.escape(visible(str(value))))


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
            written += f' {key.rstrip("_").replace("_", "-")}="{escaped(str(value))}"'
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


def digits(low: float, high: float) -> int:
    """Significant digits, at least four, in which the ends of an interval differ.

    >>> digits(0.25, 0.75), digits(1_000_000.0, 1_000_000.5)
    (4, 8)
    """
    most, length = max(abs(low), abs(high)), high - low
    if not (0 < length < math.inf and most < math.inf):
        return 4
    return min(max(4, math.ceil(math.log10(most / length)) + 1), 17)


class Scale(NamedTuple):
    """The form of all numbers of a panel: multiples of a power of ten, to the same decimals."""

    power: int
    decimals: int

    @classmethod
    def of(cls, most: float, length: float) -> Self:
        """The form for an interval of this length among numbers of at most this size.

        >>> Scale.of(2.0, 0.3), Scale.of(4e-10, 3e-10)
        (Scale(power=0, decimals=2), Scale(power=-12, decimals=0))
        """
        plain = not most or (1e-3 <= most < 1e10 and length < 1e5)
        power = 0 if plain else 3 * math.floor(math.log10(most) / 3)
        if not length > 0:
            return cls(power, 3)
        return cls(power, min(max(math.ceil(1 - math.log10(length) + power), 0), 12))

    @property
    def unit(self) -> float:
        """The power of ten that numbers are divided by before they are written."""
        return float(f"1e{self.power}")

    @property
    def factor(self) -> str:
        """The power of ten in words; nothing where it is one.

        >>> Scale(-9, 2).factor
        '× 10⁻⁹'
        """
        raised = str(self.power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"× 10{raised}" if self.power else ""

    def text(self, value: float) -> str:
        """A number in this form."""
        if not math.isfinite(value):
            return "–"
        text = f"{value / self.unit:.{self.decimals}f}"
        return (text if float(text) else text.lstrip("-")).replace("-", "−")


def named(name: str) -> Markup:
    """A name, of which the middle gives way where there is no room: names often begin alike."""
    if len(name) <= LONGEST:
        return tag("span", name, dir="auto")
    middle = seam(name, len(name) - ENDING)
    parts = tag("span", name[:middle]), tag("span", name[middle:])
    return tag("span", *parts, class_="name")


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
    """Return the text with a capital letter."""
    return text[:1].upper() + text[1:]


def paragraph(*parts: object, class_: str | None = None) -> Markup:
    """A paragraph."""
    return tag("p", *parts, class_=class_)


def embedded(data: object) -> Markup:
    """Data for the page's own script, which nothing in them can break out of."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return tag("script", Markup(text), type="application/json")


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
