"""Plots of results; matplotlib is imported only when one is drawn."""

from posterity.reporting.plots.canvas import check_format as check_format
from posterity.reporting.plots.matching import plot_matching as plot_matching
from posterity.reporting.plots.traces import plot_distillation as plot_distillation
from posterity.reporting.plots.traces import plot_pursuit as plot_pursuit
