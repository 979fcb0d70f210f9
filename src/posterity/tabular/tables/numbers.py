"""Numbers in texts, whose decimal mark is never guessed."""

import math
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation

from posterity.arguments import one_of

POINT = "."
COMMA = ","
DECIMAL = one_of(POINT, COMMA).or_none()
"""Values of an argument ``decimal``."""

_NUMBER = re.compile(
    r"[+-]?([0-9]+[.,]?[0-9]*|[0-9]{1,3}([.,][0-9]{3})+[.,]?[0-9]*|[.,][0-9]+)([eE][+-]?[0-9]+)?"
)
"""Numbers, whose thousands may be separated; no dates, as 24.12.2025."""
_SPACES = dict.fromkeys(map(ord, "\u00a0\u202f\u2009 "))
"""Characters that separate thousands in some languages."""


class AmbiguousNumber(ValueError):
    """A cell that can be read in two ways, or a file whose cells use both decimal marks."""


def is_number(text: str) -> bool:
    """Return whether text is a number as programs write it, without Python's underscores."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def is_numeric(text: str) -> bool:
    """Return whether text has the form of a number with either decimal mark.

    >>> [is_numeric(text) for text in ("1,5", "1.234,5", "24.12.2025", "I", "nan")]
    [True, True, False, False, False]
    """
    return _NUMBER.fullmatch(_digits(text)) is not None


def decimal_mark(cells: Iterable[str], delimiter: str = COMMA) -> str | None:
    """Return the decimal mark on which the cells agree; None if they do not determine it.

    If semicolons separate columns, as where commas are decimal marks, a point before three digits
    (``1.250``) is ambiguous unless another cell determines it.

    Raises:
        AmbiguousNumber: if cells disagree, or only such points are there.

    >>> decimal_mark(["1,234.5", "1,234"]), decimal_mark(["0,5"]), decimal_mark(["1,234"])
    ('.', ',', None)
    """
    seen: dict[str | None, str] = {}
    for cell in cells:
        digits = _digits(cell)
        mark = _own_mark(digits)
        if mark or (POINT in digits and delimiter == ";" and _NUMBER.fullmatch(digits)):
            seen.setdefault(mark, cell.strip())
    pointed = seen.pop(None, "")
    if len(seen) > 1:
        both = f"both {seen[POINT]!r} and {seen[COMMA]!r}"
        raise AmbiguousNumber(f"numbers with two decimal marks: {both}")
    if pointed and not seen:
        text = "numbers whose points may separate thousands or decimals"
        raise AmbiguousNumber(f"{text}: {pointed!r} between semicolons")
    return next(iter(seen), None)


def number(text: str, mark: str | None) -> float:
    """Return a finite number, whose decimal mark is ``mark``.

    Raises:
        AmbiguousNumber: if it depends on the decimal mark, which is unknown.
        ValueError: if it is not a number.

    >>> number("1.234,5", ","), number("−2.5e-3", None)
    (1234.5, -0.0025)
    """
    digits = _digits(text)
    words = repr(text.strip()[:50])
    if not _NUMBER.fullmatch(digits):
        raise ValueError(f"{words}, which is not a number,")
    if mark is None and COMMA in digits:
        raise AmbiguousNumber(f"{words}, whose comma may separate thousands or decimals,")
    other = COMMA if mark != COMMA else POINT
    whole, _, rest = digits.partition(mark or POINT)
    grouped = re.fullmatch(rf"[+-]?\d{{1,3}}(\{other}\d{{3}})*", re.split("[eE]", whole)[0])
    if other in rest or (other in digits and not grouped):
        raise ValueError(f"{words}, which is not a number with the decimal mark {mark!r},")
    result = float(digits.replace(other, "").replace(mark or POINT, POINT))
    if not math.isfinite(result):
        raise ValueError(f"{words}, which float64 cannot represent,")
    return result


def value_of(text: str, decimal: str | None = None) -> float | str:
    """Return a text's number, by the decimal mark or else its own; the text itself if it has none.

    >>> value_of("-9,0"), value_of(" -9.00"), value_of("-9,000"), value_of("n. d. ")
    (-9.0, -9.0, '-9,000', 'n. d.')
    """
    try:
        return number(text, decimal or decimal_mark([text]))
    except ValueError:
        return text.strip()


def last_digit(text: str) -> float:
    """Return the unit of the last digit that is written; 0 if thousands are separated too.

    >>> last_digit("1.25"), last_digit("-3e-4"), last_digit("1,234.5")
    (0.01, 0.0001, 0.0)
    """
    try:
        exponent = Decimal(_digits(text).replace(COMMA, POINT)).as_tuple().exponent
    except InvalidOperation:
        return 0.0
    return 10.0**exponent if isinstance(exponent, int) else 0.0


def _digits(text: str) -> str:
    """Remove blanks, and normalise the minus sign."""
    text = text.strip().replace("\u2212", "-")
    inner = text.translate(_SPACES)
    if inner != text and not re.fullmatch(r"[+-]?\d{1,3}([\u00a0\u202f\u2009 ]\d{3})+\D?.*", text):
        return text  # "12 5" is no number
    return inner


def _own_mark(digits: str) -> str | None:
    """Return the only possible decimal mark of this number; None if none or ambiguous."""
    points = digits.count(POINT)
    commas = digits.count(COMMA)
    if not _NUMBER.fullmatch(digits) or not points + commas:
        return None
    if points and commas:
        return max(POINT, COMMA, key=digits.rfind)
    if points + commas > 1:
        return COMMA if points else POINT  # a mark that occurs twice separates thousands
    grouped = re.fullmatch(r"[+-]?[1-9]\d{0,2}[.,]\d{3}", digits)
    return None if grouped else POINT if points else COMMA
