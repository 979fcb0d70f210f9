"""A posterior as a file: one safetensors file, arrays by path, a manifest in its metadata."""

from posterity.artifact import layers as layers
from posterity.artifact.architecture import Architecture, register_architecture
from posterity.artifact.artifact import (
    Inspection,
    Posterior,
    digest,
    inspect,
    load,
    open_artifact,
    save,
)
from posterity.artifact.ledgers import SiteVersion
from posterity.artifact.manifest import FORMAT_VERSION
from posterity.artifact.registry import register

__all__ = [
    "FORMAT_VERSION",
    "Architecture",
    "Inspection",
    "Posterior",
    "SiteVersion",
    "digest",
    "inspect",
    "load",
    "open_artifact",
    "register",
    "register_architecture",
    "save",
]
