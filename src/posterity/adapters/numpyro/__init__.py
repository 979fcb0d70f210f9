"""NumPyro: models as targets of :func:`posterity.pursue`, guides as posteriors.

Events are dictionaries by the names of the model's latent sites, with values in the model's own
space: a scale is positive, probabilities sum to one. Supports are the real numbers, positive
numbers, the unit interval, simplices and positive definite matrices; others are refused.
"""

from posterity.adapters.numpyro.guides import from_guide
from posterity.adapters.numpyro.models import Model, Prior, joint

__all__ = ["Model", "Prior", "from_guide", "joint"]
