"""Conversion of other libraries' fitted models to families and back, with lazy imports.

A library that is not installed raises a ``MissingExtraError`` that names its extra; NaN, infinite
and improper parameters raise a ``ParameterError``. For draws from any of these libraries use
``from_samples``: see :mod:`posterity.adapters.samples`.
"""

from typing import TYPE_CHECKING

from posterity.runtime.lazy import exports

if TYPE_CHECKING:
    from posterity.adapters.samples import from_samples as from_samples

__getattr__, __dir__ = exports(__name__, {"samples": ("from_samples",)})
