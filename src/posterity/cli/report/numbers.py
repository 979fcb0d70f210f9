"""Numbers as JSON has them, and as people read them."""

import math
from typing import Any

MOST_ROWS = 24
"""Rows of a table that a person is shown; JSON has all of them."""


def number(value: Any) -> float | None:
    """JSON has no infinity and no NaN: null stands for what overflowed, or is not known."""
    return float(value) if value is not None and math.isfinite(value) else None


def short(value: float | None) -> str:
    """Four digits."""
    return "overflow" if value is None else f"{value:.4g}"
