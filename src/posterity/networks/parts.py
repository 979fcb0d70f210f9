"""Which leaves of another library's tree of weights belong to one layer."""

from typing import Any, NamedTuple

import jax
import numpy as np

from posterity.errors import StructureError

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
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = [(tuple(_name(key) for key in path), leaf) for path, leaf in found]
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
    )  # fmt: skip
