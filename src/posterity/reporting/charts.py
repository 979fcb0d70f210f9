"""Charts in SVG: lines and points between axes, in the page's colours."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from posterity.reporting.layout import LAYOUT
from posterity.reporting.markup import Markup, join, shown, tag


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers between two others.

    >>> ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not (math.isfinite(high - low) and high > low):
        return [low] if math.isfinite(low) else []
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(k for k in (1, 2, 5, 10) if k * power >= rough * 0.999) * power
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``; on a ``log`` axis all numbers are positive.

    An axis of ``whole`` numbers, such as counts, has only whole ticks.
    """

    label: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    @classmethod
    def around(cls, label: str, values: Sequence[float], *, log: bool = False) -> "Axis":
        """Return an axis that contains all finite values, with a margin."""
        finite = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [1.0]
        low = min(finite)
        high = max(finite)
        if log:
            low = max(low, high * 10.0**-LAYOUT.decades)
            return cls(label, low / 1.6, high * 1.6, True)
        room = 0.04 * (high - low) or max(abs(high), 1.0) * 0.1
        return cls(label, low - room, high + room)

    def place(self, value: float) -> float:
        """Return the position of a value on the axis, clipped to 0 to 1."""
        if self.log:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / ((self.high - self.low) or 1.0)
        return min(max(share, 0.0), 1.0)

    @property
    def ticks(self) -> list[float]:
        """Return the numbers at the axis's ticks."""
        if not self.log:
            every = ticks(self.low, self.high)
            return [value for value in every if value.is_integer()] if self.whole else every
        decades = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
        every = max(1, -(-len(decades) // 6))
        return [10.0**k for k in decades][::every] or [self.low, self.high]


@dataclasses.dataclass(frozen=True)
class Series:
    """Points or a line of a chart.

    Attributes:
        name: name in the legend.
        x: horizontal positions.
        y: vertical positions.
        low: lower ends of error bars of points, if any.
        high: upper ends of these.
        kind: ``points`` or ``line``.
        colour: number of the colour, from 0.
        tips: text for each point, shown when the pointer or keyboard focus is on it.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    kind: str = "points"
    colour: int = 0
    tips: Sequence[str] = ()


def chart(name: str, across: Axis, up: Axis, series: Sequence[Series], *extra: Markup) -> Markup:
    """Return a chart of some series with its legend; arrow keys move between its points."""
    inner = [_axes(across, up), *extra, *(_drawn(one, across, up) for one in series)]
    style = {"viewBox": f"0 0 {LAYOUT.wide} {LAYOUT.high}", "class_": "chart", "role": "group"}
    drawing = tag("svg", *inner, **style, aria_label=name, data_roving=True)
    legend = None
    if len(series) > 1:
        keys = (tag("li", one.name, class_=f"key c{one.colour} {one.kind}") for one in series)
        legend = tag("ul", *keys, class_="legend", aria_label="Legend", role="list")
    return join([drawing, legend])


def x_of(axis: Axis, value: float) -> float:
    """Return the distance from the left, in units of the chart."""
    return round(LAYOUT.left + (LAYOUT.wide - LAYOUT.left - LAYOUT.right) * axis.place(value), 1)


def y_of(axis: Axis, value: float) -> float:
    """Return the distance from the top, in units of the chart."""
    foot = LAYOUT.high - LAYOUT.bottom
    return round(foot - (foot - LAYOUT.top) * axis.place(value), 1)


def line(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    """Return a line through points in units of the chart."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return tag("polyline", points=path, class_=class_)


def through(across: Axis, up: Axis, points: Iterable[tuple[float, float]]) -> Markup:
    """Return a dashed line through points in units of the axes, such as a target or an ideal."""
    return line([(x_of(across, x), y_of(up, y)) for x, y in points], "ideal")


def _axes(across: Axis, up: Axis) -> Markup:
    foot = LAYOUT.high - LAYOUT.bottom
    right = LAYOUT.wide - LAYOUT.right
    parts = []
    for value in up.ticks:
        y = y_of(up, value)
        parts.append(tag("line", x1=LAYOUT.left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", shown(value), x=LAYOUT.left - 6, y=y + 4, class_="end"))
    for value in across.ticks:
        x = x_of(across, value)
        parts.append(tag("line", x1=x, x2=x, y1=foot, y2=foot + 4, class_="tick"))
        parts.append(tag("text", shown(value), x=x, y=foot + 17, class_="middle"))
    middle = (LAYOUT.left + right) / 2
    parts.append(tag("text", across.label, x=middle, y=LAYOUT.high - 6, class_="middle label"))
    turned = f"translate(13 {(LAYOUT.top + foot) / 2:g}) rotate(-90)"
    parts.append(tag("text", up.label, transform=turned, class_="middle label"))
    return tag("g", *parts, aria_hidden="true")


def _drawn(series: Series, across: Axis, up: Axis) -> Markup:
    low = series.low
    high = series.high
    places = [
        (x_of(across, x), y_of(up, y), k)
        for k, (x, y) in enumerate(zip(series.x, series.y, strict=True))
        if math.isfinite(x) and math.isfinite(y)
    ]
    colour = f"c{series.colour}"
    if series.kind != "points":
        points = [(x, y) for x, y, _ in places]
        return tag("g", line(points, f"line {colour}") if points else None, aria_hidden="true")
    marks = []
    for x, y, k in places:
        bar = None
        if low is not None and high is not None and np.isfinite([low[k], high[k]]).all():
            y1 = y_of(up, high[k])
            y2 = y_of(up, low[k])
            bar = tag("line", x1=x, x2=x, y1=y1, y2=y2, class_=f"bar {colour}")
        dot = tag("circle", cx=x, cy=y, r=4, class_=f"dot {colour}")
        tip = series.tips[k] if series.tips else f"{shown(series.x[k])}, {shown(series.y[k])}"
        marks.append(tag("g", bar, dot, role="img", aria_label=tip, data_tip=True))
    return tag("g", *marks)
