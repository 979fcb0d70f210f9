"""Sizes of what a report draws, and how much of it a page shows."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Layout:
    """Sizes of a report's drawings and parts. Larger parts make a page that browsers open slowly.

    Attributes:
        wide: width of a chart, in units of about one pixel.
        high: height of a chart.
        left: margin of a chart for the numbers and the label of its upright axis.
        right: margin for the last number.
        top: margin above.
        bottom: margin for the numbers and the label of the other axis.
        decades: largest number of decades on a logarithmic axis; smaller values are at its end.
        letters: letters of all numbers at an axis of a panel, beyond which there are fewer.
        panels: largest number of panels of coefficients.
        of_components: largest number of panels of posteriors with components.
        rows: largest number of rows of a table.
        parameters: largest number of natural parameters in a page, 8 bytes each.
        sites: number of sites with their own line in panels; all others are combined.
        bars: number of sites with a bar, those that add most.
        cells: largest numbers of sites and of components in the picture of a matching.
        points: number of points in a chart.
    """

    wide: int = 440
    high: int = 270
    left: int = 70
    right: int = 14
    top: int = 12
    bottom: int = 44
    decades: int = 8
    letters: int = 22
    panels: int = 24
    of_components: int = 12
    rows: int = 1000
    parameters: int = 60_000
    sites: int = 12
    bars: int = 30
    cells: int = 40
    points: int = 600


LAYOUT = Layout()
"""The layout of pages."""
