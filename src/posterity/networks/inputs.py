"""The data of one site as training takes it: checked, in single precision, of sensible scale."""

import warnings
from typing import Any

import numpy as np

from posterity.errors import ScaleWarning, StructureError
from posterity.families.layers import Layers
from posterity.models.neural import NeuralNetwork

LARGE = 10.0
"""Root mean square of a column above which it is said to be badly scaled."""
SMALL = 1e-2
"""The same for the largest column, below which all are."""


def arrays(data: Any, layers: Layers, likelihood: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, d) and what was observed, once they are known to fit.

    Warns:
        ScaleWarning: if columns are far larger or smaller than one.

    Raises:
        StructureError: for shapes that do not fit the layers and the likelihood, and no records.
        ParameterError: for NaN, infinity, and labels that the likelihood cannot produce.
    """
    model = NeuralNetwork.of_layers(layers, likelihood=likelihood)
    if isinstance(data, tuple | list) and len(data) and not np.size(data[0]):
        raise StructureError(
            found="no records", expected="one at least", fix="Leave a site without data out."
        )
    model.check(data)
    x, y = (np.asarray(part) for part in data)
    x = np.asarray(x, np.float32).reshape(len(x), -1)
    y = y.astype(np.int32 if likelihood == "categorical" else np.float32)
    check_scale(x, "inputs")
    if likelihood == "gaussian":
        check_scale(y.reshape(len(y), -1), "what was observed")
    return x, y


def check_scale(x: np.ndarray, what: str) -> None:
    """Warn of columns so large or so small that priors and starts of the weights do not fit."""
    size = np.sqrt(np.mean(np.square(x, dtype=np.float64), axis=0))
    worst = int(size.argmax())
    if SMALL <= size[worst] <= LARGE or not size[worst]:
        return
    warnings.warn(
        f"found {what} whose column {worst} has a root mean square of {size[worst]:.3g}; expected "
        "about 1, for which priors of weights and first steps are meant. Subtract a mean and "
        "divide by a deviation of each column, the same ones at all sites.",
        ScaleWarning,
        stacklevel=6,
    )
