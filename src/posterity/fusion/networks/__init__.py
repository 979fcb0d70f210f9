"""Fusion of networks: units are matched layer by layer, and later layers are refitted."""

from typing import TYPE_CHECKING

from posterity.fusion.networks.options import Options
from posterity.runtime.lazy import exports

if TYPE_CHECKING:
    from posterity.fusion.networks.fuse import NetworkFusion

__getattr__, __dir__ = exports(__name__, {"fuse": ("NetworkFusion",)})

__all__ = ["NetworkFusion", "Options"]
