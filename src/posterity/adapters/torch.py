"""torch: a student as a module, or as the state dict of one.

The module is a ``torch.nn.Sequential`` of three parts with these names:

* ``inputs`` rescales and reshapes, with buffers ``inputs.shift`` and ``inputs.scale`` if the
  student rescales;
* ``layers`` is a ``Sequential`` of torch's own modules, so the entries of the state dict that begin
  with ``layers.`` load into such a network without posterity; images have channels first there;
* ``head`` converts the outputs to a dictionary of tensors, with the names and shapes of
  :mod:`posterity.adapters.onnx`.

Results equal ``Student.predict`` to 1e-5. They are float32, except values in units that the
student rescales, which are float64.
"""

from collections import OrderedDict
from typing import Any

from posterity.adapters.channels_first import ChannelsFirst, channels_first, check_layers
from posterity.adapters.shared import library
from posterity.distillation.student import Student
from posterity.families.layers import Conv

NAMES = ("ReLU", "Tanh", "Sigmoid", "SiLU", "Softplus")
ACTIVATIONS = {name.lower(): name for name in NAMES}
"""Modules of torch that need no arguments."""


def to_torch(student: Student) -> Any:
    """Convert a student to a module that maps inputs (n, …) to a dictionary of tensors.

    For classes these are ``probabilities`` and ``log_probabilities`` (n, K), ``entropy`` (n,) and,
    if the student splits uncertainty, ``mutual_information`` (n,), in nats; for values ``mean``,
    ``variance`` and ``noise_variance`` (n, k). The module is in evaluation mode, copies the
    student's weights, and may be moved, traced, exported, saved and trained further. Errors are
    those of :func:`~posterity.adapters.channels_first.check_layers`. With ``x`` a tensor::

        module = to_torch(student)
        with torch.no_grad():
            chances = module(x)["probabilities"]
    """
    torch = library("torch", extra="torch")
    from posterity.adapters import torch_modules as modules

    layers = check_layers(student)
    head = student.head
    images = isinstance(layers.layers[0], Conv)
    parts = [module for own in channels_first(student) for module in _layer(torch, own)]
    gaussian = head.likelihood == "gaussian"
    return torch.nn.Sequential(
        OrderedDict(
            inputs=modules.Inputs(student.scaling, layers.image, images),
            layers=torch.nn.Sequential(*parts),
            head=modules.Values(head, student.scaling) if gaussian else modules.Classes(head),
        )
    ).eval()


def to_state_dict(student: Student) -> dict[str, Any]:
    """Return the tensors of :func:`to_torch` by name: plain contiguous copies, on the CPU.

    ``torch.save`` writes them, and ``torch.load(path, weights_only=True)`` reads them without
    posterity. Keys that begin with ``layers.`` are those of a plain ``Sequential``. Arguments and
    errors are those of :func:`to_torch`.
    """
    return {name: value.clone() for name, value in to_torch(student).state_dict().items()}


def _layer(torch: Any, own: ChannelsFirst) -> list[Any]:
    layer = own.layer
    before = []
    nn = torch.nn
    if isinstance(layer, Conv):
        top, left, bottom, right = own.pads
        even = (top, left) == (bottom, right)
        before = [] if even else [nn.ZeroPad2d((left, right, top, bottom))]
        sizes = layer.inputs, layer.outputs, layer.window, layer.stride
        main = nn.Conv2d(*sizes, (top, left) if even else (0, 0), bias=own.bias is not None)
    else:
        before = [nn.Flatten()] if own.flattens else []
        main = nn.Linear(layer.inputs, layer.outputs, bias=own.bias is not None)
    arrays = {"weight": own.kernel, "bias": own.bias}
    main.load_state_dict({n: torch.tensor(v) for n, v in arrays.items() if v is not None})
    after = []
    if layer.activation == "gelu":  # JAX's default
        after.append(nn.GELU(approximate="tanh"))
    elif layer.activation != "identity":
        after.append(getattr(nn, ACTIVATIONS[layer.activation])())
    if isinstance(layer, Conv) and layer.pool > 1:
        after.append({"max": nn.MaxPool2d, "mean": nn.AvgPool2d}[layer.pooling](layer.pool))
    return [*before, main, *after]
