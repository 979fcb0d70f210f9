"""The pictures: figure 1's panels, and how a student keeps its uncertainty apart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments import harness

COLORS = ("#1d70b8", "#c1121f")


def plane(truth: Any, row: Mapping[str, Any], data: Any, effort: Any, folder: Path) -> None:
    """Figure 1, ours and the paper's students below each other; and a second of the split."""
    from experiments.dark_knowledge.toy2d import OURS, PAPERS, SGD, SPLIT

    names = list(effort.students)
    above = {
        "plug-in (SGD)": row.get(SGD),
        "NUTS": {"grid": {"chances": truth.chances[:, 1]}},
        "SGLD": row.get(f"SGLD, {OURS}"),
        **{f"student {name}": row.get(f"{name}, {OURS}") for name in names},
    }
    below = {
        "SGLD, one chain": row.get(f"SGLD, {PAPERS}"),
        **{f"student {name}, by SGD": row.get(f"{name}, {PAPERS}") for name in names},
    }
    # a method that has not run leaves its place empty
    rows = [list(above.items()), [("", None), ("", None), *below.items()]]
    size = (2.6 * len(above), 5.6)
    with harness.figure(folder / "figure1.png", 2, len(above), figsize=size) as axes:
        image = None
        for line, cells in zip(axes, rows, strict=True):
            for axis, cell in zip(line, cells, strict=True):
                if cell[1] is None:
                    axis.set_axis_off()
                    continue
                image = surface(axis, cell[1]["grid"]["chances"], effort.side, "RdBu_r", 1.0)
                decorate(axis, cell[0], data)
        axes[0, 0].figure.colorbar(image, ax=axes, shrink=0.7, label="p(class 1 | x)")

    last = names[-1]
    if f"{last}, {SPLIT}" not in row:
        return
    own = row[f"{last}, {SPLIT}"]["grid"]
    entropies = [_entropy(truth.chances[:, 1]), _entropy(np.asarray(own["chances"]))]
    epistemic = [np.asarray(truth.mutual_information), np.asarray(own["mutual information"])]
    with harness.figure(folder / "figure1-split.png", 2, 3, figsize=(9, 5.8)) as axes:
        for line, entropy, part, who in zip(
            axes, entropies, epistemic, ("NUTS", f"student {last}"), strict=True
        ):
            parts = {"all of it": entropy, "noise of labels": entropy - part, "weights": part}
            for axis, (what, values) in zip(line, parts.items(), strict=True):
                image = surface(axis, values, effort.side, "viridis", float(np.log(2)))
                decorate(axis, f"{who}: {what}", data)
        axes[0, 0].figure.colorbar(image, ax=axes, shrink=0.7, label="nats")


def _entropy(chance: Any) -> Any:
    chance = np.clip(chance, 1e-9, 1 - 1e-9)
    return -(chance * np.log(chance) + (1 - chance) * np.log1p(-chance))


def surface(axis: Axes, values: Any, side: int, colors: str, top: float) -> Any:
    """Values on the grid."""
    from experiments.dark_knowledge.toy2d import BOX

    return axis.imshow(
        np.asarray(values).reshape(side, side),
        origin="lower",
        extent=(-BOX, BOX, -BOX, BOX),
        cmap=colors,
        vmin=0.0,
        vmax=top,
        interpolation="bilinear",
    )


def decorate(axis: Axes, title: str, data: Any) -> None:
    """The records, and a title."""
    x, y = data
    for label, color in enumerate(COLORS):
        axis.scatter(*x[y == label].T, s=12, color=color, edgecolor="white", linewidth=0.5)
    axis.set_title(title, fontsize=9)
    axis.set_xticks([])
    axis.set_yticks([])


# --- figure 2 --------------------------------------------------------------------------------


def bands(methods: Mapping[str, Any], x: Any, data: Any, seen: float, path: Path) -> None:
    """Means, and three standard deviations: dark of the function, light with the noise."""
    columns = 3
    count = -(-len(methods) // columns)
    options = {"figsize": (4 * columns, 3.3 * count), "sharex": True, "sharey": True}
    with harness.figure(path, count, columns, **options) as axes:
        for axis in axes.flat[len(methods) :]:
            axis.set_axis_off()
        for axis, (name, band) in zip(axes.flat, methods.items(), strict=False):
            for variance, alpha in ((band.total, 0.18), (band.function, 0.35)):
                away = 3 * np.sqrt(np.broadcast_to(variance, x.shape))
                axis.fill_between(
                    x, band.mean - away, band.mean + away, color=COLORS[0], alpha=alpha, linewidth=0
                )
            axis.plot(x, band.mean, color=COLORS[0], linewidth=1.6)
            axis.plot(x, x**3, color="black", linestyle=":", linewidth=1.2)
            axis.scatter(*data, s=14, color=COLORS[1], zorder=3)
            axis.axvline(-seen, color="grey", linewidth=0.5)
            axis.axvline(seen, color="grey", linewidth=0.5)
            axis.set(title=name, ylim=(-220, 220))
