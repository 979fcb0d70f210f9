"""Checks made wherever parameters come in: finite, proper, and of the same kind."""

import dataclasses
from typing import Any

import jax
import numpy as np

from posterity.errors import ParameterError, StructureError
from posterity.families import ExponentialFamily, Mixture


def check_finite(family: Any, place: str) -> None:
    """Raise a ParameterError that names the block if any parameter is NaN or infinite."""
    for path, leaf in jax.tree.leaves_with_path(family):
        bad = ~np.isfinite(np.asarray(leaf))
        if bad.any():
            index = tuple(int(i) for i in np.argwhere(bad)[0])
            raise ParameterError(
                found=f"{np.asarray(leaf)[index]} at {_name(path)}{list(index) or ''} of {place} "
                f"({int(bad.sum())} such values)",
                expected="finite natural parameters",
                fix="Check that the fit which made them converged, and fit again.",
            )


def check_proper(family: ExponentialFamily | Mixture, place: str) -> None:
    """Raise a ParameterError if any member is not a distribution."""
    check_finite(family, place)
    proper = np.asarray(family.is_proper())
    if not proper.all():
        raise ParameterError(
            found=f"improper {type(family).__name__}{_improper_part(family)} in {place}",
            expected="parameters of a distribution (positive definite precisions, positive "
            "concentrations, enough degrees of freedom)",
            fix="A difference of posteriors is a factor: add it to a prior before using it as "
            "a distribution. Otherwise fit again.",
        )


def check_same_structure(expected: Any, found: Any, place: str) -> None:
    """Raise a StructureError unless both are of one family, with the same shapes."""
    if structure(expected) != structure(found):
        raise StructureError(
            found=f"{describe(found)} in {place}",
            expected=describe(expected),
            fix="Give every site the same family, blocks and dimensions.",
        )


def structure(family: Any) -> tuple[Any, ...]:
    """Tree and shapes: what must agree for two members to be added."""
    leaves, tree = jax.tree.flatten(family)
    return (tree, *(np.shape(leaf) for leaf in leaves))


def same_parameters(left: Any, right: Any) -> bool:
    """Equal to the last bit, in structure and content."""
    if structure(left) != structure(right):
        return False
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def describe(family: Any) -> str:
    """One line for people: the family, its blocks, and the shapes of its parameters."""
    fields = dataclasses.fields(family) if dataclasses.is_dataclass(family) else ()
    parts = [f"{field.name}={_part(getattr(family, field.name))}" for field in fields]
    return f"{type(family).__name__}({', '.join(parts)})"


def _part(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_part(v)}" for name, v in value.items()) + "}"
    if dataclasses.is_dataclass(value):
        return describe(value)
    return "None" if value is None else f"{np.shape(value)}"


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _improper_part(family: Any) -> str:
    """Which members of which part fail, for the message."""
    for part in getattr(family, "parts", list)():
        proper = np.asarray(part.is_proper())
        if not proper.all():
            index = [int(i) for i in np.argwhere(~proper)[0]]
            where = f" member {index}" if index else ""
            return f" ({type(part).__name__}{where}{_improper_part(part)})"
    return ""
