"""ONNX: a student as a graph that any runtime can serve, without Python or posterity.

The graph takes ``x``, a batch of inputs ``(n, …)`` in the shape of one input of the network
(``Layers.image``; ``(n, d)`` for a perceptron), with any ``n``. For classes its outputs are
``probabilities`` and ``log_probabilities`` (n, K), ``entropy`` (n,), and for a student that splits
uncertainty ``mutual_information`` (n,), in nats. For a Gaussian head they are ``mean`` (n, k), the
``variance`` (n, k) of the function, and ``noise_variance`` (n, k).

All tensors are float32, except inputs or outputs that the student rescales and that float32 cannot
hold to 2e-5 of their scale, such as seconds since 1970; these are float64. Results equal
``Student.predict`` to 1e-5 (probabilities, entropies; values relative to their spread) within the
range of float32: variances above 3e38 are infinite. Operators are those of opset 17 (ONNX 1.12, of
2022); the later ``Gelu`` and ``Swish`` are written out.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from posterity.adapters.channels_first import ChannelsFirst, channels_first, check_layers
from posterity.adapters.shared import library
from posterity.arrays.typing import Shape
from posterity.distillation.heads import FLOOR
from posterity.distillation.student import Student
from posterity.families.layers import Conv
from posterity.runtime.files import AnyPath, write_file
from posterity.version import __version__

OPSET = 17
"""Version of ONNX's operators, which every runtime of the last years knows."""
IR = 8
"""Version of the format that came with this opset."""


def to_onnx(
    student: Student,
    path: AnyPath | None = None,
    *,
    provenance: Mapping[str, str] | None = None,
) -> Any:
    """Convert a student to an ONNX graph (a ``ModelProto``), and write it to ``path`` if given.

    Its metadata are ``provenance`` (for a student of ``posterity distill`` its columns and recipe),
    the ``likelihood``, whether the student splits uncertainty (``split``), the ``noise_variance``
    if it is known, and the version of posterity. A file is written completely or not at all; one
    that cannot be written is an ArtifactError. Other errors are those of
    :func:`~posterity.adapters.channels_first.check_layers`.

    >>> from posterity.distillation.heads import Head
    >>> from posterity.networks import Layers
    >>> layers = Layers.dense(2, 8, 3)
    >>> model = to_onnx(Student(layers, np.zeros(layers.size), Head("categorical", 3)))
    >>> [output.name for output in model.graph.output]
    ['probabilities', 'log_probabilities', 'entropy']
    """
    onnx = library("onnx.checker", "onnx.helper", "onnx.numpy_helper", extra="onnx")
    layers = check_layers(student)
    graph = _Graph(onnx)
    flow = _inputs(graph, student)
    if isinstance(layers.layers[0], Conv):
        flow = graph.add("Transpose", flow, perm=[0, 3, 1, 2])
    elif len(layers.image) > 1:
        flow = graph.add("Flatten", flow, axis=1)
    for index, layer in enumerate(channels_first(student)):
        flow = _layer(graph, flow, layer, index)
    outputs = _values if student.head.likelihood == "gaussian" else _classes
    outputs(graph, flow, student)
    model = _model(graph, student, provenance or {})
    if path is not None:
        write_file(Path(path), model.SerializeToString())
    return model


@dataclasses.dataclass
class _Graph:
    """Nodes, constants, inputs and outputs of a graph under construction; arrays are named."""

    onnx: Any
    nodes: list[Any] = dataclasses.field(default_factory=list)
    constants: list[Any] = dataclasses.field(default_factory=list)
    inputs: list[Any] = dataclasses.field(default_factory=list)
    outputs: list[Any] = dataclasses.field(default_factory=list)

    def add(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        node = self.onnx.helper.make_node(kind, inputs, [name], name=f"{name}:node", **attributes)
        self.nodes.append(node)
        return name

    def constant(
        self, value: ArrayLike | float | int, dtype: DTypeLike = np.float32, name: str = ""
    ) -> str:
        """Add a constant array, and return its name."""
        name = name or f"constant_{len(self.constants)}"
        array = np.asarray(value, dtype, order="C")
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def gives(self, name: str, what: str, dtype: DTypeLike, *shape: int) -> None:
        """Declare ``what`` as an output of the graph, by another name."""
        self.add("Identity", what, name=name)
        self.outputs.append(self.described(name, dtype, shape))

    def cast(self, what: str, dtype: DTypeLike) -> str:
        """Cast an array to another precision."""
        return self.add("Cast", what, to=self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def columns(self, what: str, start: int, stop: int) -> str:
        """Slice columns of a table."""
        return self.add(
            "Slice", what, *(self.constant([end], np.int64) for end in (start, stop, 1))
        )

    def described(self, name: str, dtype: DTypeLike, shape: Shape) -> Any:
        """Describe an input or output of the graph: rows of this shape."""
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.onnx.helper.make_tensor_value_info(name, kind, ["n", *shape])


def _model(graph: _Graph, student: Student, provenance: Mapping[str, str]) -> Any:
    helper = graph.onnx.helper
    head = student.head
    model = helper.make_model(
        helper.make_graph(graph.nodes, "student", graph.inputs, graph.outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="posterity",
        producer_version=__version__,
        doc_string=repr(student),
    )
    about = {"likelihood": head.likelihood, "split": str(head.split), "posterity": __version__}
    if head.noise_variance is not None:
        about["noise_variance"] = repr(head.noise_variance)
    if np.isfinite(head.degrees):
        about["degrees"] = repr(head.degrees)
    helper.set_model_props(model, {**provenance, **about})
    graph.onnx.checker.check_model(model, full_check=True)
    return model


def _inputs(graph: _Graph, student: Student) -> str:
    image = student.network.image
    scaling = student.scaling
    shift = scaling.x_shift
    scale = scaling.x_scale
    dtype = scaling.precision(shift, scale)
    graph.inputs.append(graph.described("x", dtype, image))
    if shift is None or scale is None:
        return "x"
    centred = graph.add("Sub", "x", graph.constant(shift.reshape(image), dtype, "x_shift"))
    flow = graph.add("Div", centred, graph.constant(scale.reshape(image), dtype, "x_scale"))
    return flow if dtype is np.float32 else graph.cast(flow, np.float32)


def _layer(graph: _Graph, flow: str, own: ChannelsFirst, index: int) -> str:
    layer = own.layer
    parts = {"kernel": own.kernel, "bias": own.bias}
    known = {name: value for name, value in parts.items() if value is not None}
    arrays = [graph.constant(v, name=f"layer_{index}.{n}") for n, v in known.items()]
    if not isinstance(layer, Conv):
        flow = graph.add("Flatten", flow, axis=1) if own.flattens else flow
        return _activation(graph, graph.add("Gemm", flow, *arrays, transB=1), layer.activation)
    strides = [layer.stride] * 2
    sides = [layer.pool] * 2
    flow = graph.add("Conv", flow, *arrays, strides=strides, pads=list(own.pads))
    flow = _activation(graph, flow, layer.activation)
    kind = "MaxPool" if layer.pooling == "max" else "AveragePool"
    return graph.add(kind, flow, kernel_shape=sides, strides=sides) if layer.pool > 1 else flow


SIMPLE = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "softplus": "Softplus"}
"""Activations that are one operator."""


def _activation(graph: _Graph, x: str, name: str) -> str:
    if name in SIMPLE:
        return graph.add(SIMPLE[name], x)
    if name == "silu":
        return graph.add("Mul", x, graph.add("Sigmoid", x))
    if name == "gelu":  # JAX's default, by the hyperbolic tangent
        cube = graph.add("Mul", graph.add("Mul", x, x), x)
        cube = graph.add("Mul", cube, graph.constant(0.044715))
        inner = graph.add("Mul", graph.add("Add", x, cube), graph.constant(np.sqrt(2 / np.pi)))
        gate = graph.add("Add", graph.add("Tanh", inner), graph.constant(1))
        return graph.add("Mul", graph.add("Mul", x, gate), graph.constant(0.5))
    return x  # the identity


def _classes(graph: _Graph, flow: str, student: Student) -> None:
    head = student.head
    classes = max(head.targets, 2)
    logits = graph.columns(flow, 0, head.targets) if head.split else flow
    if head.likelihood == "categorical":
        logs = graph.add("LogSoftmax", logits, axis=1)
    else:
        both = [graph.add("Softplus", part) for part in (logits, graph.add("Neg", logits))]
        logs = graph.add("Neg", graph.add("Concat", *both, axis=1))
    # As in `posterity.distillation.heads`: zero times a logarithm is zero.
    logs = graph.add("Max", logs, graph.constant(-1e30))
    chances = graph.add("Exp", logs)
    last = graph.constant([1], np.int64)
    total = graph.add("ReduceSum", graph.add("Mul", chances, logs), last, keepdims=0)
    entropy = graph.add("Neg", total)
    graph.gives("probabilities", chances, np.float32, classes)
    graph.gives("log_probabilities", logs, np.float32, classes)
    graph.gives("entropy", entropy, np.float32)
    if head.split:
        logit = graph.add("Squeeze", graph.columns(flow, head.targets, head.size), last)
        known = graph.add("Mul", entropy, graph.add("Sigmoid", logit))
        graph.gives("mutual_information", known, np.float32)


def _values(graph: _Graph, flow: str, student: Student) -> None:
    head = student.head
    scaling = student.scaling
    k = head.targets
    dtype = scaling.precision(scaling.y_shift, scaling.y_scale)
    mean, *logs = (graph.columns(flow, start, start + k) for start in range(0, head.size, k))
    if dtype is np.float64:
        mean, *logs = (graph.cast(part, dtype) for part in (mean, *logs))

    def floor(part):
        return graph.add("Add", graph.add("Exp", part), graph.constant(FLOOR, dtype))

    variances = list(map(floor, logs))
    if scaling.y_shift is not None and scaling.y_scale is not None:
        mean = graph.add("Mul", mean, graph.constant(scaling.y_scale, dtype, "y_scale"))
        mean = graph.add("Add", mean, graph.constant(scaling.y_shift, dtype, "y_shift"))
        square = graph.constant(scaling.y_scale**2, dtype)
        variances = [graph.add("Mul", part, square) for part in variances]
    if head.noise_variance is not None:
        known = graph.constant(head.noise_variance, dtype)
        variances.append(graph.add("Expand", known, graph.add("Shape", mean)))
    graph.gives("mean", mean, dtype, k)
    # A plain student without a known noise predicts their sum.
    names = ["variance", "noise_variance"][-len(variances) :]
    for name, part in zip(names, variances, strict=True):
        graph.gives(name, part, dtype, k)
