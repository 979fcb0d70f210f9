"""A student's units and its head as modules of torch that can be saved and traced.

This is the only file that imports torch; see :mod:`posterity.adapters.torch`.
"""

import importlib
import math
from typing import Any

from posterity.arrays.typing import Shape
from posterity.distillation.heads import FLOOR, Head
from posterity.distillation.scaling import Scaling

torch: Any = importlib.import_module("torch")  # type checkers resolve it to our torch.py


class Inputs(torch.nn.Module):
    """Module that converts inputs ``(n, …)`` to the layers' units and shape, in float32.

    Buffers ``shift`` and ``scale`` (d,) are float64, and exist if the student rescales inputs.
    """

    def __init__(self, scaling: Scaling, shape: Shape, images: bool):
        super().__init__()
        self.shape, self.size, self.images = shape, math.prod(shape), images
        for name, value in {"shift": scaling.x_shift, "scale": scaling.x_scale}.items():
            self.register_buffer(name, None if value is None else torch.tensor(value))

    def forward(self, x: Any) -> Any:
        """Return flattened inputs, or images with channels first."""
        x = x.reshape(-1, self.size)
        if self.shift is not None:
            x = (x.double() - self.shift) / self.scale
        x = x.to(torch.float32)
        return x.reshape(-1, *self.shape).permute(0, 3, 1, 2) if self.images else x


class Classes(torch.nn.Module):
    """Module that converts logits to class probabilities and uncertainties."""

    def __init__(self, head: Head):
        super().__init__()
        self.targets = head.targets
        self.split = head.split

    def forward(self, outputs: Any) -> Any:
        """Return tensors by the names of :func:`posterity.adapters.torch.to_torch`."""
        logits = outputs[:, : self.targets]
        if self.targets == 1:
            logits = torch.cat([-logits, logits], 1)
            logs = torch.nn.functional.logsigmoid(logits)
        else:
            logs = torch.log_softmax(logits, 1)
        # As in `posterity.distillation.heads`: zero times a logarithm is zero.
        logs = logs.clamp(min=-1e30)
        chances = logs.exp()
        entropy = -(chances * logs).sum(1)
        result = {"probabilities": chances, "log_probabilities": logs, "entropy": entropy}
        if self.split:
            result["mutual_information"] = entropy * torch.sigmoid(outputs[:, self.targets])
        return result


class Values(torch.nn.Module):
    """Module that converts the outputs of a Gaussian head to means and variances.

    Buffers ``shift`` and ``scale`` (k,) are float64, and exist if the student rescales values;
    ``noise_variance`` exists if it is known.
    """

    def __init__(self, head: Head, scaling: Scaling):
        super().__init__()
        self.targets = head.targets
        # A plain student without a known noise predicts the sum of both variances.
        alone = not head.split and head.noise_variance is None
        self.names = ["noise_variance"] if alone else ["variance", "noise_variance"]
        for name, value in {"shift": scaling.y_shift, "scale": scaling.y_scale}.items():
            self.register_buffer(name, None if value is None else torch.tensor(value))
        known = None if head.noise_variance is None else torch.tensor(head.noise_variance).double()
        self.register_buffer("noise_variance", known)

    def forward(self, outputs: Any) -> Any:
        """Return tensors by the names of :func:`posterity.adapters.torch.to_torch`."""
        shift = self.shift
        scale = self.scale
        known = self.noise_variance
        parts: Any = torch.split(outputs, self.targets, 1)
        if shift is not None:
            parts = [part.double() for part in parts]
        mean = parts[0]
        variances = [part.exp() + FLOOR for part in parts[1:]]
        if shift is not None:
            mean = shift + scale * mean
            variances = [part * scale**2 for part in variances]
        if known is not None:
            variances.append(known.to(mean).expand(mean.shape))
        return {"mean": mean, **dict(zip(self.names, variances, strict=True))}
