"""posterity: a Bayesian posterior is a file you can send."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posterity.artifact import Inspection, inspect, load, save
    from posterity.distillation import Distillation, Student, distill
    from posterity.errors import PosterityError
    from posterity.families import (
        Beta,
        Categorical,
        DiagonalGaussian,
        Dirichlet,
        ExponentialFamily,
        Gamma,
        Gaussian,
        LowRankGaussian,
        Mixture,
        Network,
        NormalGamma,
        NormalWishart,
        Plate,
        Product,
        Transformed,
        Wishart,
    )
    from posterity.federation import federate, forget
    from posterity.fusion import Fusion, fuse, kl_matrix
    from posterity.inference import LocalUpdate
    from posterity.ledger import Ledger
    from posterity.pursuit import Pursuit, pursue
    from posterity.receipt import Receipt, verify

from posterity.version import __version__

__all__ = [
    "Beta",
    "Categorical",
    "DiagonalGaussian",
    "Dirichlet",
    "Distillation",
    "ExponentialFamily",
    "Fusion",
    "Gamma",
    "Gaussian",
    "Inspection",
    "Ledger",
    "LocalUpdate",
    "LowRankGaussian",
    "Mixture",
    "Network",
    "NormalGamma",
    "NormalWishart",
    "Plate",
    "PosterityError",
    "Product",
    "Pursuit",
    "Receipt",
    "Student",
    "Transformed",
    "Wishart",
    "__version__",
    "distill",
    "federate",
    "forget",
    "fuse",
    "inspect",
    "kl_matrix",
    "load",
    "pursue",
    "save",
    "verify",
]

_NAMES = {
    "artifact": ("Inspection", "inspect", "load", "save"),
    "distillation": ("Distillation", "Student", "distill"),
    "errors": ("PosterityError",),
    "federation": ("federate", "forget"),
    "fusion": ("Fusion", "fuse", "kl_matrix"),
    "inference": ("LocalUpdate",),
    "ledger": ("Ledger",),
    "pursuit": ("Pursuit", "pursue"),
    "receipt": ("Receipt", "verify"),
}
"""Public names by module, but for those of families."""
_MODULES = (
    "artifact",
    "distillation",
    "errors",
    "families",
    "federation",
    "fusion",
    "graphs",
    "inference",
    "ledger",
    "models",
    "networks",
    "pursuit",
)


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): the command line's help does not wait for JAX."""
    if name in _MODULES:
        return importlib.import_module(f"posterity.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _NAMES.items() if name in names), "families")
    module = importlib.import_module(f"posterity.{home}")
    globals()[name] = getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
