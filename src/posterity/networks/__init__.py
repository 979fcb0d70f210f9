"""Feed-forward networks: local posteriors, predictions, and the trees of other libraries.

What a network is, as data, is in :mod:`posterity.families.layers`; sites refine one that they share
by :class:`posterity.inference.Refinement`, and :mod:`posterity.fusion.networks` fuses several.
"""

from typing import TYPE_CHECKING

from posterity.families.layers import Conv, Dense, Layers
from posterity.lazy import exports

if TYPE_CHECKING:
    from posterity.networks.predictive import Prediction, describe, predict
    from posterity.networks.priors import GaussianPrior, Horseshoe
    from posterity.networks.pytrees import from_pytree, to_pytree
    from posterity.networks.training import Trained, train

_WITH_JAX = {
    "priors": ("GaussianPrior", "Horseshoe"),
    "predictive": ("Prediction", "describe", "predict"),
    "pytrees": ("from_pytree", "to_pytree"),
    "training": ("Trained", "train"),
}
__getattr__, __dir__ = exports(__name__, _WITH_JAX)

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
