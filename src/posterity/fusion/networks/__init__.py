"""Fusing networks: units matched layer by layer, what they do fitted to what the sites' do."""

import importlib
from typing import TYPE_CHECKING, Any

from posterity.fusion.networks.options import Options as Options

if TYPE_CHECKING:
    from posterity.fusion.networks.result import NetworkFusion

__all__ = ["NetworkFusion", "Options"]


def __getattr__(name: str) -> Any:
    """Import on first use: the result is a kind of what the verb's module defines."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.result"), name)
