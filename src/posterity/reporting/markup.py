"""HTML and SVG in which all text is escaped, so content of files cannot inject markup."""

import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import NamedTuple, Self

from posterity.reporting.layout import LAYOUT
from posterity.runtime.text import clean, seam

VOID = {"br", "col", "meta", "input", "link"}
"""Elements of HTML without an end tag."""
HEBREW_TO_ARABIC = r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]+"
RIGHT_TO_LEFT = re.compile(rf"{HEBREW_TO_ARABIC}([\s\u200c\u200d]+{HEBREW_TO_ARABIC})*")
"""Pattern of words in right-to-left scripts."""


class Markup(str):
    """Text that is already markup, and is not escaped again."""


def visible(text: str) -> str:
    """Return a text with unprintable characters escaped.

    Words in right-to-left scripts are isolated, so they do not change the order of adjacent
    numbers.
    """
    return RIGHT_TO_LEFT.sub(lambda words: f"\u2068{words[0]}\u2069", clean(text))


def escaped(value: object) -> Markup:
    """Return a value as markup: visible and escaped, unless it already is markup."""
    return value if isinstance(value, Markup) else Markup(html.escape(visible(str(value))))


def join(parts: Iterable[object]) -> Markup:
    """Return the concatenation of parts; None is left out."""
    return Markup("".join(escaped(part) for part in parts if part is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element; attributes that are None or False are left out, and True has no value.

    Underscores in names of attributes become hyphens; one at the end is dropped.

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
    """Format a number in a few digits, with a true minus sign; an unknown one is a dash.

    >>> shown(-0.33333), shown(None)
    ('−0.3333', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.{digits}g}".replace("-", "−")


def digits(low: float, high: float) -> int:
    """Return the number of significant digits, at least four, in which an interval's ends differ.

    >>> digits(0.25, 0.75), digits(1_000_000.0, 1_000_000.5)
    (4, 8)
    """
    most = max(abs(low), abs(high))
    length = high - low
    if not (0 < length < math.inf and most < math.inf):
        return 4
    return min(max(4, math.ceil(math.log10(most / length)) + 1), 17)


class Scale(NamedTuple):
    """Format of all numbers of a panel: multiples of a power of ten, with equal decimals."""

    power: int
    decimals: int

    @classmethod
    def of(cls, most: float, length: float) -> Self:
        """Return the format for an interval of this length among numbers of at most this size.

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
        """Power of ten that numbers are divided by before they are written."""
        return float(f"1e{self.power}")

    @property
    def factor(self) -> str:
        """The power of ten in words; empty if it is one.

        >>> Scale(-9, 2).factor
        '× 10⁻⁹'
        """
        raised = str(self.power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"× 10{raised}" if self.power else ""

    def text(self, value: float) -> str:
        """Return a number in this format."""
        if not math.isfinite(value):
            return "–"
        text = f"{value / self.unit:.{self.decimals}f}"
        return (text if float(text) else text.lstrip("-")).replace("-", "−")


def named(name: str, longest: int = 24, ending: int = 9) -> Markup:
    """Return a name whose middle is truncated if space is short, since names often begin alike.

    One of at most ``longest`` letters is whole; of others ``ending`` letters are kept at the end.
    """
    if len(name) <= longest:
        return tag("span", name, dir="auto")
    middle = seam(name, len(name) - ending)
    parts = tag("span", name[:middle]), tag("span", name[middle:])
    return tag("span", *parts, class_="name")


def signed(value: float | None) -> str:
    """Return a number with its sign, in three digits."""
    sign = "+" if value is not None and value > 0 else ""
    return sign + shown(value, 3)


def capital(text: str) -> str:
    """Return the text with a capital letter."""
    return text[:1].upper() + text[1:]


def paragraph(*parts: object, class_: str | None = None) -> Markup:
    """Return a paragraph."""
    return tag("p", *parts, class_=class_)


def embedded(data: object) -> Markup:
    """Return data for the page's script, escaped so that they cannot end it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return tag("script", Markup(text), type="application/json")


def bullets(items: Iterable[object]) -> Markup:
    """Return a list."""
    return tag("ul", *(tag("li", item) for item in items))


def table(
    caption: str,
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    hidden: int = 0,
    class_: str | None = None,
) -> Markup:
    """Return a table whose rows begin with a heading; ``hidden`` further ones were left out.

    Of more rows than the page's layout allows, the first are shown.
    """
    rows = list(rows)
    hidden += len(rows[LAYOUT.rows :])
    head = tag("tr", *(tag("th", name, scope="col") for name in headers))
    body = []
    for row in rows[: LAYOUT.rows]:
        first, *others = map(_cell, row)
        cells = (tag("td", cell) for cell in others)
        body.append(tag("tr", tag("th", first, scope="row"), *cells))
    if hidden > 0:
        more = tag("td", f"and {hidden:,} more", colspan=len(headers))
        body.append(tag("tr", more))
    return scrolling(caption, head, body, class_=class_)


def _cell(value: object) -> object:
    """Return a number, or None, as its text; markup and texts as they are."""
    if isinstance(value, Integral):
        return f"{value:,}"
    return shown(value) if value is None or isinstance(value, float) else value


def scrolling(caption: str, head: Markup, body: Iterable[Markup], **attributes: object) -> Markup:
    """Return a table of these rows, which scrolls by itself if it is wider than the page."""
    parts = tag("caption", caption), tag("thead", head), tag("tbody", *body)
    inner = tag("table", *parts, **attributes)
    return tag("div", inner, class_="scroll", tabindex=0, role="group", aria_label=caption)


def behind(what: str, inner: object) -> Markup:
    """Return a part that opens on a click, such as the numbers of a plot."""
    return tag("details", tag("summary", what), inner)


def figure(picture: object, caption: object, numbers: object = None) -> Markup:
    """Return a plot with its caption and its table of numbers."""
    below = None if numbers is None else behind("Numbers behind this picture", numbers)
    return tag("figure", picture, tag("figcaption", caption), below)
