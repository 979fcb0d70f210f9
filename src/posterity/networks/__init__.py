"""Feed-forward networks: layers as data, local posteriors, predictions, other libraries' trees."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posterity.networks.layers import Conv, Dense, Layers
    from posterity.networks.priors import GaussianPrior, Horseshoe
    from posterity.networks.training import Trained, train

_HOME = {
    "Conv": "layers",
    "Dense": "layers",
    "GaussianPrior": "priors",
    "Horseshoe": "priors",
    "Layers": "layers",
    "Trained": "training",
    "train": "training",
}
"""The module of each public name."""

__all__ = ["Conv", "Dense", "GaussianPrior", "Horseshoe", "Layers", "Trained", "train"]


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): layers are data, which need no JAX."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"posterity.networks.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
