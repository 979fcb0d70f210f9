"""A posterior as one safetensors file: arrays keyed by path, and a manifest in its metadata."""

from posterity.artifact.aligned import one_vocabulary as one_vocabulary
from posterity.artifact.aligned import with_vocabulary as with_vocabulary
from posterity.artifact.architecture import Architecture as Architecture
from posterity.artifact.architecture import register_architecture as register_architecture
from posterity.artifact.artifact import Inspection as Inspection
from posterity.artifact.artifact import Posterior as Posterior
from posterity.artifact.artifact import digest as digest
from posterity.artifact.artifact import inspect as inspect
from posterity.artifact.artifact import load as load
from posterity.artifact.artifact import loaded as loaded
from posterity.artifact.artifact import open_artifact as open_artifact
from posterity.artifact.artifact import save as save
from posterity.artifact.codecs import SiteVersion as SiteVersion
from posterity.artifact.manifest import FORMAT_VERSION as FORMAT_VERSION
from posterity.artifact.provenance import as_provenance as as_provenance
from posterity.artifact.registry import register as register
