"""The plot of a matching; matplotlib is imported only when one is drawn."""

from posterity.reporting.plots.canvas import check_format as check_format
from posterity.reporting.plots.matching import plot_matching as plot_matching
