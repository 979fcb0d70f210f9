"""Other libraries' fitted models as families, and back; each is imported only when used.

A library that is not installed is a ``MissingExtraError``, which names its extra; NaN, infinite and
improper parameters are a ``ParameterError``.
``from_samples`` takes draws of any of them: :mod:`posterity.adapters.samples`.
"""

from typing import TYPE_CHECKING

from posterity.lazy import exports

if TYPE_CHECKING:
    from posterity.adapters.samples import from_samples

__getattr__, __dir__ = exports(__name__, {"samples": ("from_samples",)})

__all__ = ["from_samples"]
