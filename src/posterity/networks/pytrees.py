"""Networks of other libraries: pytrees of weights to a :class:`Network`, and back.

flax names ``kernel`` what is shaped ``(inputs, outputs)`` or ``(height, width, inputs, outputs)``,
with channels last; equinox and PyTorch name ``weight`` what is shaped ``(outputs, inputs)`` or
``(outputs, inputs, height, width)``, with channels first, so that their flattened images have
another order.
"""

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import jax
import numpy as np

from posterity.errors import StructureError
from posterity.families.layers import Conv, Dense, Layers
from posterity.families.network import Network
from posterity.models.forward import outputs
from posterity.networks.trees import (
    LAYOUT,
    Tree,
    described,
    is_array,
    leaves_of,
    ordered,
    parts_of,
    to_ours,
)

RECORDS = 16
TOLERANCE = 1e-3


def from_pytree(
    mean: Any,
    variance: Any,
    *,
    layers: Layers | None = None,
    activation: str | None = None,
    layout: str | None = None,
    order: Sequence[str] | None = None,
    apply: Callable[[Any, Any], Any] | None = None,
) -> Network:
    """A posterior from trees of means and of variances, as flax, equinox or a user's own have them.

    Args:
        mean: weights of dense and convolutional layers, and nothing else: for linen the
            ``params``, for nnx the state, for equinox the module.
        variance: of the same structure; or one number for all.
        layers: of the network; inferred if all are dense.
        activation: of hidden layers where they are inferred; arrays do not show it.
        layout: where channels stand, ``"last"`` as in flax or ``"first"`` as in equinox and
            PyTorch; by default as names and shapes tell.
        order: paths of the layers, from inputs to outputs, where names and sizes do not tell.
        apply: ``apply(mean, x)`` on a batch, as the other library computes it; it is compared with
            what the layers compute on random inputs.

    Raises:
        StructureError: if a leaf belongs to no dense or convolutional layer, the layers do not
            follow upon each other, or do not compute what ``apply`` does; leaves are named.
        UsageError: if what the arrays do not show is not said.

    >>> tree = {"Dense_0": {"kernel": np.ones((4, 3)), "bias": np.zeros(3)},
    ...         "Dense_1": {"kernel": np.ones((3, 2)), "bias": np.zeros(2)}}
    >>> from_pytree(tree, 0.01, activation="relu")
    Network(4-3 relu-2)
    """
    known = described(mean, layers, activation, layout, order)
    if isinstance(variance, Real):
        spread = float(variance)
        full = lambda leaf: np.full(np.shape(leaf), spread) if is_array(leaf) else leaf
        variance = jax.tree.map(full, mean)
    paths = lambda tree: [(path, np.shape(leaf)) for path, leaf in leaves_of(tree)]
    if paths(mean) != paths(variance):
        raise StructureError(
            found="variances of another structure than the means",
            expected="an array of the same shape for each",
            fix="Make both trees by one function.",
        )
    ours = lambda tree: known.layers.ravel(_arrays(known, tree))
    network = Network.from_standard(ours(mean), ours(variance), known.layers)
    if apply is not None:
        _check(known, network, mean, apply)
    return network


def to_pytree(
    network: Network,
    like: Any,
    *,
    layout: str | None = None,
    order: Sequence[str] | None = None,
) -> tuple[Any, Any]:
    """Trees of means and of variances with the structure of ``like``: inverse of the above.

    Of ``like`` only the structure, names and numbers of axes count, so that it may be a module of
    other widths; arrays come in its precision.

    Raises:
        StructureError, UsageError: as :func:`from_pytree`.

    >>> tree = {"kernel": np.ones((4, 2), np.float32), "bias": np.zeros(2, np.float32)}
    >>> mean, variance = to_pytree(from_pytree(tree, 0.5), tree)
    >>> mean["kernel"].shape, float(variance["bias"][0])
    ((4, 2), 0.5)
    """
    parts = parts_of(like)
    layers = network.layers
    LAYOUT.check(layout=layout)
    chosen, layouts = ordered(parts, layers, layout, order, widths=False)
    known, (leaves, structure) = Tree(chosen, layouts, layers), jax.tree.flatten(like)
    trees = []
    for values in (network.mean, network.variance):
        new = list(leaves)
        for place, array in _placed(known, np.asarray(values)):
            new[place] = array.astype(leaves[place].dtype)
        trees.append(jax.tree.unflatten(structure, new))
    return trees[0], trees[1]


# --- their arrays and ours -----------------------------------------------------------------------


def _to_theirs(kernel: np.ndarray, layout: str) -> np.ndarray:
    if layout == "last":
        return kernel
    return kernel.T if kernel.ndim == 2 else kernel.transpose(3, 2, 0, 1)


def _flattened(layers: Layers, index: int) -> tuple[int, ...] | None:
    """The image whose flattening the layer takes, if its order depends on where channels are."""
    image = layers.images[index]
    takes = isinstance(layers[index], Dense) and len(image) == 3
    return image if takes else None


def _arrays(known: Tree, tree: Any) -> list[dict[str, Any]]:
    """Ours from theirs."""
    leaves = [leaf for _, leaf in leaves_of(tree)]
    arrays = []
    for index, (part, layout) in enumerate(zip(known.parts, known.layouts, strict=True)):
        kernel = to_ours(np.asarray(leaves[part.kernel], np.float64), layout)
        image = _flattened(known.layers, index)
        if image is not None and layout == "first":
            height, width, channels = image
            kernel = kernel.reshape(channels, height, width, -1).transpose(1, 2, 0, 3)
            kernel = kernel.reshape(-1, kernel.shape[-1])
        own = {"kernel": kernel}
        if part.bias is not None:
            own["bias"] = np.asarray(leaves[part.bias], np.float64).reshape(-1)
        arrays.append(own)
    return arrays


def _placed(known: Tree, z: np.ndarray) -> Any:
    """Theirs from ours, each with its place among the leaves."""
    arrays = known.layers.unravel(z)
    for index, (part, layout) in enumerate(zip(known.parts, known.layouts, strict=True)):
        kernel = arrays[index]["kernel"]
        image = _flattened(known.layers, index)
        if image is not None and layout == "first":
            kernel = kernel.reshape(*image, -1).transpose(2, 0, 1, 3).reshape(kernel.shape)
        yield part.kernel, _to_theirs(kernel, layout)
        if (part.bias is not None) != ("bias" in arrays[index]):
            raise StructureError(
                found=f"layer {part.path!r} with{'' if part.bias is not None else 'out'} a bias",
                expected="a bias where the network has one",
                fix="Pass a tree of the same layers.",
            )
        if part.bias is not None:
            bias = arrays[index]["bias"]
            wide = isinstance(known.layers[index], Conv) and layout == "first"
            yield part.bias, bias.reshape(-1, 1, 1) if wide else bias


def _check(known: Tree, network: Network, mean: Any, apply: Callable[[Any, Any], Any]) -> None:
    """Raise a StructureError unless the layers compute what ``apply`` does."""
    rng, image = np.random.default_rng(0), network.layers.image
    x = rng.normal(size=(RECORDS, *image)).astype(np.float32)
    theirs = x.transpose(0, 3, 1, 2) if len(image) == 3 and known.layouts[0] == "first" else x
    ours = np.asarray(outputs(network.layers, np.asarray(network.mean, np.float32), x))
    other = np.asarray(apply(mean, theirs))
    off = np.inf
    if other.size == ours.size and np.isfinite(other).all():
        off = np.abs(other.reshape(ours.shape) - ours).max() / max(np.abs(ours).max(), 1e-9)
    if not off <= TOLERANCE:
        raise StructureError(
            found=f"outputs of `apply`, of shape {other.shape}, that differ from those of "
            f"{network.layers.summary} on random inputs, by {off:.2g} of their size",
            expected="one function: dense and convolutional layers, one after the other, and no "
            "softmax at the end",
            fix="Check activations, strides, padding, pooling, layout and order; networks with "
            "other parts, as residual ones, are no Layers.",
        )
