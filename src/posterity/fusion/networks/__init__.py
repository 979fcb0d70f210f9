"""Fusion of networks: units are matched layer by layer, and later layers are refitted."""

from posterity.fusion.networks.fuse import NetworkFusion
from posterity.fusion.networks.options import Options

__all__ = ["NetworkFusion", "Options"]
