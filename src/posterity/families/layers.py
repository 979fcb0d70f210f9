"""Descriptions of feed-forward networks: their layers, sizes, and the position of each weight.

The weights of a network are one flat vector: layer after layer, each layer's bias before its
kernel, as JAX orders ``[{"bias": ..., "kernel": ...}, ...]``. Kernels have shape ``(inputs,
outputs)`` or ``(height, width, inputs, outputs)``, and images ``(height, width, channels)``; an
image is flattened with its channels last.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Self, SupportsIndex, get_args

import numpy as np

from posterity.arguments import FLAG, Constraint, check_shape, one_of
from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Float, PyTree, Real, Shape
from posterity.errors import StructureError, UsageError, within
from posterity.runtime.jax_loaded import is_jax
from posterity.runtime.programs import jitted

Activation = Literal["relu", "tanh", "sigmoid", "silu", "gelu", "softplus", "identity"]
ACTIVATIONS: tuple[str, ...] = get_args(Activation)
Padding = Literal["valid", "same"]
Pooling = Literal["max", "mean"]


class Place(NamedTuple):
    """The start of an array of weights in the flat vector, and its shape."""

    start: int
    shape: Shape

    @property
    def stop(self) -> int:
        """The end of the array in the flat vector (exclusive)."""
        return self.start + math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Dense:
    """A dense layer ``activation(x W + b)``, with ``W`` of shape ``(inputs, outputs)``.

    >>> Dense(4, 3)
    Dense(inputs=4, outputs=3, activation='relu', bias=True)
    >>> Dense(4, 3).kernel
    (4, 3)
    """

    inputs: int
    outputs: int
    activation: str = "relu"
    bias: bool = True

    def __post_init__(self) -> None:
        _check(self)

    @property
    def kernel(self) -> Shape:
        """The shape of ``W``."""
        return (self.inputs, self.outputs)

    def image(self, image: Shape) -> Shape:
        """Return the shape of the output, given that of the input."""
        if math.prod(image) != self.inputs:
            raise _misfit(self, image)
        return (self.outputs,)


@dataclasses.dataclass(frozen=True)
class Conv:
    """A convolution of images (a cross-correlation), activation, and nonoverlapping pooling.

    ``window`` is the height and width of the kernel, and ``pool`` the side of the pooling windows,
    1 for none; incomplete windows at the far borders are dropped.

    >>> Conv((3, 3), 1, 8, pool=2).kernel
    (3, 3, 1, 8)
    """

    window: tuple[int, int]
    inputs: int
    outputs: int
    activation: str = "relu"
    bias: bool = True
    stride: int = 1
    padding: str = "valid"
    pool: int = 1
    pooling: str = "max"

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", tuple(self.window))
        _check(self)

    @property
    def kernel(self) -> Shape:
        """The shape of the kernel."""
        return (*self.window, self.inputs, self.outputs)

    def image(self, image: Shape) -> Shape:
        """Return the shape of the output, given that of the input."""
        if len(image) != 3 or image[-1] != self.inputs:
            raise _misfit(self, image)
        lost = [(side - 1) * (self.padding == "valid") for side in self.window]
        pairs = zip(image[:2], lost, strict=True)
        sides = [((size - gone - 1) // self.stride + 1) // self.pool for size, gone in pairs]
        if min(sides) < 1:
            raise _misfit(self, image)
        return (*sides, self.outputs)

    def patches(self, x: Float[Real, "n h w c"]) -> Float[Real, "n i j p"]:
        """Return the inputs of the window at each position, in the order of the kernel's axes.

        A convolution is then a matrix product, which XLA computes on a CPU several times faster
        than a convolution within a loop.
        """
        np_, (tall, wide), step = namespace(x).np, self.window, self.stride
        if self.padding == "same":
            pads = [self.pads(*pair) for pair in zip(x.shape[1:3], self.window, strict=True)]
            x = np_.pad(x, [(0, 0), *pads, (0, 0)])
        rows = x.shape[1] - tall + 1
        columns = x.shape[2] - wide + 1
        corners = np.ndindex(tall, wide)
        shown = [x[:, i : i + rows : step, j : j + columns : step] for i, j in corners]
        return np_.concatenate(shown, axis=-1)

    def pads(self, size: int, side: int) -> tuple[int, int]:
        """Return the numbers of zeros before and after, as in XLA's "same" padding."""
        total = max((-(-size // self.stride) - 1) * self.stride + side - size, 0)
        return total // 2, total - total // 2

    def pooled(self, x: Float[Real, "n h w c"]) -> Float[Real, "n ..."]:
        """Return the image after pooling."""
        if self.pool == 1:
            return x
        side, (n, height, width, channels) = self.pool, x.shape
        x = x[:, : height // side * side, : width // side * side]
        windows = x.reshape(n, height // side, side, width // side, side, channels)
        return windows.max((2, 4)) if self.pooling == "max" else windows.mean((2, 4))


Layer = Dense | Conv


@dataclasses.dataclass(frozen=True)
class Layers:
    """The layers of a network, in order; the outputs of all but the last are hidden units.

    ``image`` is the shape of one input: ``(height, width, channels)`` if the first layer is a
    convolution; it can be left out for a dense layer. In a fused network, ``sites`` is the number
    of sites whose last layers are kept. The flat vector then ends with ``sites`` (sites, inputs +
    bias, outputs), their last layers, and ``shares`` (sites, outputs), their weights in each
    output.

    >>> network = Layers.dense(4, 3, 2)
    >>> network.widths, network.size
    ((3,), 23)

    Raises:
        UsageError: for an invalid size or option.
        StructureError: if the inputs of a layer do not fit the outputs of the one before.
    """

    layers: tuple[Layer, ...]
    image: Shape = ()
    sites: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        strange = [layer for layer in self.layers if not isinstance(layer, Layer)]
        strange += [self.sites] if type(self.sites) is not int or self.sites < 0 else []
        if strange or not self.layers:
            raise UsageError(
                found=f"layers {strange or self.layers}", expected="at least one Dense or Conv"
            )
        first = self.layers[0]
        image = tuple(self.image) or ((first.inputs,) if isinstance(first, Dense) else ())
        object.__setattr__(self, "image", image)
        _ = self.images  # checks the shapes

    @classmethod
    def dense(cls, *sizes: SupportsIndex, activation: str = "relu") -> Self:
        """Make a perceptron from the numbers of inputs, hidden units and outputs; the last layer is
        linear.
        """
        if len(sizes) < 2:
            raise UsageError(
                found=f"sizes {sizes}", expected="two numbers or more, as Layers.dense(4, 16, 3)"
            )
        # NumPy integers are converted, as they cannot be saved to files.
        whole: list[Any] = [int(size) if isinstance(size, np.integer) else size for size in sizes]
        kinds = [activation] * (len(whole) - 2) + ["identity"]
        return cls(tuple(map(Dense, whole, whole[1:], kinds)))

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> Layer:
        return self.layers[index]

    @functools.cached_property
    def images(self) -> tuple[Shape, ...]:
        """The shapes of the inputs of all layers, and of the last layer's output."""
        result = [self.image]
        for index, layer in enumerate(self.layers):
            with within(f"layer {index}"):
                result.append(layer.image(result[-1]))
        return tuple(result)

    @property
    def summary(self) -> str:
        """A short description: inputs, outputs and activation of each hidden layer, outputs.

        >>> Layers.dense(784, 150, 10).summary
        '784-150 relu-10'
        """

        def by(sides):
            return "x".join(map(str, sides))

        result = [by(self.image)]
        for layer in self.layers:
            window = f"{by(layer.window)} conv " if isinstance(layer, Conv) else ""
            shape = layer.activation if layer.activation != "identity" else ""
            result.append(f"{window}{layer.outputs} {shape}".strip())
        return "-".join(result)

    @property
    def inputs(self) -> int:
        """Number of inputs of the network."""
        return math.prod(self.image)

    @property
    def outputs(self) -> int:
        """Number of outputs of the network."""
        return math.prod(self.images[-1])

    @property
    def windows(self) -> int:
        """Number of hidden layers up to and including the last convolution."""
        hidden = enumerate(self.layers[:-1], 1)
        return max((n for n, layer in hidden if isinstance(layer, Conv)), default=0)

    @property
    def widths(self) -> Shape:
        """Numbers of hidden units of each layer but the last."""
        return tuple(layer.outputs for layer in self.layers[:-1])

    def with_widths(self, widths: Sequence[int]) -> Self:
        """Return the network with other numbers of hidden units, without the sites' last layers."""
        if len(widths) != len(self) - 1:
            raise UsageError(
                found=f"{len(widths)} widths {tuple(widths)}",
                expected=f"one for each of {len(self) - 1} hidden layers",
            )
        result = []
        units = self.layers[0].inputs
        image = self.image
        for layer, width in zip(self.layers, (*widths, self.layers[-1].outputs), strict=True):
            inputs = math.prod(image) if isinstance(layer, Dense) else units
            result.append(dataclasses.replace(layer, inputs=inputs, outputs=int(width)))
            image = result[-1].image(image)
            units = int(width)
        return type(self)(tuple(result), self.image)

    def difference(self, like: Self) -> tuple[str, str] | None:
        """Describe the first difference from ``like`` on both sides; None if only widths differ."""
        if len(self) != len(like):
            return f"{len(self)} layers", f"{len(like)}"
        if self.image != like.image:
            return f"inputs of shape {self.image} to layer 0", f"{like.image}"
        pairs = zip(self.with_widths(like.widths).layers, like.layers, strict=True)
        for index, (mine, theirs) in enumerate(pairs):
            if mine != theirs:
                note = " (the last)" if index == len(like) - 1 else ""
                return f"layer {index} {self[index]}{note}", f"{like[index]}{note}"
        return None

    @functools.cached_property
    def places(self) -> tuple[dict[str, Place], ...]:
        """The places of each layer's ``bias`` and ``kernel`` in the flat vector; for the last layer
        also of ``sites`` and ``shares``, if there are any.
        """
        shapes: list[dict[str, Shape]] = [
            {**({"bias": (layer.outputs,)} if layer.bias else {}), "kernel": layer.kernel}
            for layer in self.layers
        ]
        if self.sites:
            last = self.layers[-1]
            shape = (self.sites, last.inputs + last.bias, last.outputs)
            shapes[-1] |= {"sites": shape, "shares": shape[::2]}
        result: list[dict[str, Place]] = []
        start = 0
        for own in shapes:
            result.append({})
            for name, shape in own.items():
                result[-1][name] = Place(start, shape)
                start = result[-1][name].stop
        return tuple(result)

    @property
    def size(self) -> int:
        """Number of weights ``p``, including biases."""
        return list(self.places[-1].values())[-1].stop

    @functools.cached_property
    def plain(self) -> Self:
        """The layers without the sites' last layers; the flat vector is a prefix of this one's."""
        return dataclasses.replace(self, sites=0) if self.sites else self

    def entries(self) -> Iterator[str]:
        """Yield a name for each flat weight in order: its layer, array and index."""
        for index, own in enumerate(self.places):
            for name, place in own.items():
                for at in np.ndindex(place.shape):
                    yield f"layer {index} {name} {list(at)}"

    def unravel(self, z: PyTree) -> list[dict[str, Any]]:
        """Return the arrays of each layer from flat weights (..., p)."""
        return (_unraveled_by_jax if is_jax(z) else _unraveled)(z, self)

    def ravel(self, arrays: Sequence[dict[str, Any]]) -> np.ndarray:
        """Return flat weights (p,) from the arrays of each layer, the inverse of ``unravel``."""
        pieces = []
        for index, (own, places) in enumerate(zip(arrays, self.places, strict=True)):
            for name, place in places.items():
                array = np.asarray(own.get(name))
                check_shape(f"a {name} of layer {index}", array, *place.shape)
                pieces.append(array.reshape(-1))
        return np.concatenate(pieces)

    def by_unit(self, index: int) -> tuple[int, int, int]:
        """Return the shape ``(positions, units before, units)`` to which a kernel can be reshaped.

        A window or a flattened image has several positions per unit of the layer before; each
        input of the first layer is one unit.
        """
        layer = self.layers[index]
        before = self.layers[index - 1].outputs if index else layer.inputs
        positions = math.prod(layer.kernel[:-2]) * (layer.inputs // before)
        return positions, before, layer.outputs


def _unraveled(z: PyTree, layers: Layers) -> list[dict[str, Any]]:
    def cut(at):
        return z[..., at.start : at.stop].reshape(*z.shape[:-1], *at.shape)

    return [{name: cut(at) for name, at in own.items()} for own in layers.places]


_unraveled_by_jax = jitted(_unraveled, static_argnums=1, inline=True)


def _misfit(layer: Layer, image: Shape) -> StructureError:
    return StructureError(
        found=f"inputs of shape {image} for {layer}",
        expected="as many numbers as a dense layer has inputs; for a convolution an image of shape "
        "(height, width, inputs) that its window and its pooling fit into, as image=(28, 28, 1)",
    )


SIZE = Constraint("a positive whole number", lambda size: type(size) is int and size > 0)
OPTIONS = {
    "activation": one_of(*ACTIVATIONS),
    "bias": FLAG,
    "padding": one_of(*get_args(Padding)),
    "pooling": one_of(*get_args(Pooling)),
    "window": Constraint(
        "a height and a width, positive whole numbers",
        lambda window: len(window) == 2 and all(map(SIZE.allows, window)),
    ),
}
"""The constraints of a layer's fields; all others are sizes."""


def _check(layer: Layer) -> None:
    for field in dataclasses.fields(layer):
        constraint = OPTIONS.get(field.name, SIZE)
        constraint.check(**{field.name: getattr(layer, field.name)})
