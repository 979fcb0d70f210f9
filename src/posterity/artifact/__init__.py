"""A posterior as a file: one safetensors file, arrays by path, a manifest in its metadata."""

from posterity.artifact.aligned import one_vocabulary, with_vocabulary
from posterity.artifact.architecture import Architecture, register_architecture
from posterity.artifact.artifact import (
    Inspection,
    Posterior,
    digest,
    inspect,
    load,
    loaded,
    open_artifact,
    save,
)
from posterity.artifact.codecs import SiteVersion
from posterity.artifact.manifest import FORMAT_VERSION
from posterity.artifact.provenance import as_provenance
from posterity.artifact.registry import register

__all__ = [
    "FORMAT_VERSION",
    "Architecture",
    "Inspection",
    "Posterior",
    "SiteVersion",
    "as_provenance",
    "digest",
    "inspect",
    "load",
    "loaded",
    "one_vocabulary",
    "open_artifact",
    "register",
    "register_architecture",
    "save",
    "with_vocabulary",
]
