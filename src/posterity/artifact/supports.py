"""Supports of events in files."""

from typing import Any

from posterity.artifact.registry import check_names, enrol, unfit
from posterity.errors import ArtifactError
from posterity.families import supports
from posterity.families.unconstrained import Supports

KINDS = {
    kind.__name__: kind
    for kind in vars(supports).values()
    if isinstance(kind, type) and issubclass(kind, supports.Continuous) and kind.axes is not None
    if not kind.__abstractmethods__
}


def _encoded(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {"names": list(tree), "parts": [_encoded(part) for part in tree.values()]}
    if isinstance(tree, tuple):
        return {"parts": [_encoded(part) for part in tree]}
    if type(tree) is not KINDS.get(type(tree).__name__):
        raise ArtifactError(
            found=f"a support {tree!r}",
            expected=f"one of {sorted(KINDS)}",
            fix="Save the law of unconstrained numbers.",
        )
    return {"kind": type(tree).__name__, "shape": list(tree.shape)}


def _build(fields: dict[str, Any]) -> Supports:
    check_names("Supports", fields, ["tree"])
    try:
        return Supports(_decoded(fields["tree"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unfit(Supports, str(error)) from error


def _decoded(node: Any) -> Any:
    if "kind" in node:
        if not all(type(axis) is int and axis > 0 for axis in node["shape"]):
            raise ValueError(f"a shape {node['shape']}")
        return KINDS[node["kind"]](tuple(node["shape"]))
    parts = tuple(_decoded(part) for part in node["parts"])
    return dict(zip(node["names"], parts, strict=True)) if "names" in node else parts


enrol(Supports, lambda value: {"tree": _encoded(value.tree)}, _build)
