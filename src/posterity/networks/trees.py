"""The layers that another library's tree of weights holds, in their order, and their layouts."""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from posterity.arguments import one_of
from posterity.errors import StructureError, UsageError
from posterity.families.layers import Dense, Layers

LAYOUTS = {"kernel": "last", "weight": "first"}
"""By the name of what is multiplied: where channels stand."""
KERNELS = {"kernel", "weight", "w", "W", "0"}
BIASES = {"bias", "b", "1"}
WRAPPERS = {"value", "raw_value"}
"""What flax's nnx puts around arrays."""


class Part(NamedTuple):
    """The arrays of one layer: places among the leaves of the tree, and where channels stand."""

    path: str
    kernel: int
    bias: int | None
    shape: tuple[int, ...]
    layout: str | None

    def sizes(self, layout: str) -> tuple[int, int]:
        """Numbers of inputs and outputs."""
        return self.shape[-2:] if layout == "last" else (self.shape[1], self.shape[0])  # pyright: ignore[reportReturnType]


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, and no activation or number that a module was made with."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def leaves_of(tree: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Leaves by path, without what nnx puts around arrays."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = [(tuple(_name(key) for key in path), leaf) for path, leaf in leaves]
    return [(path[:-1] if path and path[-1] in WRAPPERS else path, leaf) for path, leaf in named]


def _name(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def parts_of(tree: Any) -> list[Part]:
    """Layers, by where their arrays stand together."""
    groups: dict[tuple[str, ...], dict[str, tuple[int, Any]]] = {}
    for place, (path, leaf) in enumerate(leaves_of(tree)):
        if not is_array(leaf):  # activations, and numbers that a module was made with
            continue
        numeric = isinstance(leaf.dtype, np.dtype)  # tensors of PyTorch have types of their own
        if not numeric or not np.issubdtype(leaf.dtype, np.floating) or not path:
            raise _strange(path, leaf, "an array of floats of NumPy or JAX in a layer")
        groups.setdefault(path[:-1], {})[path[-1]] = (place, leaf)
    if not groups:
        raise StructureError(
            found="a tree without arrays", expected="weights", fix="Pass initialised parameters."
        )
    return [_part(path, group) for path, group in groups.items()]


def _part(path: tuple[str, ...], group: dict[str, tuple[int, Any]]) -> Part:
    kernels = [n for n, (_, leaf) in group.items() if n in KERNELS and np.ndim(leaf) in (2, 4)]
    if len(kernels) != 1:
        name = [*(n for n in group if n not in kernels), *kernels][0]
        raise _strange((*path, name), group[name][1], "with one kernel of two or four axes beside")
    place, kernel = group[kernels[0]]
    bias = None
    for name, (at, leaf) in group.items():
        if name == kernels[0]:
            continue
        if name not in BIASES or bias is not None or np.size(leaf) not in _ends(np.shape(kernel)):
            raise _strange((*path, name), leaf, "a bias of one number a unit of its layer")
        bias = at
    layout = LAYOUTS.get(kernels[0])
    if layout is None and bias is not None:  # the bias tells which end the outputs are at
        first, last = _ends(np.shape(kernel))
        size = np.size(next(leaf for at, leaf in group.values() if at == bias))
        layout = None if first == last else "last" if size == last else "first"
    return Part("/".join(path), place, bias, np.shape(kernel), layout)


def _ends(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], shape[-1]


def _strange(path: tuple[str, ...], leaf: Any, expected: str) -> StructureError:
    return StructureError(
        found=f"leaf {'/'.join(path) or '(the whole tree)'!r}, "
        f"an array of {leaf.dtype} of shape {tuple(leaf.shape)}",
        expected=f"dense and convolutional layers alone: {expected}",
        fix="Normalisation, embeddings, recurrence and the like are no layers of a Network; of a "
        "linen module pass the `params` alone; of tensors their .numpy().",
    )


# --- their order ----------------------------------------------------------------------------------

LAYOUT = one_of("last", "first").or_none()
MANY = 6
"""Layers up to which every order is tried."""


class Tree(NamedTuple):
    """A tree whose parts are known, in the order of the layers."""

    parts: tuple[Part, ...]
    layouts: tuple[str, ...]
    layers: Layers


def described(
    tree: Any, layers: Layers | None, activation: str | None, layout: Any, order: Any
) -> Tree:
    """The tree's layers: those that are given, else dense ones, inferred.

    Raises:
        StructureError, UsageError: as :func:`~posterity.networks.pytrees.from_pytree`.
    """
    LAYOUT.check(layout=layout)
    parts = parts_of(tree)
    if layers is not None:
        return Tree(*ordered(parts, layers, layout, order), layers)
    if windows := [part.path for part in parts if len(part.shape) == 4]:
        raise UsageError(
            found=f"convolutions at {windows}, of which arrays show neither stride nor pooling",
            expected="the layers",
            fix="Pass layers=Layers((Conv(...), ..., Dense(...)), image=(28, 28, 1)).",
        )
    if activation is None and len(parts) > 1:
        raise UsageError(
            found="hidden layers whose activation is not named",
            expected="activation= or layers=: arrays do not show it",
            fix="Pass activation='relu', or what it is.",
        )
    chosen, layouts = ordered(parts, None, layout, order)
    last = len(chosen) - 1
    dense = []
    for n, (part, own) in enumerate(zip(chosen, layouts, strict=True)):
        function = "identity" if n == last or activation is None else activation
        dense.append(Dense(*part.sizes(own), function, part.bias is not None))
    return Tree(chosen, layouts, Layers(tuple(dense)))


def ordered(
    parts: list[Part],
    layers: Layers | None,
    layout: str | None,
    order: Sequence[str] | None,
    *,
    widths: bool = True,
) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Parts from inputs to outputs, and where the channels of each stand."""
    if layers is not None and len(parts) != len(layers):
        raise StructureError(
            found=f"{len(parts)} layers at {[part.path for part in parts]}",
            expected=f"{len(layers)} layers, as described: {layers.summary}",
            fix="Describe all layers, and no other.",
        )
    if order is not None:
        if sorted(order) != sorted(part.path for part in parts):
            raise UsageError(
                found=f"order={list(order)}",
                expected=f"each of {[part.path for part in parts]} once",
                fix="Name layers from inputs to outputs.",
            )
        parts = sorted(parts, key=lambda part: list(order).index(part.path))
        orders = [tuple(parts)]
    else:
        parts = sorted(parts, key=lambda part: _natural(part.path))
        orders = [*_chains(parts)]
    layouts = [(chosen, _layouts(chosen, layout)) for chosen in orders]
    fitting = [pair for pair in layouts if _follows(*pair, layers)]
    if not (fitting or widths):
        fitting = [pair for pair in layouts if _follows(*pair, None)]
    # Numbers in names say the order where they can; linen's count constructors, not calls.
    fitting = [pair for pair in fitting if _kept(pair[0])] or fitting
    if not fitting:
        chosen = orders[0] if orders else tuple(parts)
        raise StructureError(
            found=f"layers {[f'{part.path} {part.shape}' for part in chosen]}",
            expected="each to take what the one before gives"
            + (f", as described: {layers.summary}" if layers else ""),
            fix="Networks with branches, as residual ones, are no Layers; else pass `order`.",
        )
    if len(fitting) > 1:
        raise UsageError(
            found=f"layers {[part.path for part in parts]}, which several orders fit",
            expected="numbered names, or an order",
            fix="Pass order=[...], their paths from inputs to outputs.",
        )
    return fitting[0]


def _natural(path: str) -> list[Any]:
    pieces = re.split(r"(\d+)", path)
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in pieces]


def _kept(chosen: Sequence[Part]) -> bool:
    """Whether layers whose names differ in numbers alone stand in the order of these."""
    stem = lambda part: re.sub(r"\d+", "", part.path)
    return all(
        _natural(a.path) < _natural(b.path)
        for a, b in itertools.combinations(chosen, 2)
        if stem(a) == stem(b)
    )


def _chains(parts: list[Part]) -> Iterator[tuple[Part, ...]]:
    """Orders that layers may have: of many, that of their names alone."""
    return itertools.permutations(parts) if len(parts) <= MANY else iter([tuple(parts)])


def _layouts(parts: Sequence[Part], layout: str | None) -> tuple[str, ...]:
    layouts = []
    common = {part.layout for part in parts} - {None}
    for part in parts:
        own = layout or part.layout or (common.copy().pop() if len(common) == 1 else None)
        if own is None:
            raise UsageError(
                found=f"a kernel of shape {part.shape} at {part.path!r}, of which it cannot be "
                "told whether inputs or outputs come first",
                expected="a layout",
                fix="Pass layout='last' for (inputs, outputs), 'first' for (outputs, inputs).",
            )
        layouts.append(own)
    return tuple(layouts)


def _follows(parts: Sequence[Part], layouts: Sequence[str], layers: Layers | None) -> bool:
    """Whether each takes what the one before gives, and is shaped as described."""
    if layers is not None:
        triples = zip(parts, layouts, layers.layers, strict=True)
        return all(
            to_ours(np.empty(part.shape), own).shape == layer.kernel
            and (part.bias is not None) == layer.bias
            for part, own, layer in triples
        )
    sizes = [part.sizes(own) for part, own in zip(parts, layouts, strict=True)]
    for (before, after), part, last in zip(
        itertools.pairwise(sizes), parts[1:], parts, strict=False
    ):
        flattened = len(last.shape) == 4 and len(part.shape) == 2
        if after[0] != before[1] and not (flattened and after[0] % before[1] == 0):
            return False
        if len(last.shape) == 2 and len(part.shape) == 4:
            return False
    return True


def to_ours(kernel: np.ndarray, layout: str) -> np.ndarray:
    """A kernel with its inputs before its outputs, and its window before both."""
    if layout == "last":
        return kernel
    return kernel.T if kernel.ndim == 2 else kernel.transpose(2, 3, 1, 0)
