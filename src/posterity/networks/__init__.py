"""Feed-forward networks: local posteriors, predictions, and the trees of other libraries.

What a network is, as data, is in :mod:`posterity.families.layers`; sites refine one that they share
by :class:`posterity.inference.Refinement`, and :mod:`posterity.fusion.networks` fuses several.
"""

import importlib
from typing import TYPE_CHECKING, Any

from posterity.families.layers import Conv as Conv
from posterity.families.layers import Dense as Dense
from posterity.families.layers import Layers as Layers

if TYPE_CHECKING:
    from posterity.networks.predictive import Prediction, describe, predict
    from posterity.networks.priors import GaussianPrior, Horseshoe
    from posterity.networks.pytrees import from_pytree, to_pytree
    from posterity.networks.training import Trained, train

_MODULES = {
    "priors": ("GaussianPrior", "Horseshoe"),
    "predictive": ("Prediction", "describe", "predict"),
    "pytrees": ("from_pytree", "to_pytree"),
    "training": ("Trained", "train"),
}
"""The public names of modules that need JAX, which are imported on first use (PEP 562)."""
_MOVED = {
    "Options": "posterity.fusion.networks",
    "Progress": "posterity.status",
    "Refinement": "posterity.inference",
}

__all__ = [
    "Conv",
    "Dense",
    "GaussianPrior",
    "Horseshoe",
    "Layers",
    "Prediction",
    "Trained",
    "describe",
    "from_pytree",
    "predict",
    "to_pytree",
    "train",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            return globals()[name]
    where = f"; it is in {_MOVED[name]}" if name in _MOVED else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{where}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
