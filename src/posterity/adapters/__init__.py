"""Other libraries' fitted models as families, and back; each is imported only when used.

``from_samples`` takes draws of any of them: :mod:`posterity.adapters.samples`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posterity.adapters.samples import from_samples

__all__ = ["from_samples"]


def __getattr__(name: str) -> Any:
    if name == "from_samples":
        from posterity.adapters.samples import from_samples

        return from_samples
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
