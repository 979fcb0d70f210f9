"""Leaves of other libraries' trees, and conversion of PyTorch tensors to arrays and back."""

import sys
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

WRAPPERS = {"value", "raw_value"}
"""Names of the wrappers of arrays in flax's nnx."""


def leaves_of(tree: PyTree) -> list[tuple[tuple[str, ...], Any]]:
    """Return leaves with their paths, without nnx wrappers; names are split at dots."""

    def names(key):
        return [getattr(key, own) for own in ("key", "idx", "name") if hasattr(key, own)]

    leaves = []
    for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        own = (str([*names(key), key][0]) for key in keys)
        path = tuple(piece for name in own for piece in name.split("."))
        leaves.append((path[:-1] if path and path[-1] in WRAPPERS else path, leaf))
    return leaves


def without_tensors(tree: PyTree) -> PyTree:
    """Return the tree with arrays in place of tensors; a module is replaced by its state dict."""
    torch: Any = sys.modules.get("torch")  # imported already if there is a tensor
    if torch is None:
        return tree
    if isinstance(tree, torch.nn.Module):
        tree = tree.state_dict()
    return jax.tree.map(lambda leaf: _array(leaf) if torch.is_tensor(leaf) else leaf, tree)


def _array(tensor: Any) -> np.ndarray:
    """Return a tensor as a new array; types that NumPy lacks, such as bfloat16, are widened."""
    own = tensor.detach().cpu()
    return (own.float() if own.is_floating_point() and own.itemsize < 4 else own).numpy().copy()


def as_there(array: np.ndarray, leaf: Any) -> Any:
    """Return an array with the type of a leaf, or a tensor if the leaf is one."""
    if isinstance(leaf.dtype, np.dtype):
        return array.astype(leaf.dtype)
    torch: Any = sys.modules["torch"]
    own = array.reshape(-1) if leaf.ndim == 1 else array  # PyTorch's convolution biases are flat
    return torch.tensor(own, dtype=leaf.dtype, device=leaf.device)
