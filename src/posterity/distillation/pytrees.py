"""Frozen dataclasses as pytrees whose numbers are arguments of compiled programs."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

Array = np.ndarray | jax.Array
Class = TypeVar("Class", bound=type)


def leaves(*names: str) -> Callable[[Class], Class]:
    """Decorate a frozen dataclass as a pytree whose children are the fields of these names. Other
    fields, and functions that are not pytrees, are part of the structure and must be hashable. JAX
    rebuilds instances around tracers without the checks of ``__post_init__``.
    """

    def decorate(cls: Class) -> Class:
        def flatten(value: Any) -> tuple[list[Any], Any]:
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}

            def function(own):
                return callable(own) and jax.tree_util.all_leaves([own])

            inner = tuple(name for name in names if not function(fields[name]))
            rest = tuple((name, own) for name, own in fields.items() if name not in inner)
            return [fields[name] for name in inner], (inner, rest)

        def unflatten(structure: Any, children: Any) -> Any:
            inner, rest = structure
            return rebuilt(cls, dict(rest) | dict(zip(inner, children, strict=True)))

        jax.tree_util.register_pytree_node(cls, flatten, unflatten)
        return cls

    return decorate


def rebuilt(cls: type, fields: dict[str, Any]) -> Any:
    """Return a frozen dataclass with these values of its fields, without its checks."""
    value = object.__new__(cls)
    for name, own in fields.items():
        object.__setattr__(value, name, own)
    return value
