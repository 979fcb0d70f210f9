"""Leaves of other libraries' trees: by path, and of PyTorch as arrays and back."""

import sys
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

WRAPPERS = {"value", "raw_value"}
"""What flax's nnx puts around arrays."""


def leaves_of(tree: PyTree) -> list[tuple[tuple[str, ...], Any]]:
    """Leaves by path, without what nnx puts around arrays; names of state dicts are paths."""
    names = lambda key: [getattr(key, own) for own in ("key", "idx", "name") if hasattr(key, own)]
    leaves = []
    for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        own = (str([*names(key), key][0]) for key in keys)
        path = tuple(piece for name in own for piece in name.split("."))
        leaves.append((path[:-1] if path and path[-1] in WRAPPERS else path, leaf))
    return leaves


def without_tensors(tree: PyTree) -> PyTree:
    """The tree with arrays in place of tensors; of a module its state dict."""
    torch: Any = sys.modules.get("torch")  # who has a tensor has imported it
    if torch is None:
        return tree
    if isinstance(tree, torch.nn.Module):
        tree = tree.state_dict()
    return jax.tree.map(lambda leaf: _array(leaf) if torch.is_tensor(leaf) else leaf, tree)


def _array(tensor: Any) -> np.ndarray:
    """A copy; what NumPy has no type for, such as bfloat16, is widened."""
    own = tensor.detach().cpu()
    return (own.float() if own.is_floating_point() and own.itemsize < 4 else own).numpy().copy()


def as_there(array: np.ndarray, leaf: Any) -> Any:
    """An array of the type of a leaf, and a tensor where that is one."""
    if isinstance(leaf.dtype, np.dtype):
        return array.astype(leaf.dtype)
    torch: Any = sys.modules["torch"]
    own = array.reshape(-1) if leaf.ndim == 1 else array  # biases of convolutions lie flat there
    return torch.tensor(own, dtype=leaf.dtype, device=leaf.device)
