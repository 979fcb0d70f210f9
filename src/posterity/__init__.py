"""posterity: a Bayesian posterior is a file you can send."""

from typing import TYPE_CHECKING

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
    from posterity.reporting import Report, report

from posterity.lazy import exports
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
    "Report",
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
    "report",
    "save",
    "verify",
]

# Imported on first use (PEP 562): the command line's help does not wait for JAX.
_HOMES = {
    "artifact": ("Inspection", "inspect", "load", "save"),
    "distillation": ("Distillation", "Student", "distill"),
    "errors": ("PosterityError",),
    "federation": ("federate", "forget"),
    "fusion": ("Fusion", "fuse", "kl_matrix"),
    "graphs": (),
    "inference": ("LocalUpdate",),
    "ledger": ("Ledger",),
    "models": (),
    "networks": (),
    "pursuit": ("Pursuit", "pursue"),
    "receipt": ("Receipt", "verify"),
    "reporting": ("Report", "report"),
}
_ELSEWHERE = {name for names in _HOMES.values() for name in names} | {"__version__"}
__getattr__, __dir__ = exports(
    __name__, {**_HOMES, "families": [name for name in __all__ if name not in _ELSEWHERE]}
)
