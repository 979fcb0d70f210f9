"""Tables of posteriors in notebooks, which :mod:`posterity.summary` draws when one is shown."""

import importlib
from typing import Any, Literal

RENDERERS = "posterity.summary.html"
"""The module that draws tables: far above what they are of, so it is imported when one is shown."""


def html(value: Any, kind: Literal["law", "ledger", "run", "fusion", "line"]) -> str:
    """A value in HTML: its line, and where its kind has one, its table."""
    return importlib.import_module(RENDERERS).render(value, kind)
