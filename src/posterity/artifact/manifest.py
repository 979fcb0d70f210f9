"""The manifest: what is in a file, in JSON, under a digest of its own.

It names type and shape of every array and a digest of all their bytes, so a file that claims what
it does not hold is refused before its arrays are read.
"""

from typing import Any, NamedTuple

from posterity.artifact.container import Header, altered, parsed
from posterity.artifact.digests import FORMAT_VERSION, as_text, of_text
from posterity.artifact.registry import ARRAY
from posterity.artifact.tree import specs
from posterity.errors import ArtifactError

KEY, DIGEST = "posterity", "sha256"
"""Under which metadata keys the manifest and its digest are."""
FIELDS = {"format", "provenance", "tree", "data"}


class Manifest(NamedTuple):
    """What a file says that it holds; ``data`` is the digest of its arrays, ``digest`` of all."""

    tree: dict[str, Any]
    provenance: dict[str, str]
    data: str
    digest: str


def metadata_of(tree: Any, data: str, provenance: Any) -> dict[str, str]:
    """The metadata of a file; an ArtifactError if the provenance is not text by key."""
    _check_provenance(dict(provenance))
    document = {"format": FORMAT_VERSION, "provenance": dict(provenance), "tree": tree}
    text = as_text({**document, "data": data})
    return {KEY: text, DIGEST: of_text(text)}


def read_manifest(header: Header) -> Manifest:
    """The manifest of a file, which fits its header; an ArtifactError if there is none."""
    if KEY not in header.metadata:
        raise ArtifactError(
            found="a safetensors file without posterity's manifest",
            expected="a file written by posterity.save",
            fix="Read foreign weights with their own library, and convert them by an adapter.",
        )
    text = header.metadata[KEY]
    document = parsed(text, "manifest")
    _check_format(document.get("format"))
    if not text.isascii() or header.metadata != {KEY: text, DIGEST: of_text(text)}:
        others = sorted(header.metadata.keys() - {KEY, DIGEST})
        raise altered(f"unknown metadata {others}" if others else "a manifest that was altered")
    if document.keys() != FIELDS:
        raise altered(f"a manifest of {sorted(document)}")
    found = Manifest(document["tree"], document["provenance"], document["data"], of_text(text))
    _check_provenance(found.provenance)
    _check_tree(found.tree, header)
    return found


def _check_format(version: Any) -> None:
    if type(version) is not int or version != FORMAT_VERSION:
        raise ArtifactError(
            found=f"format version {version!r}",
            expected=f"format version {FORMAT_VERSION}",
            fix="Upgrade posterity, or save the posterior again with a matching release.",
        )


def _check_provenance(provenance: Any) -> None:
    texts = isinstance(provenance, dict) and all(
        isinstance(text, str) for item in provenance.items() for text in item
    )
    if not texts:
        raise ArtifactError(
            found=f"the provenance {provenance!r}",
            expected="text by key",
            fix="Convert numbers to text.",
        )


def _check_tree(tree: Any, header: Header) -> None:
    """Every array that the tree speaks of is there, of that type and shape, and no other."""
    if not isinstance(tree, dict) or tree.get("type") in (ARRAY, "tuple"):
        raise altered("a manifest without a posterior")
    try:
        named = dict(specs(tree))
    except RecursionError as error:
        raise altered("a manifest that is nested too deep") from error
    if named != header.specs:
        apart = {name for name, _ in named.items() ^ header.specs.items()}
        raise altered(f"arrays that the manifest describes otherwise: {sorted(apart)[:10]}")
