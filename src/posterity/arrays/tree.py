"""Trees of arrays: walked without JAX, and pytrees to JAX from the moment that it is loaded.

Files are read, added and written without JAX, whose import takes longer than all of that. So a
:class:`Node` is a plain frozen dataclass; its class is registered as a pytree when it is defined,
if JAX is there, and else by a finder that waits for the import of JAX.
"""

import abc
import dataclasses
import functools
import importlib.abc
import operator
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, dataclass_transform

import numpy as np

from posterity.arrays.leaves import frozen
from posterity.arrays.typing import PyTree
from posterity.runtime.jax_loaded import jax_module

STATIC = "static"
LABEL = "_names"
"""The attribute with names of coordinates: beside its fields, which alone are its content."""


def static(*, default: Any = dataclasses.MISSING) -> Any:
    """A field that is data of its own kind, hashable and compared: no array, never mapped."""
    return dataclasses.field(metadata={STATIC: True}, default=default)


# Frozen; but constructors that are written by hand set fields, which type checkers are to allow.
@dataclass_transform(eq_default=False, field_specifiers=(static, dataclasses.field))
class Node:
    """Base of what is made of arrays and other nodes; subclasses become frozen dataclasses.

    Equal if types, shapes and contents are. JAX may rebuild one around anything (tracers, shapes,
    None), so unflattening runs no checks: those belong to construction. A field made by
    :func:`static` is no part of the tree, but goes with it. A constructor that is written by hand
    sets each field once.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A constructor that was written by hand, here or in a base, stays.
        generated = getattr(cls.__init__, "generated", cls.__init__ is object.__init__)
        dataclasses.dataclass(frozen=True, eq=False, repr=False, init=generated)(cls)
        cls.__setattr__ = _set_once  # type: ignore[method-assign]
        if generated:
            # What comes in is whatever can be converted; fields say what it is converted to.
            cls.__init__.__annotations__ = dict.fromkeys(cls.__init__.__annotations__, Any)
            cls.__init__.generated = True  # type: ignore[attr-defined]
        _register(cls)

    @classmethod
    def of_children(cls, children: PyTree, kept: tuple[Any, ...] = ()) -> Self:
        """Around these values of the fields, in order; those of static ones are ``kept``."""
        node = object.__new__(cls)
        node.__dict__.update(zip(field_names(cls), children, strict=True))
        if kept:
            node.__dict__.update(zip(static_names(cls), kept, strict=True))
        return node

    def kept(self) -> tuple[Any, ...]:
        """The values of the static fields."""
        return tuple([self.__dict__[name] for name in static_names(type(self))])

    def children(self) -> tuple[Any, ...]:
        """The values of the fields, in their order."""
        values = self.__dict__
        return tuple([values[name] for name in field_names(type(self))])  # faster than a generator

    def _take_names(self) -> None:
        """Called where a node was given names of its coordinates."""

    def __getstate__(self) -> dict[str, Any]:
        """The fields and the names: what else is known of a node is found again from them."""
        fields = (*field_names(type(self)), *static_names(type(self)), LABEL)
        return {name: self.__dict__[name] for name in fields if name in self.__dict__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for leaf in leaves(self):  # arrays that were pickled or copied are writable
            frozen(leaf)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and identical(self, other)

    __hash__ = None  # type: ignore[assignment]  # equal by content, and the content is arrays

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}={_outline(v)}' for n, v in _items(self))})"


def _set_once(node: Node, name: str, value: Any) -> None:
    """``node.name = value``, for constructors: what is there stays as it is."""
    known = {field.name for field in dataclasses.fields(node)}  # type: ignore[arg-type]
    if name not in known or name in node.__dict__:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    node.__dict__[name] = value


def leaves(tree: PyTree) -> list[Any]:
    """All that is neither a node nor a container, in the order of fields and sorted keys."""
    if not is_branch(tree):
        return [tree]
    found = []
    for child in _children(tree):  # arrays without a further call, of which there are many
        found += [child] if type(child) is np.ndarray else leaves(child)
    return found


def leaves_with_path(
    tree: PyTree, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Leaves, each with the names of the fields and keys that lead to it."""
    if not is_branch(tree):
        yield path, tree
        return
    for name, child in _items(tree):
        yield from leaves_with_path(child, (*path, name))


def map_leaves(function: Callable[..., Any], tree: PyTree, *others: Any) -> Any:
    """The same tree with ``function`` of the corresponding leaves; its arrays are frozen."""
    if isinstance(tree, Node):
        rows = zip(tree.children(), *(other.children() for other in others), strict=True)

        def own(row: tuple[Any, ...]) -> Any:
            if type(row[0]) is np.ndarray:  # without a further call: there are many
                return frozen(function(*row))
            return map_leaves(function, *row)

        made = type(tree).of_children([own(row) for row in rows], tree.kept())
        return labelled(made, tree.__dict__.get(LABEL, ()))
    if isinstance(tree, dict):
        return {k: map_leaves(function, tree[k], *(other[k] for other in others)) for k in tree}
    if isinstance(tree, list | tuple):
        return type(tree)(map_leaves(function, *row) for row in zip(tree, *others, strict=True))
    return None if tree is None else frozen(function(tree, *others))


def taken(tree: PyTree, place: Any) -> Any:
    """Return the tree of ``leaf[place]``: rows of stacked trees, or records of data."""
    return tree_map(operator.itemgetter(place), tree)


def tree_map(function: Callable[..., Any], tree: PyTree, *others: Any) -> Any:
    """``jax.tree.map`` once there is JAX; the same without, of nodes and Python's containers."""
    jax = jax_module()
    if jax is not None:
        return jax.tree.map(function, tree, *others)
    if not is_branch(tree):
        return function(tree, *others)

    def rows(children):
        return zip(children, *(_children(other) for other in others), strict=True)

    made = [tree_map(function, *row) for row in rows(_children(tree))]
    if isinstance(tree, Node):
        return type(tree).of_children(made, tree.kept())
    if isinstance(tree, dict):
        return dict(zip(sorted(tree), made, strict=True))
    return None if tree is None else getattr(tree, "_make", type(tree))(made)


def tree_leaves(tree: PyTree) -> list[Any]:
    """``jax.tree.leaves`` once there is JAX; the same without, of nodes and Python's containers."""
    jax = jax_module()
    return leaves(tree) if jax is None else jax.tree.leaves(tree)


def _children(tree: PyTree) -> Sequence[Any]:
    return tree.children() if isinstance(tree, Node) else [child for _, child in _items(tree)]


def labelled(node: Any, names: tuple[str, ...]) -> Any:
    """Set the names of a new node's coordinates and return the node."""
    if names:
        node.__dict__[LABEL] = names
        node._take_names()
    return node


def structure(tree: PyTree) -> Any:
    """Types, names and shapes: what two trees of equal structure share."""
    if not is_branch(tree):
        return np.shape(tree)
    kept = tree.kept() if isinstance(tree, Node) else ()
    return (type(tree), *kept, *((name, structure(child)) for name, child in _items(tree)))


def identical(left: PyTree, right: PyTree) -> bool:
    """Equal in types, shapes and numbers; what is NaN equals nothing."""
    pairs = zip(leaves(left), leaves(right), strict=False)
    same = all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
    return same and structure(left) == structure(right)  # which takes longer


BRANCHES = Node, dict, list, tuple


def is_branch(tree: PyTree) -> bool:
    """True if a tree has parts: a node, a container, or None."""
    return tree is None or isinstance(tree, BRANCHES)


def _items(tree: PyTree) -> list[tuple[str, Any]]:
    if isinstance(tree, Node):
        return list(zip(field_names(type(tree)), tree.children(), strict=True))
    if isinstance(tree, dict):
        return [(str(key), tree[key]) for key in sorted(tree)]
    return [] if tree is None else [(str(index), child) for index, child in enumerate(tree)]


def _outline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_outline(child)}" for name, child in value.items()) + "}"
    if value is None or isinstance(value, Node):
        return repr(value)
    try:
        return f"{np.shape(value)}"
    except ValueError:  # a list of parts of different shapes
        return f"[{', '.join(map(_outline, value))}]"


@functools.cache
def field_names(cls: type) -> tuple[str, ...]:
    """Names of the fields of a node, in their order: that of its ``children()``."""
    return tuple(field.name for field in dataclasses.fields(cls) if STATIC not in field.metadata)


@functools.cache
def static_names(cls: type) -> tuple[str, ...]:
    """Names of the static fields of a node, in their order: that of its ``kept()``."""
    return tuple(field.name for field in dataclasses.fields(cls) if STATIC in field.metadata)


# --- pytrees, once there is JAX ------------------------------------------------------------------

_lock = threading.Lock()
_waiting: list[type[Node]] = []


def _register(cls: type[Node]) -> None:
    with _lock:
        if _finder not in sys.meta_path:
            _register_now(cls)
        else:
            _waiting.append(cls)


def _register_now(cls: type[Node]) -> None:
    from jax.tree_util import GetAttrKey, register_pytree_with_keys

    def flatten_with_keys(node: Node) -> Any:
        return [(GetAttrKey(name), child) for name, child in _items(node)], node.kept()

    register_pytree_with_keys(
        cls,
        flatten_with_keys,
        lambda kept, children: cls.of_children(children, kept),
        lambda node: (node.children(), node.kept()),
    )


def _register_waiting() -> None:
    with _lock:
        sys.meta_path.remove(_finder)
        while _waiting:
            _register_now(_waiting.pop())


class _Finder(importlib.abc.MetaPathFinder):
    """Find JAX on the usual import path; the search alone has no effect."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "jax":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        result = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in result if spec is not None), None)
        if spec is not None:
            spec.loader = spec.loader and _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads JAX as its own loader does, and then registers what waits for it."""

    def __init__(self, loader: Any):
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        _register_waiting()


_finder = _Finder()
if jax_module() is None:
    sys.meta_path.insert(0, _finder)


class Setting(Node, abc.ABC):
    """Base of what is chosen, such as models and local rules: hashable, and shown in full."""

    def __hash__(self) -> int:
        return hash((type(self), self.kept()))

    def __repr__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        shown = (f"{n}={getattr(v, 'shape', v)!r}" for n, v in values.items())
        return f"{type(self).__name__}({', '.join(shown)})"
