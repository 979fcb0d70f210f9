"""Fusing networks: units matched layer by layer, what they do fitted to what the sites' do."""

from posterity.fusion.networks.fuse import NetworkFusion
from posterity.fusion.networks.options import Options

__all__ = ["NetworkFusion", "Options"]
