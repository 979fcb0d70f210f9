"""Numbers as they are written in tables: which mark is the decimal one is said by all together.

``1.5`` and ``1,5`` each say it; ``1,234.5`` and ``1.234,5`` do by their order; ``1,234`` may be
either, and is only read where other cells settle it, or the caller does.
"""

import math
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation

POINT, COMMA = ".", ","
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "."})
"""How a missing value is written, in any case: R, pandas, SQL, Stata."""

_NUMBER = re.compile(r"[+-]?([0-9][0-9.,]*|[.,][0-9]+)([eE][+-]?[0-9]+)?")
_SPACES = dict.fromkeys(map(ord, "\u00a0\u202f\u2009 "))
"""Which group thousands in some languages."""


class Unclear(ValueError):
    """A cell that can be read in two ways, or a file whose cells use both marks."""


def plain(text: str) -> str:
    """Without blanks, and with a minus sign that computers read."""
    text = text.strip().replace("\u2212", "-")
    inner = text.translate(_SPACES)
    if inner != text and not re.fullmatch(r"[+-]?\d{1,3}([\u00a0\u202f\u2009 ]\d{3})+\D?.*", text):
        return text  # "12 5" is no number
    return inner


def is_missing(text: str) -> bool:
    """Whether a cell says that there is no value."""
    return not text[:1].isdigit() and text.strip().lower() in MISSING  # most cells are numbers


def decimal_mark(cells: Iterable[str], delimiter: str = COMMA) -> str | None:
    """The decimal mark that the cells agree on; None if they settle none.

    Between semicolons, which stand where commas are decimal marks, a point before three digits
    (``1.250``) is read as neither while no other cell says what it is.

    Raises:
        Unclear: if some say the one and some the other, or that is all there is.

    >>> decimal_mark(["1,234.5", "1,234"]), decimal_mark(["0,5"]), decimal_mark(["1,234"])
    ('.', ',', None)
    """
    seen: dict[str, str] = {}
    pointed = None
    for cell in cells:
        digits = plain(cell)
        mark = _said(digits)
        if mark is not None:
            seen.setdefault(mark, cell)
        elif pointed is None and delimiter == ";" and _NUMBER.fullmatch(digits):
            pointed = cell if POINT in digits else None
    if len(seen) > 1:
        raise Unclear(
            f"two decimal marks: both {seen[POINT].strip()!r} and {seen[COMMA].strip()!r}"
        )
    if pointed is not None and not seen:
        raise Unclear(
            f"points that may part thousands or decimals: {pointed.strip()!r} between semicolons"
        )
    return next(iter(seen), None)


def number(text: str, mark: str | None) -> float:
    """A finite number.

    Raises:
        Unclear: if it hangs on the decimal mark, which is not known.
        ValueError: if it is none.

    >>> number("1.234,5", ","), number("−2.5e-3", None)
    (1234.5, -0.0025)
    """
    digits = plain(text)
    if not _NUMBER.fullmatch(digits):
        raise ValueError(f"{text.strip()[:50]!r}, which is no number")
    if mark is None and COMMA in digits:
        raise Unclear(f"{text.strip()!r}, of which the comma may part thousands or decimals")
    other = COMMA if mark != COMMA else POINT
    whole, _, rest = digits.partition(POINT if mark is None else mark)
    if other in digits and not re.fullmatch(rf"[+-]?\d{{1,3}}(\{other}\d{{3}})*", _before_e(whole)):
        raise ValueError(f"{text.strip()[:50]!r}, which is no number with decimal {mark!r}")
    if other in rest:
        raise ValueError(f"{text.strip()[:50]!r}, which is no number with decimal {mark!r}")
    found = float(digits.replace(other, "").replace(mark or POINT, POINT))
    if not math.isfinite(found):
        raise ValueError(f"{text.strip()[:50]!r}, which is beyond all numbers")
    return found


def unit(text: str) -> float:
    """Of the last digit that is written: 0.01 of ``1.25``; 0 where thousands are parted too.

    >>> unit("1.25"), unit("-3e-4"), unit("1,234.5")
    (0.01, 0.0001, 0.0)
    """
    try:
        exponent = Decimal(plain(text).replace(COMMA, POINT)).as_tuple().exponent
    except InvalidOperation:
        return 0.0
    return 10.0**exponent if isinstance(exponent, int) else 0.0


def _before_e(digits: str) -> str:
    return re.split("[eE]", digits)[0]


def _said(digits: str) -> str | None:
    """The decimal mark that this one number can only have; None if it has none, or may have two."""
    body = _before_e(digits)
    if not _NUMBER.fullmatch(digits):
        return None
    points, commas = body.count(POINT), body.count(COMMA)
    if points and commas:
        return max(POINT, COMMA, key=body.rfind)
    if points > 1 or commas > 1:
        return COMMA if points else POINT  # what comes twice parts thousands
    if not points and not commas:
        return None
    mark = POINT if points else COMMA
    grouped = re.fullmatch(rf"[+-]?[1-9]\d{{0,2}}\{mark}\d{{3}}", digits)
    return None if grouped else mark
