"""What checks annotations while the tests run: beartype, but for ``Self``.

jaxtyping's import hook decorates methods one by one, and beartype knows what ``Self`` means only
where it decorates the class. Named by ``--jaxtyping-packages`` in ``pyproject.toml``.
"""

from typing import Any, Self, get_args

from beartype import beartype


def check(function):
    """Check the arguments and result of ``function``, except those that mention ``Self``."""
    hints = getattr(function, "__annotations__", {})
    for name, hint in hints.items():
        if _mentions_self(hint):
            hints[name] = Any
    return beartype(function)


def _mentions_self(hint):
    return hint is Self or any(_mentions_self(part) for part in get_args(hint))
