"""Feed-forward networks: local posteriors, predictions, and conversion of other libraries' trees.

Layers are described in :mod:`posterity.families.layers`. :class:`posterity.inference.Refinement`
refines a shared network at several sites, and :mod:`posterity.fusion.networks` fuses several.
"""

from typing import TYPE_CHECKING

from posterity.families.layers import Conv as Conv
from posterity.families.layers import Dense as Dense
from posterity.families.layers import Layers as Layers
from posterity.runtime.lazy import exports

if TYPE_CHECKING:
    from posterity.networks.predictive import Prediction as Prediction
    from posterity.networks.predictive import describe as describe
    from posterity.networks.predictive import predict as predict
    from posterity.networks.priors import GaussianPrior as GaussianPrior
    from posterity.networks.priors import Horseshoe as Horseshoe
    from posterity.networks.pytrees import from_pytree as from_pytree
    from posterity.networks.pytrees import to_pytree as to_pytree
    from posterity.networks.training import Trained as Trained
    from posterity.networks.training import train as train

_WITH_JAX = {
    "priors": ("GaussianPrior", "Horseshoe"),
    "predictive": ("Prediction", "describe", "predict"),
    "pytrees": ("from_pytree", "to_pytree"),
    "training": ("Trained", "train"),
}
__getattr__, __dir__ = exports(__name__, _WITH_JAX)
