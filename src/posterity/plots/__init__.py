"""Pictures of results; matplotlib is imported only when one is drawn."""

from posterity.plots.canvas import check_format
from posterity.plots.matching import plot_matching
from posterity.plots.traces import plot_distillation, plot_pursuit

__all__ = ["check_format", "plot_distillation", "plot_matching", "plot_pursuit"]
