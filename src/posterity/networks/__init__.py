"""Feed-forward networks: layers as data, local posteriors, predictions, other libraries' trees."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posterity.families.layers import Conv, Dense, Layers
    from posterity.fusion.networks.options import Options
    from posterity.networks.prediction import Prediction, describe, predict
    from posterity.networks.priors import GaussianPrior, Horseshoe
    from posterity.networks.pytrees import from_pytree, to_pytree
    from posterity.networks.refinement import Refinement
    from posterity.networks.training import Progress, Trained, train

_HOME = {
    "Conv": "posterity.families.layers",
    "Dense": "posterity.families.layers",
    "GaussianPrior": "priors",
    "Horseshoe": "priors",
    "Layers": "posterity.families.layers",
    "Options": "posterity.fusion.networks.options",
    "Prediction": "prediction",
    "Progress": "training",
    "Refinement": "refinement",
    "Trained": "training",
    "describe": "prediction",
    "from_pytree": "pytrees",
    "predict": "prediction",
    "to_pytree": "pytrees",
    "train": "training",
}
"""The module of each public name, of this package where it has no dots."""

__all__ = [
    "Conv",
    "Dense",
    "GaussianPrior",
    "Horseshoe",
    "Layers",
    "Options",
    "Prediction",
    "Progress",
    "Refinement",
    "Trained",
    "describe",
    "from_pytree",
    "predict",
    "to_pytree",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): layers are data, which need no JAX."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    found = getattr(
        importlib.import_module(home if "." in home else f"posterity.networks.{home}"), name
    )
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
