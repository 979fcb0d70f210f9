"""Continual learning of tasks by a conjugate posterior over fixed features."""

from posterity.pursuit.learning.conjugate import ConjugateLearner
from posterity.pursuit.learning.features import Features, OwnFeatures, VectorFeatures

__all__ = ["ConjugateLearner", "Features", "OwnFeatures", "VectorFeatures"]
