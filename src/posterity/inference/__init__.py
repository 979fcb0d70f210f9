"""Local inference: estimators of natural gradients, quadrature, and the safeguarded step."""

from typing import TYPE_CHECKING

from posterity.inference.cubature import Cubature
from posterity.inference.estimators import (
    BonnetPrice,
    ClosedForm,
    Enumeration,
    Estimator,
    Exact,
    LeastSquares,
    PredictorQuadrature,
    Quadrature,
    Reinforce,
    Reparameterization,
    VariationalOnlineNewton,
)
from posterity.inference.update import LocalUpdate, best_estimator
from posterity.lazy import exports

if TYPE_CHECKING:
    from posterity.inference.pooling import PartialPooling
    from posterity.inference.refinement import Refinement

_WITH_JAX = {"pooling": ("PartialPooling",), "refinement": ("Refinement",)}
__getattr__, __dir__ = exports(__name__, _WITH_JAX)

__all__ = [
    "BonnetPrice",
    "ClosedForm",
    "Cubature",
    "Enumeration",
    "Estimator",
    "Exact",
    "LeastSquares",
    "LocalUpdate",
    "PartialPooling",
    "PredictorQuadrature",
    "Quadrature",
    "Refinement",
    "Reinforce",
    "Reparameterization",
    "VariationalOnlineNewton",
    "best_estimator",
]
