"""Plots of results; matplotlib is imported only when one is drawn."""

from posterity.plots.canvas import check_format as check_format
from posterity.plots.matching import plot_matching as plot_matching
from posterity.plots.traces import plot_distillation as plot_distillation
from posterity.plots.traces import plot_pursuit as plot_pursuit
