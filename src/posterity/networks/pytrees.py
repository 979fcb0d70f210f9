"""Networks of other libraries: pytrees of weights to a :class:`Network`, and back.

flax names ``kernel`` what is shaped ``(inputs, outputs)`` or ``(height, width, inputs, outputs)``,
with channels last; equinox and PyTorch name ``weight`` what is shaped ``(outputs, inputs)`` or
``(outputs, inputs, height, width)``, with channels first, so that their flattened images have
another order.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, NamedTuple

import jax
import numpy as np

from posterity.arguments import one_of
from posterity.errors import StructureError, UsageError
from posterity.families.network import Network
from posterity.networks.forward import outputs
from posterity.networks.layers import Conv, Dense, Layers

LAYOUTS = {"kernel": "last", "weight": "first"}
"""By the name of what is multiplied: where channels stand."""
LAYOUT = one_of("last", "first").or_none()
KERNELS = {"kernel", "weight", "w", "W", "0"}
BIASES = {"bias", "b", "1"}
WRAPPERS = {"value", "raw_value"}
"""What flax's nnx puts around arrays."""
RECORDS = 16
TOLERANCE = 1e-3
MANY = 6
"""Layers up to which every order is tried."""


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


class Tree(NamedTuple):
    """A tree whose parts are known, in the order of the layers."""

    parts: tuple[Part, ...]
    layouts: tuple[str, ...]
    layers: Layers


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
    known = _described(mean, layers, activation, layout, order)
    if isinstance(variance, Real):
        spread = float(variance)
        variance = jax.tree.map(lambda leaf: np.full(np.shape(leaf), spread) if _is_array(leaf)
                                else leaf, mean)  # fmt: skip
    paths = lambda tree: [(path, np.shape(leaf)) for path, leaf in _leaves(tree)]
    if paths(mean) != paths(variance):
        raise StructureError(
            found="variances of another structure than the means",
            expected="an array of the same shape for each",
            fix="Make both trees by one function.",
        )
    ours = lambda tree: known.layers.ravel(_arrays(known, tree))
    found = Network.from_standard(ours(mean), ours(variance), known.layers)
    if apply is not None:
        _check(known, found, mean, apply)
    return found


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
    parts = _parts(like)
    layers = network.layers
    LAYOUT.check(layout=layout)
    ordered, layouts = _ordered(parts, layers, layout, order, widths=False)
    known, (leaves, structure) = Tree(ordered, layouts, layers), jax.tree.flatten(like)
    found = []
    for values in (network.mean, network.variance):
        new = list(leaves)
        for place, array in _placed(known, np.asarray(values)):
            new[place] = array.astype(leaves[place].dtype)
        found.append(jax.tree.unflatten(structure, new))
    return found[0], found[1]


# --- what the tree holds -------------------------------------------------------------------------


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _leaves(tree: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Leaves by path, without what nnx puts around arrays."""
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = [(tuple(_name(key) for key in path), leaf) for path, leaf in found]
    return [(path[:-1] if path and path[-1] in WRAPPERS else path, leaf) for path, leaf in named]


def _name(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _parts(tree: Any) -> list[Part]:
    """Layers, by where their arrays stand together."""
    groups: dict[tuple[str, ...], dict[str, tuple[int, Any]]] = {}
    for place, (path, leaf) in enumerate(_leaves(tree)):
        if not _is_array(leaf):  # activations, and numbers that a module was made with
            continue
        if not np.issubdtype(leaf.dtype, np.floating) or not path:
            raise _strange(path, leaf, "an array of floats in a layer")
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
        f"an array of {leaf.dtype} of shape {np.shape(leaf)}",
        expected=f"dense and convolutional layers alone: {expected}",
        fix="Normalisation, embeddings, recurrence and the like are no layers of a Network; of a "
        "linen module pass the `params` alone.",
    )  # fmt: skip


# --- in which order, and which way round ---------------------------------------------------------


def _described(
    tree: Any, layers: Layers | None, activation: str | None, layout: Any, order: Any
) -> Tree:
    LAYOUT.check(layout=layout)
    parts = _parts(tree)
    if layers is not None:
        return Tree(*_ordered(parts, layers, layout, order), layers)
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
    ordered, layouts = _ordered(parts, None, layout, order)
    last = len(ordered) - 1
    found = tuple(
        Dense(*part.sizes(own), "identity" if n == last else activation or "identity",
              part.bias is not None)
        for n, (part, own) in enumerate(zip(ordered, layouts, strict=True))
    )  # fmt: skip
    return Tree(ordered, layouts, Layers(found))


def _ordered(
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
    return [(int(piece), "") if piece.isdigit() else (-1, piece)
            for piece in re.split(r"(\d+)", path)]  # fmt: skip


def _kept(chosen: Sequence[Part]) -> bool:
    """Whether layers whose names differ in numbers alone stand in the order of these."""
    stem = lambda part: re.sub(r"\d+", "", part.path)
    return all(
        _natural(a.path) < _natural(b.path)
        for a, b in itertools.combinations(chosen, 2)
        if stem(a) == stem(b)
    )


def _chains(parts: list[Part]) -> Any:
    """Orders that layers may have: of many, that of their names alone."""
    return itertools.permutations(parts) if len(parts) <= MANY else [tuple(parts)]


def _layouts(parts: Sequence[Part], layout: str | None) -> tuple[str, ...]:
    found = []
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
        found.append(own)
    return tuple(found)


def _follows(parts: Sequence[Part], layouts: Sequence[str], layers: Layers | None) -> bool:
    """Whether each takes what the one before gives, and is shaped as described."""
    if layers is not None:
        pairs = zip(parts, layouts, layers.layers, strict=True)
        return all(_to_ours(np.empty(p.shape), own).shape == layer.kernel
                   and (p.bias is not None) == layer.bias for p, own, layer in pairs)  # fmt: skip
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


# --- their arrays and ours -----------------------------------------------------------------------


def _to_ours(kernel: np.ndarray, layout: str) -> np.ndarray:
    if layout == "last":
        return kernel
    return kernel.T if kernel.ndim == 2 else kernel.transpose(2, 3, 1, 0)


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
    leaves = [leaf for _, leaf in _leaves(tree)]
    found = []
    for index, (part, layout) in enumerate(zip(known.parts, known.layouts, strict=True)):
        kernel = _to_ours(np.asarray(leaves[part.kernel], np.float64), layout)
        image = _flattened(known.layers, index)
        if image is not None and layout == "first":
            height, width, channels = image
            kernel = kernel.reshape(channels, height, width, -1).transpose(1, 2, 0, 3)
            kernel = kernel.reshape(-1, kernel.shape[-1])
        own = {"kernel": kernel}
        if part.bias is not None:
            own["bias"] = np.asarray(leaves[part.bias], np.float64).reshape(-1)
        found.append(own)
    return found


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
    found = np.asarray(apply(mean, theirs))
    off = np.inf
    if found.size == ours.size and np.isfinite(found).all():
        off = np.abs(found.reshape(ours.shape) - ours).max() / max(np.abs(ours).max(), 1e-9)
    if not off <= TOLERANCE:
        raise StructureError(
            found=f"outputs of `apply`, of shape {found.shape}, that differ from those of "
            f"{network.layers.summary} on random inputs, by {off:.2g} of their size",
            expected="one function: dense and convolutional layers, one after the other, and no "
            "softmax at the end",
            fix="Check activations, strides, padding, pooling, layout and order; networks with "
            "other parts, as residual ones, are no Layers.",
        )
