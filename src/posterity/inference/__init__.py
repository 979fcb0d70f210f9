"""Local inference: estimators of natural gradients, quadrature, and the safeguarded step."""

from posterity.inference.choice import best_estimator
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
from posterity.inference.pooling import PartialPooling
from posterity.inference.refinement import Refinement
from posterity.inference.update import LocalUpdate

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
