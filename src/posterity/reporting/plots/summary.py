"""Plots of a summary: intervals by name, components as densities, sites next to all."""

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from posterity.errors import UsageError
from posterity.families.marginals import MixedMarginal
from posterity.ledger import Ledger
from posterity.reporting.plots.canvas import (
    BLUE,
    DASHED,
    INK,
    ORANGE,
    PALE,
    check_format,
    finish,
    new_axes,
    new_panels,
    note,
    plain_axes,
)
from posterity.reporting.summary import Component, Row, Summary, Table, summarise
from posterity.reporting.summary.rows import rows_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SITES = (ORANGE, "#3f8f8a", "#8e5fa8", "#b9a11b", "#86b3de", "#a3486b")
"""Colours of sites; their markers differ too."""
MARKS = "osD^vP"
MOST_ROWS = 40
MOST_SITES = len(SITES)
MOST_PANELS = 6
MOST_RIDGES = 12
FAR = 50.0
"""Largest ratio of interval lengths in one unit; beyond it, each row has its own unit."""
LONGEST = 32
PER_ROW, RIDGE = 0.26, 0.55
"""Height of a row and of a ridge, in inches."""


def plot_summary(
    posterior: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    level: Any = 0.9,
    site: str | None = None,
    title: str | None = None,
) -> "Figure":
    """Plot intervals by name, or the members of a plate or mixture as densities.

    Each row is one number, with a dot at its mean and a line along its interval. For a ledger, the
    estimate of each site alone (its factor and the prior) is drawn below that of all, for up to six
    sites; improper ones are named above the axes. If lengths of intervals differ greatly, each row
    is in units of half its interval's length. Mean and interval are written next to each row.

    Args:
        posterior: any family or a ledger.
        path: path at which to save the plot, if given; its ending sets the format.
        level: probability of the intervals.
        site: the one site of a ledger to show next to all.
        title: title of the plot.

    Raises:
        MissingExtraError: if matplotlib is not installed.
        UsageError: if nothing can be drawn, the ledger lacks the site, or the path cannot be
            written.

    >>> from posterity.families import Gaussian
    >>> q = Gaussian.from_standard([1.0, 2.0], [[1.0, 0.5], [0.5, 4.0]]).named(["age", "dose"])
    >>> figure = plot_summary(q)
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['age', 'dose']
    """
    if path is not None:
        check_format(path)
    summary = summarise(posterior, level)
    members = [t for t in summary.tables if len(t.axes) == 1 and t.quantity in ("", "mean")]
    if title is None:
        title = f"{summary.family}: means and {100 * summary.level:g} % intervals"
    if summary.components and members and not isinstance(posterior, Ledger):
        figure = _ridges(summary, members)
    elif any(isinstance(table.law, MixedMarginal) for table in summary.tables):
        figure = _mixture(summary)
    else:
        figure = _forest(summary, *_estimates(posterior, summary, site))
    return finish(figure, path, title)


def _estimates(
    posterior: Any, summary: Summary, site: str | None
) -> tuple[dict[str, list[Row]], list[str]]:
    """Return the rows of each site alone, and notes on what is not drawn."""
    if not isinstance(posterior, Ledger):
        return {}, []
    chosen = posterior.sites[:MOST_SITES] if site is None else (site,)
    rows, asides = {}, []
    for name in chosen:
        alone = posterior.prior + posterior.factor(name)
        if np.all(alone.is_proper()):
            rows[name] = _first(summarise(alone, summary.level), summary)
        else:
            asides.append(f"{name} alone is no distribution.")
    if site is None and len(posterior.sites) > len(chosen):
        asides.append(f"{len(posterior.sites) - len(chosen):,} more sites.")
    return rows, asides


def _first(summary: Summary, like: Summary | None = None) -> list[Row]:
    """Return the rows to draw; of topics, the most probable words according to ``like``."""
    topics = {(c.block, c.name): c.top for c in (like or summary).components if c.top}
    if not topics:
        return list(summary.first(MOST_ROWS))
    each = max(3, MOST_ROWS // len(topics))
    rows = []
    for table in summary.tables:
        places = {name: n for n, name in enumerate(table.names)}
        for k, member in enumerate(table.axes[0] if table.axes else ()):
            for word, _ in topics.get((table.block, member), ())[:each]:
                at = k * len(table.names) + places[word]
                rows += rows_of(table, summary.level, at, at + 1)
    return rows[:MOST_ROWS]


def _forest(summary: Summary, sites: dict[str, list[Row]], asides: list[str]) -> "Figure":
    rows = _first(summary)
    drawn = [r for r, row in enumerate(rows) if np.isfinite([row.low, row.high]).all()]
    if not drawn:
        raise UsageError(
            found=f"a {summary.family} of which no interval is known",
            expected="numbers that have intervals",
            fix="posterity show describes a network layer by layer, without a picture."
            if summary.layers
            else "Draw a proper posterior: a factor is to be added to a prior first.",
        )
    rows = [rows[r] for r in drawn]
    sites = {name: [own[r] for r in drawn] for name, own in sites.items()}
    lengths = np.array([row.high - row.low for row in rows])
    # An interval of length zero has no unit.
    units = np.where(lengths > 0, lengths / 2, 1.0)
    alike = all(row.quantity in ("probability", "weight") for row in rows)
    own = not alike and bool(lengths.max() > FAR * max(lengths.min(), 1e-300))
    units = units if own else np.ones(len(rows))
    tall = len(rows) * (1 + 0.55 * len(sites)) * PER_ROW
    ax = new_axes(equal=False, inches=(8.2, tall + 1.5))
    styled = zip(sites.items(), SITES, MARKS, strict=False)
    lines = [(rows, BLUE, "o", "all" if sites else None)] + [
        (these, colour, mark, f"{_short(name)} alone") for (name, these), colour, mark in styled
    ]
    for n, (these, colour, mark, name) in enumerate(lines):
        wide, size = (2, 6) if n == 0 else (1, 4)
        for y, row in enumerate(these):
            at, unit, label = y + 0.75 * n / len(lines), units[y], None if y else name
            ax.plot([row.low / unit, row.high / unit], [at] * 2, color=colour, linewidth=wide)
            style = {"color": colour, "markersize": size, "label": label}
            ax.plot([_middle(row) / unit], [at], mark, **style)
    ax.set_yticks(range(len(rows)), [_short(row.label) for row in rows])
    ax.set_ylim(len(rows) - 0.25, -0.6)
    ax.axvline(0, color=PALE, linewidth=0.8, linestyle=DASHED, zorder=0)
    what = "each row in half the length of its own interval: numbers are beside it"
    _values_only(ax, what if own else "")
    ax.tick_params(length=0, axis="y")
    ax.grid(axis="x", color="#ececea", linewidth=0.8)
    style: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center"}
    for y, row in enumerate(rows):
        text = f"{_middle(row):.3g}  ({row.low:.3g} to {row.high:.3g})"
        note(ax, text, (1.0, y), (4, 0), fontsize=7.5, **style)
    figure: Any = ax.figure
    if len(lines) > 1:
        place = 0.0, -0.28 / figure.get_figheight() - 0.02
        style = {"fontsize": 8, "frameon": False, "labelcolor": INK}
        ax.legend(loc="upper left", bbox_to_anchor=place, ncols=min(4, len(lines)), **style)
    more = summary.size - len(rows)
    text = " ".join(map(_short, asides + [f"and {more:,} more rows"] * (more > 0)))
    ax.set_title(text, fontsize=8, color=PALE, loc="left", pad=4)
    return figure


def _middle(row: Row) -> float:
    """Return the mean, or the middle of the interval if there is no mean."""
    return row.mean if np.isfinite(row.mean) else (row.low + row.high) / 2


def _short(name: str) -> str:
    """Return a name that fits next to the axes and that matplotlib does not read as a formula."""
    name = "".join(c if c.isprintable() else "?" for c in name).replace("$", r"\$")
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 9]}...{name[-6:]}"


def _below(figure: Any, *lines: tuple[int, str]) -> None:
    if text := " and ".join(f"{count:,} more {what}" for count, what in lines if count > 0):
        figure.supxlabel(text, fontsize=8, color=PALE, x=0.01, ha="left")


def _ridges(summary: Summary, members: list[Table]) -> "Figure":
    """Draw one panel per coordinate with one ridge per member; heights are scaled to one."""
    panels = [(table, n) for table in members for n in range(len(table.names))]
    shown = panels[:MOST_PANELS]
    labels = shown[0][0].axes[0][:MOST_RIDGES]
    wide = max(4.0, 3.0 * len(shown) + 1.0)
    inches = min(wide, 15.0), RIDGE * len(labels) + 1.6
    figure, (axes,) = new_panels(1, len(shown), inches)
    for ax, (table, n) in zip(axes, shown, strict=True):
        inner = {c.name: c for c in summary.components if c.block == table.block}
        _panel(ax, table, n, inner, summary.level)
    weight = {(c.block, c.name): c.weight for c in summary.components if c.weight is not None}
    of = lambda name: weight.get((shown[0][0].block, name))
    share = lambda name: "" if of(name) is None else f"  {of(name):.0%}"
    axes[0].set_yticks(range(len(labels)), [_short(name) + share(name) for name in labels])
    members_left = len(shown[0][0].axes[0]) - len(labels)
    _below(figure, (len(panels) - len(shown), "coordinates"), (members_left, "members"))
    return figure


def _panel(ax: Any, table: Table, n: int, inner: dict[str, Component], level: float) -> None:
    labels = table.axes[0][:MOST_RIDGES]
    for y, name in enumerate(labels):
        colour, law = SITES[y % MOST_SITES] if y else BLUE, table.law.picked((slice(y, y + 1), n))
        with np.errstate(all="ignore"):
            low, high = (float(end[0]) for end in law.interval(level))
            mean, sd = _spread(inner.get(name), n, table.quantity)
            if not np.isfinite([low, high]).all():
                continue
            if np.isfinite(sd):  # the member's observations, wider than the law of its mean
                x = np.linspace(mean - 3.2 * sd, mean + 3.2 * sd, 200)
                height = np.exp(-(((x - mean) / sd) ** 2) / 2)
            else:  # by differences of the distribution function, peak scaled to one
                start, end = (float(law.quantile(p)[0]) for p in (0.02, 0.98))
                x = np.linspace(start, end, 201)
                grown = np.nan_to_num(np.diff([float(law.cdf(one)[0]) for one in x]))
                x, height = (x[1:] + x[:-1]) / 2, grown / max(float(grown.max()), 1e-300)
        ax.fill_between(x, y, y - 0.8 * height, color=colour, alpha=0.3, linewidth=0)
        ax.plot(x, y - 0.8 * height, color=colour, linewidth=1)
        ax.plot([low, high], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
    what = f"{table.quantity} of {table.names[n]}" if table.quantity else table.names[n]
    ax.set(ylim=(len(labels) - 0.75, -1.0), yticks=[])
    _values_only(ax, _short(f"{table.block}: {what}" if table.block else what))


def _mixture(summary: Summary) -> "Figure":
    tables = [table for table in summary.tables if isinstance(table.law, MixedMarginal)]
    panels = [(table, n) for table in tables for n in range(table.size)]
    shown = panels[:MOST_PANELS]
    across = min(3, len(shown))
    down = -(-len(shown) // across)
    figure, grid = new_panels(down, across, (3.6 * across + 0.6, 2.2 * down + 0.9))
    axes = grid.ravel()
    for ax, (table, n) in zip(axes, shown, strict=False):
        flat: Any = table.law.reshaped((table.size,))
        with np.errstate(all="ignore"):
            one, parts = flat.picked(slice(n, n + 1)), flat.parts.picked((slice(None), n))
            x = np.linspace(float(one.quantile(0.002)[0]), float(one.quantile(0.998)[0]), 301)
            grown = np.diff(np.array([parts.cdf(at) for at in x]), axis=0) * flat.weights
        middle, step = (x[1:] + x[:-1]) / 2, max(x[1] - x[0], 1e-300)
        for k, own in enumerate((grown / step).T[:MOST_RIDGES]):
            ax.fill_between(middle, own, color=SITES[k % MOST_SITES], alpha=0.3, linewidth=0)
        ax.plot(middle, grown.sum(1) / step, color=BLUE, linewidth=1.5)
        (row,) = rows_of(table, summary.level, n, n + 1)
        ax.plot([row.low, row.high], [0, 0], color=BLUE, linewidth=4, solid_capstyle="butt")
        ax.set_yticks([])
        _values_only(ax, _short(row.label))
    for ax in axes[len(shown) :]:
        ax.remove()
    _below(figure, (len(panels) - len(shown), "coordinates"))
    return figure


def _values_only(ax: Any, label: str = "") -> None:
    plain_axes(ax, label)
    ax.spines[["left"]].set_visible(False)
    ax.grid(visible=False, axis="y")


def _spread(one: Component | None, n: int, quantity: str) -> tuple[float, float]:
    """Return the mean and deviation of a member's observations; NaN if it has none."""
    if quantity != "mean" or one is None or one.mean is None or one.covariance is None:
        return np.nan, np.nan
    variance = one.covariance if one.covariance.ndim == 1 else one.covariance.diagonal()
    return float(one.mean[n]), float(np.sqrt(variance[n]))
