"""Conversion of other libraries' pytrees of weights to a :class:`Network`, and back.

A ``kernel`` of flax has shape ``(inputs, outputs)`` or ``(height, width, inputs, outputs)``, with
channels last. A ``weight`` of equinox and PyTorch has shape ``(outputs, inputs)`` or ``(outputs,
inputs, height, width)``, with channels first, so that flattened images have another order.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from posterity.arguments import one_of
from posterity.arrays.leaves import kind_of
from posterity.arrays.typing import Shape
from posterity.errors import StructureError, UsageError
from posterity.families.layers import Conv, Dense, Layers
from posterity.families.network import Network
from posterity.models.forward import outputs
from posterity.networks.tensors import as_there, leaves_of, without_tensors

LAYOUTS = {"kernel": "last", "weight": "first"}
"""Position of the channels by the name of the kernel."""
KERNELS = {"kernel", "weight", "w", "W", "0"}
BIASES = {"bias", "b", "1"}
LAYOUT = one_of("last", "first").or_none()
OURS = (2, 3, 1, 0)
"""Axes of a convolution's kernel from "first" to "last"."""
THEIRS = (3, 2, 0, 1)
"""Axes of a convolution's kernel from "last" to "first"."""


def from_pytree(
    mean: PyTree,
    variance: PyTree | float,
    *,
    layers: Layers | None = None,
    activation: str | None = None,
    layout: str | None = None,
    order: Sequence[str] | None = None,
    apply: Callable[[PyTree, np.ndarray], Any] | None = None,
) -> Network:
    """Make a posterior from trees of means and variances, of flax, equinox, PyTorch or one's own.

    Args:
        mean: tree of the weights of dense and convolutional layers only: for linen the ``params``,
            for nnx the state, for equinox the module, for PyTorch the state dict or the module; a
            StructureError names leaves of other kinds.
        variance: tree of variances of the same structure, or one number for all weights.
        layers: layers of the network; inferred if all are dense.
        activation: activation of hidden layers, required if layers are inferred.
        layout: position of the channels, ``"last"`` as in flax or ``"first"`` as in equinox and
            PyTorch; by default inferred from names and shapes.
        order: paths of the layers from inputs to outputs, if names do not number them.
        apply: function ``apply(mean, x)`` of a batch in the other library; a StructureError unless
            the layers give the same outputs on random inputs.

    >>> tree = {"Dense_0": {"kernel": np.ones((4, 3)), "bias": np.zeros(3)},
    ...         "Dense_1": {"kernel": np.ones((3, 2)), "bias": np.zeros(2)}}
    >>> from_pytree(tree, 0.01, activation="relu")
    Network(4-3 relu-2)
    """
    mean = without_tensors(mean)
    variance = without_tensors(variance)
    known = _described(mean, layers, activation, layout, order)
    if isinstance(variance, Real):
        arrays, others = eqx.partition(mean, _is_array)
        full = jax.tree.map(lambda leaf: np.full(np.shape(leaf), float(variance)), arrays)
        variance = eqx.combine(full, others)
    paths, others = ([(p, np.shape(leaf)) for p, leaf in leaves_of(t)] for t in (mean, variance))
    if paths != others:
        raise StructureError(
            found="variances of another structure",
            expected="an array of its shape for each mean",
        )

    means, variances = (known.layers.ravel(_arrays(known, tree)) for tree in (mean, variance))
    network = Network.from_standard(means, variances, known.layers)
    if apply is not None:
        _check(known, network, mean, apply)
    return network


def to_pytree(
    network: Network, like: PyTree, *, layout: str | None = None, order: Sequence[str] | None = None
) -> tuple[Any, Any]:
    """Return trees of means and of variances with the structure of ``like``; the inverse of
    :func:`from_pytree`.

    Only the structure, the names and the numbers of axes of ``like`` are used, so its widths may
    differ. Arrays have its precision, and are tensors where it has tensors.

    >>> tree = {"kernel": np.ones((4, 2), np.float32), "bias": np.zeros(2, np.float32)}
    >>> mean, variance = to_pytree(from_pytree(tree, 0.5), tree)
    >>> mean["kernel"].shape, float(variance["bias"][0])
    ((4, 2), 0.5)
    """
    like = like.state_dict() if hasattr(like, "state_dict") else like
    parts = _parts_of(without_tensors(like))
    ordered = _ordered(parts, network.layers, layout, order, widths=False)
    known, (leaves, structure) = Tree(*ordered, network.layers), jax.tree.flatten(like)
    trees = []
    for values in (network.mean, network.variance):
        ours = dict(_placed(known, np.asarray(values)))
        new = [as_there(ours[i], leaf) if i in ours else leaf for i, leaf in enumerate(leaves)]
        trees.append(jax.tree.unflatten(structure, new))
    return trees[0], trees[1]


class Part(NamedTuple):
    """The arrays of one layer: their indices among the leaves, and the position of channels."""

    path: str
    kernel: int
    bias: int | None
    shape: Shape
    layout: str | None

    def sizes(self, layout: str) -> tuple[int, int]:
        """Return the numbers of inputs and outputs."""
        before, after = self.shape[-2:] if layout == "last" else self.shape[1::-1]
        return before, after


def _is_array(leaf: Any) -> bool:
    """Tell arrays from other leaves of a module, such as activations and numbers."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _parts_of(tree: PyTree) -> list[Part]:
    """Return the layers of a tree: groups of arrays of one parent."""
    groups: dict[tuple[str, ...], dict[str, tuple[int, Any]]] = {}
    for place, (path, leaf) in enumerate(leaves_of(tree)):
        if not _is_array(leaf):
            continue
        if not isinstance(leaf.dtype, np.dtype) or kind_of(leaf.dtype) != "f" or not path:
            raise _strange(path, leaf, "an array of floats of NumPy or JAX in a layer")
        groups.setdefault(path[:-1], {})[path[-1]] = (place, leaf)
    if not groups:
        raise StructureError(found="a tree without arrays", expected="weights")
    return [_part(path, group) for path, group in groups.items()]


def _part(path: tuple[str, ...], group: dict[str, tuple[int, Any]]) -> Part:
    kernels = [n for n, (_, leaf) in group.items() if n in KERNELS and np.ndim(leaf) in (2, 4)]
    if len(kernels) != 1:
        name = [*(n for n in group if n not in kernels), *kernels][0]
        raise _strange((*path, name), group[name][1], "with one kernel of two or four axes beside")
    place, kernel = group.pop(kernels[0])
    bias, size, (first, *_, last) = None, None, np.shape(kernel)
    for name, (at, leaf) in group.items():
        if name not in BIASES or bias is not None or np.size(leaf) not in (first, last):
            raise _strange((*path, name), leaf, "a bias of one number a unit of its layer")
        bias = at
        size = np.size(leaf)
    layout = LAYOUTS.get(kernels[0])
    if layout is None and bias is not None and first != last:  # the bias has the outputs' size
        layout = "last" if size == last else "first"
    return Part("/".join(path), place, bias, np.shape(kernel), layout)


def _strange(path: tuple[str, ...], leaf: Any, expected: str) -> StructureError:
    return StructureError(
        found=f"leaf {'/'.join(path) or '(the whole tree)'!r}, "
        f"an array of {leaf.dtype} of shape {tuple(leaf.shape)}",
        expected=f"dense and convolutional layers alone: {expected}",
        fix="Of a linen module pass the `params` alone, and the layers of a module alone; "
        "normalisation, embeddings and recurrence are no layers of a Network.",
    )


class Tree(NamedTuple):
    """The parts of a tree in the order of the layers."""

    parts: tuple[Part, ...]
    layouts: tuple[str, ...]
    layers: Layers


def _described(
    tree: PyTree,
    layers: Layers | None,
    activation: str | None,
    layout: str | None,
    order: Sequence[str] | None,
) -> Tree:
    """Return a tree with these layers, or with inferred dense ones; errors as of from_pytree."""
    parts = _parts_of(tree)
    if layers is not None:
        return Tree(*_ordered(parts, layers, layout, order), layers)
    windows = any(len(part.shape) == 4 for part in parts)
    if windows or (activation is None and len(parts) > 1):
        raise UsageError(
            found=f"layers of shapes {[part.shape for part in parts]}, which do not show "
            "activation, stride and pooling",
            expected="activation=, as 'relu', if all are dense; or layers=Layers((Conv(...), ..., "
            "Dense(...)), image=(28, 28, 1))",
        )
    chosen, layouts = _ordered(parts, None, layout, order)
    functions = [activation or "identity"] * (len(chosen) - 1) + ["identity"]
    dense = (
        Dense(*part.sizes(own), function, part.bias is not None)
        for part, own, function in zip(chosen, layouts, functions, strict=True)
    )
    return Tree(chosen, layouts, Layers(tuple(dense)))


def _ordered(
    parts: list[Part],
    layers: Layers | None,
    layout: str | None,
    order: Sequence[str] | None,
    *,
    widths: bool = True,
) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Return parts from inputs to outputs, and the position of each one's channels."""
    LAYOUT.check(layout=layout)
    if order is not None:
        if sorted(order) != sorted(part.path for part in parts):
            raise UsageError(
                found=f"{order=}", expected=f"{[part.path for part in parts]}, each once"
            )
        parts = sorted(parts, key=lambda part: order.index(part.path))
    else:
        parts = _numbered(parts)
    layouts = _layouts(parts, layout)
    if layers is not None:
        pairs = zip(parts, layouts, strict=True)
        own = [(_turned(np.empty(p.shape), of, OURS).shape, p.bias is not None) for p, of in pairs]
        asked = [(layer.kernel, layer.bias) for layer in layers.layers]
        if not widths:
            own, asked = ([(len(kernel), bias) for kernel, bias in each] for each in (own, asked))
        if own != asked:
            raise StructureError(
                found=f"layers {[f'{part.path} {part.shape}' for part in parts]}, with biases "
                f"{[part.bias is not None for part in parts]}",
                expected=f"{len(layers)} as described: {layers.layers}",
                fix="Pass order=[...], their paths from inputs to outputs, if it is another one.",
            )
    return tuple(parts), layouts


def _numbered(parts: list[Part]) -> list[Part]:
    """Return parts by the numbers in their names, convolutions first. Raises UsageError if names
    have none, two have the same, or layers of a kind differ in more than their numbers.
    """

    def place(part):
        return len(part.shape) < 4, [int(digits) for digits in re.findall(r"\d+", part.path)]

    places = [place(part) for part in parts]
    stems = {(len(part.shape) < 4, re.sub(r"\d+", "", part.path)) for part in parts}
    alike = len(stems) == len({dense for dense, _ in stems})
    numbered = alike and all(numbers for _, numbers in places)
    if len(parts) > 1 and not (numbered and all(places.count(own) == 1 for own in places)):
        raise UsageError(
            found=f"layers {[part.path for part in parts]}, whose names do not number them",
            expected="numbered names, or order=[...], their paths from inputs to outputs",
        )
    return sorted(parts, key=place)


def _layouts(parts: Sequence[Part], layout: str | None) -> tuple[str, ...]:
    known = {part.layout for part in parts} - {None}
    common = known.pop() if len(known) == 1 else None
    layouts = tuple(layout or part.layout or common for part in parts)
    if None in layouts:
        part = parts[layouts.index(None)]
        raise UsageError(
            found=f"a kernel of shape {part.shape} at {part.path!r}, of either layout",
            expected="layout='last' for (inputs, outputs), 'first' for (outputs, inputs)",
        )
    return layouts  # pyright: ignore[reportReturnType]


def _turned(kernel: np.ndarray, layout: str, axes: Shape) -> np.ndarray:
    """Convert a kernel from another layout to (window, inputs, outputs), or back."""
    if layout == "last":
        return kernel
    return kernel.T if kernel.ndim == 2 else kernel.transpose(axes)


def _flattened(known: Tree, index: int) -> Shape:
    """Return the image shape that a dense layer flattens with channels first, or ()."""
    image = known.layers.images[index]
    dense = isinstance(known.layers[index], Dense)
    return image if dense and len(image) == 3 and known.layouts[index] == "first" else ()


def _arrays(known: Tree, tree: PyTree) -> list[dict[str, Any]]:
    """Convert another library's tree to arrays of layers."""
    leaves = [leaf for _, leaf in leaves_of(tree)]
    arrays = []
    for index, (part, layout) in enumerate(zip(known.parts, known.layouts, strict=True)):
        kernel = _turned(np.asarray(leaves[part.kernel], np.float64), layout, OURS)
        image = _flattened(known, index)
        if image:
            height, width, channels = image
            kernel = kernel.reshape(channels, height, width, -1).transpose(1, 2, 0, 3)
            kernel = kernel.reshape(-1, kernel.shape[-1])
        own = {"kernel": kernel}
        if part.bias is not None:
            own["bias"] = np.asarray(leaves[part.bias], np.float64).reshape(-1)
        arrays.append(own)
    return arrays


def _placed(known: Tree, z: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield another library's arrays from flat weights, each with its index among the leaves."""
    arrays = known.layers.unravel(z)
    for index, (part, layout) in enumerate(zip(known.parts, known.layouts, strict=True)):
        kernel = arrays[index]["kernel"]
        image = _flattened(known, index)
        if image:
            kernel = kernel.reshape(*image, -1).transpose(2, 0, 1, 3).reshape(kernel.shape)
        yield part.kernel, _turned(kernel, layout, THEIRS)
        if part.bias is not None:
            bias = arrays[index]["bias"]
            wide = isinstance(known.layers[index], Conv) and layout == "first"
            yield part.bias, bias.reshape(-1, 1, 1) if wide else bias


def _check(
    known: Tree,
    network: Network,
    mean: PyTree,
    apply: Callable[..., Any],
    *,
    records: int = 16,
    tolerance: float = 1e-3,
) -> None:
    """Raise a StructureError unless the layers' outputs for random ``records`` are those of
    ``apply``, up to a share ``tolerance`` of the largest.
    """
    rng = np.random.default_rng(0)
    image = network.layers.image
    x = rng.normal(size=(records, *image)).astype(np.float32)
    theirs = x.transpose(0, 3, 1, 2) if len(image) == 3 and known.layouts[0] == "first" else x
    ours = np.asarray(outputs(network.layers, np.asarray(network.mean, np.float32), x))
    other = np.asarray(apply(mean, theirs))
    off = np.inf
    if other.size == ours.size and np.isfinite(other).all():
        off = np.abs(other.reshape(ours.shape) - ours).max() / max(np.abs(ours).max(), 1e-9)
    if not off <= tolerance:
        raise StructureError(
            found=f"outputs of `apply`, of shape {other.shape}, that differ from those of "
            f"{network.layers.summary} on random inputs, by {off:.2g} of their size",
            expected="one function: dense and convolutional layers, one after the other, and no "
            "softmax at the end",
            fix="Check activations, strides, padding, pooling, layout and order.",
        )
