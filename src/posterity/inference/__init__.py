"""Local inference: estimators of natural gradients, quadrature, and local updates."""

from typing import TYPE_CHECKING

from posterity.inference.cubature import Cubature as Cubature
from posterity.inference.estimators import ClosedForm as ClosedForm
from posterity.inference.estimators import Enumeration as Enumeration
from posterity.inference.estimators import Estimator as Estimator
from posterity.inference.estimators import Exact as Exact
from posterity.inference.estimators import PredictorQuadrature as PredictorQuadrature
from posterity.inference.estimators import Quadrature as Quadrature
from posterity.inference.estimators import Reparameterization as Reparameterization
from posterity.inference.estimators import VariationalOnlineNewton as VariationalOnlineNewton
from posterity.inference.update import LocalUpdate as LocalUpdate
from posterity.inference.update import best_estimator as best_estimator
from posterity.runtime.lazy import exports

if TYPE_CHECKING:
    from posterity.inference.federated_effects import effects_of as effects_of
    from posterity.inference.pooling import PartialPooling as PartialPooling
    from posterity.inference.random_effects import Effects as Effects
    from posterity.inference.refinement import Refinement as Refinement

_WITH_JAX = {
    "pooling": ("PartialPooling",),
    "federated_effects": ("effects_of",),
    "random_effects": ("Effects",),
    "refinement": ("Refinement",),
}
__getattr__, __dir__ = exports(__name__, _WITH_JAX)
