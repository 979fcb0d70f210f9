"""posterity: a Bayesian posterior is a file you can send."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posterity.artifact import Inspection as Inspection
    from posterity.artifact import inspect as inspect
    from posterity.artifact import load as load
    from posterity.artifact import save as save
    from posterity.distillation import Distillation as Distillation
    from posterity.distillation import Student as Student
    from posterity.distillation import distill as distill
    from posterity.errors import PosterityError as PosterityError
    from posterity.families import Beta as Beta
    from posterity.families import Categorical as Categorical
    from posterity.families import DiagonalGaussian as DiagonalGaussian
    from posterity.families import Dirichlet as Dirichlet
    from posterity.families import ExponentialFamily as ExponentialFamily
    from posterity.families import Gamma as Gamma
    from posterity.families import Gaussian as Gaussian
    from posterity.families import Mixture as Mixture
    from posterity.families import Network as Network
    from posterity.families import NormalGamma as NormalGamma
    from posterity.families import NormalWishart as NormalWishart
    from posterity.families import Plate as Plate
    from posterity.families import Product as Product
    from posterity.families import Transformed as Transformed
    from posterity.families import Wishart as Wishart
    from posterity.federation import federate as federate
    from posterity.federation import forget as forget
    from posterity.fusion import Fusion as Fusion
    from posterity.fusion import fuse as fuse
    from posterity.fusion import kl_matrix as kl_matrix
    from posterity.inference import LocalUpdate as LocalUpdate
    from posterity.ledger import Ledger as Ledger
    from posterity.pursuit import Pursuit as Pursuit
    from posterity.pursuit import pursue as pursue
    from posterity.receipt import Receipt as Receipt
    from posterity.receipt import verify as verify
    from posterity.reporting import Report as Report
    from posterity.reporting import report as report
    from posterity.runtime.fingerprint import versioned as versioned

from posterity.runtime.lazy import exports
from posterity.version import __version__ as __version__

# Imported on first use (PEP 562): the command line's help does not wait for JAX.
_HOMES = {
    "artifact": ("Inspection", "inspect", "load", "save"),
    "distillation": ("Distillation", "Student", "distill"),
    "errors": ("PosterityError",),
    "families": (
        *("Beta", "Categorical", "DiagonalGaussian", "Dirichlet", "ExponentialFamily", "Gamma"),
        *("Gaussian", "Mixture", "Network", "NormalGamma", "NormalWishart"),
        *("Plate", "Product", "Transformed", "Wishart"),
    ),
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
    "runtime": (),
    "runtime.fingerprint": ("versioned",),
    "tabular": (),
}
__getattr__, __dir__ = exports(__name__, _HOMES)
