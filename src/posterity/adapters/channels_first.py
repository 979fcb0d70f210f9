"""The layers of a student for runtimes that store channels first: ONNX and torch.

Images there are ``(channels, height, width)`` and are flattened in that order, so the rows of a
dense layer after a convolution are permuted. Kernels are ``(outputs, inputs, height, width)`` and
``(outputs, inputs)``. A padding of ``"same"`` is written out for each side. With strides the sides
differ, and runtimes disagree which is larger; here, as in JAX, it is the last.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from posterity.distillation.student import Student
from posterity.errors import StructureError, UsageError
from posterity.families.layers import Conv, Layer, Layers
from posterity.models.tables import check_numbers


class ChannelsFirst(NamedTuple):
    """A layer, its arrays in float32, and its padding.

    ``pads`` are top, left, bottom, right; ``flattens`` is True if the layer first flattens images.
    """

    layer: Layer
    kernel: np.ndarray
    bias: np.ndarray | None
    pads: tuple[int, int, int, int]
    flattens: bool


def check_layers(student: Student) -> Layers:
    """Return the layers of a student that other runtimes can represent.

    Raises:
        UsageError: for a network that is a function, whose layers are unknown.
        ParameterError: for weights that are not finite.
        StructureError: for a network that ends in a convolution.
    """
    if not isinstance(student.network, Layers):
        raise UsageError(
            found=f"{student!r}, whose network is a {type(student.network).__name__}",
            expected="a student whose network is Layers, as Layers.dense(...)",
        )
    fix = "Distill again, with smaller steps."
    check_numbers(student.parameters, "the weights of the student", fix)
    if isinstance(student.network.layers[-1], Conv):
        raise StructureError(
            found=f"a convolution as the last layer of {student.network.summary}", expected="Dense"
        )
    return student.network


def channels_first(student: Student) -> Iterator[ChannelsFirst]:
    """Yield each layer with its arrays, channels first."""
    layers = check_layers(student)
    arrays: Any = layers.unravel(np.asarray(student.parameters, np.float32))
    images = isinstance(layers.layers[0], Conv)  # whether this layer's inputs are images
    for layer, own, image in zip(layers.layers, arrays, layers.images[:-1], strict=True):
        kernel = own["kernel"]
        pads = (0, 0, 0, 0)
        flattens = images and not isinstance(layer, Conv)
        if isinstance(layer, Conv):
            if layer.padding == "same":
                (top, bottom), (left, right) = map(layer.pads, image[:2], layer.window)
                pads = (top, left, bottom, right)
            kernel = kernel.transpose(3, 2, 0, 1)
        else:
            if flattens:
                kernel = kernel.reshape(*image, -1).transpose(2, 0, 1, 3)
            kernel = kernel.reshape(layer.inputs, layer.outputs).T
            images = False
        kernel = np.ascontiguousarray(kernel)
        yield ChannelsFirst(layer, kernel, own.get("bias"), pads, flattens)
