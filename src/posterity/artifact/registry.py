"""The types that files can hold, identified by name, never by pickle or an import path."""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from posterity.arrays.tree import Node, field_names, leaves_with_path, static_names
from posterity.errors import ArtifactError
from posterity.families import Distribution, exported

ARRAY = "array"
"""The type of a node that represents an array outside the tree."""

RELEASE = "Read it with the release of posterity that wrote it."
Kind = TypeVar("Kind", bound=type[Node])


class Codec(NamedTuple):
    """A type, the fields that a file stores of it, and the function that restores it.

    ``check`` raises the same errors as ``build``, but may take less time.
    """

    of: type
    fields: Callable[[Any], dict[str, Any]]
    build: Callable[[dict[str, Any]], Any]
    check: Callable[[dict[str, Any]], Any]
    whole: bool = False
    """True if a file may contain such a value alone."""


CODECS: dict[str, Codec] = {}
_LEARNING = "posterity.pursuit.learning.conjugate"
HOMES: dict[str, str] = {
    **dict.fromkeys(("Domain", "Head", "Scaling", "Student"), "posterity.distillation.student"),
    "RandomEffects": "posterity.inference.random_effects",
    **dict.fromkeys(("ConjugateLearner", "OwnFeatures", "VectorFeatures"), _LEARNING),
}
"""Modules that are imported when a type is first used: most files need none of them."""


def codec_of(name: str) -> Codec | None:
    """Return the codec of a type by its name; None if it is not registered."""
    if name not in CODECS and name in HOMES:
        importlib.import_module(HOMES[name])
    return CODECS.get(name)


def enrol_data(
    kind: type,
    *,
    types: Mapping[str, Any] | None = None,
    arrays: Sequence[str] = (),
    write: Callable[[Any], dict[str, Any]] | None = None,
    read: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    whole: bool = False,
) -> None:
    """Register a dataclass for artifacts, field by field; its constructor checks a file's fields.

    Args:
        kind: the dataclass, whose name no other type may have; tuples are lists in files.
        types: required types of fields, as for ``isinstance``.
        arrays: names of fields that are arrays of floats, None, or dictionaries of arrays.
        write: function that returns the stored fields, if they differ from the dataclass's.
        read: function from stored fields to those of the dataclass.
        whole: whether a file may contain such a value alone.
    """
    names = [field.name for field in dataclasses.fields(kind)]

    def fields_of(value: Any) -> dict[str, Any]:
        fields = {n: getattr(value, n) for n in names} if write is None else write(value)
        return {n: list(v) if isinstance(v, tuple) else v for n, v in fields.items()}

    def build(fields: dict[str, Any]) -> Any:
        fields = fields if read is None else read(fields)
        check_names(kind.__name__, fields, names)
        check_parameters(kind, {n: fields[n] for n in arrays if fields[n] is not None})
        for name, wanted in (types or {}).items():
            if not isinstance(fields[name], wanted):
                raise unfit(kind, f"{name} is a {type(fields[name]).__name__}")
        return kind(**{n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()})

    enrol(kind, fields_of, build, whole=whole)


def unfit(kind: type, why: str) -> ArtifactError:
    """Return the error for fields that are not valid for this type."""
    return ArtifactError(
        found=f"a {kind.__name__} that is none: {why}",
        expected="one as this release of posterity describes it",
        fix=RELEASE,
    )


def register(kind: Kind) -> Kind:
    """Register a family of your own, or another node, for artifacts; usable as a decorator. Raises
    an ArtifactError if another type already has the name.
    """
    names = field_names(kind) + static_names(kind)

    def fields_of(node):
        return dict(zip(names, (*node.children(), *node.kept()), strict=True))

    enrol(kind, fields_of, functools.partial(_node, kind))
    return kind


def enrol(
    kind: type,
    fields: Callable[[Any], dict[str, Any]],
    build: Callable[[dict[str, Any]], Any],
    check: Callable[[dict[str, Any]], Any] | None = None,
    whole: bool = False,
) -> None:
    """Register a type for artifacts; an ArtifactError if another already has the name."""
    codec = CODECS.setdefault(kind.__name__, Codec(kind, fields, build, check or build, whole))
    if codec.of is not kind or kind.__name__ == ARRAY:
        raise ArtifactError(
            found=f"a second family named {kind.__name__!r}", expected="a name for each type"
        )


def check_names(kind: str, fields: dict[str, Any], names: Iterable[str]) -> None:
    """Raise an ArtifactError unless a node has exactly these fields."""
    if fields.keys() != set(names):
        raise ArtifactError(
            found=f"a {kind} of {sorted(fields)}", expected=f"{sorted(names)}", fix=RELEASE
        )


def _node(kind: type[Node], fields: dict[str, Any]) -> Node:
    check_names(kind.__name__, fields, field_names(kind) + static_names(kind))
    if issubclass(kind, Distribution):
        check_parameters(kind, {name: fields[name] for name in field_names(kind)})
    return kind(**fields)


def check_parameters(kind: type, fields: dict[str, Any]) -> None:
    """Raise an ArtifactError unless all are arrays of floats, since constructors accept more."""
    for path, leaf in leaves_with_path(fields):
        if not (isinstance(leaf, np.ndarray) and leaf.dtype in (np.float32, np.float64)):
            what = f"array of {leaf.dtype}" if isinstance(leaf, np.ndarray) else type(leaf).__name__
            raise ArtifactError(
                found=f"{what} for {'.'.join(path)} of a {kind.__name__}",
                expected="float32 or float64",
            )


def _with_names(mapping: dict[Any, Any]) -> dict[str, Any]:
    strange = [key for key in mapping if type(key) is not str]
    if strange:
        raise ArtifactError(
            found=f"a dictionary with the keys {strange[:3]}", expected="names as keys"
        )
    return mapping


def _tuple(fields: dict[str, Any]) -> tuple[Any, ...]:
    check_names("tuple", fields, ["items"])
    return tuple(fields["items"])


enrol(dict, _with_names, dict)
enrol(tuple, lambda value: {"items": list(value)}, _tuple)
for _family in exported().values():
    register(_family)
