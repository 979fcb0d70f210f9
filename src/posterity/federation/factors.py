"""Factors in the form that they have in files: at rest, with exactly symmetric matrices."""

from typing import Any

from posterity.arrays.linear_algebra import symmetric
from posterity.arrays.tree import Node, field_names
from posterity.families import ExponentialFamily, at_rest


def canonical(factor: ExponentialFamily) -> ExponentialFamily:
    """Return the factor at rest with exactly symmetric matrices, as it is after loading."""
    return symmetrical(at_rest(factor))


def symmetrical(part: Any) -> Any:
    """Return a factor with exactly symmetric matrices, also within Products and plates."""
    if isinstance(part, dict):
        return {name: symmetrical(own) for name, own in part.items()}
    if not isinstance(part, Node):
        return part
    kinds = getattr(part, "coordinates", {})
    names = field_names(type(part))
    children = zip(names, part.children(), strict=True)

    def matrix(name):
        return name in kinds and kinds[name].axes == 2

    if kinds and not any(map(matrix, names)):
        return part
    parts = [symmetric(c) if matrix(n) else symmetrical(c) for n, c in children]
    return part.of_children(parts, part.kept())
