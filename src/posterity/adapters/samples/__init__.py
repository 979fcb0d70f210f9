"""Draws from any sampler as a posterior, with a report of the fit's quality."""

from posterity.adapters.samples.checks import Checks, Coordinate, FitLimits
from posterity.adapters.samples.fit import SampleFit, from_samples

__all__ = ["Checks", "Coordinate", "FitLimits", "SampleFit", "from_samples"]
