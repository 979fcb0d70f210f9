"""The pictures: figure 1's panels, and how a student keeps its uncertainty apart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

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
                chances = cell[1]["grid"]["chances"]
                image = surface(axis, chances, effort, "RdBu_r", 1.0, cell[0], data)
        axes[0, 0].figure.colorbar(image, ax=axes, shrink=0.7, label="p(class 1 | x)")

    last = names[-1]
    if f"{last}, {SPLIT}" not in row:
        return
    own = row[f"{last}, {SPLIT}"]["grid"]
    chances = [np.clip(c, 1e-9, 1 - 1e-9) for c in (truth.chances[:, 1], own["chances"])]
    entropies = [-(c * np.log(c) + (1 - c) * np.log1p(-c)) for c in chances]
    epistemic = [np.asarray(truth.mutual_information), np.asarray(own["mutual information"])]
    with harness.figure(folder / "figure1-split.png", 2, 3, figsize=(9, 5.8)) as axes:
        for line, entropy, part, who in zip(
            axes, entropies, epistemic, ("NUTS", f"student {last}"), strict=True
        ):
            parts = {"all of it": entropy, "noise of labels": entropy - part, "weights": part}
            for axis, (what, values) in zip(line, parts.items(), strict=True):
                title = f"{who}: {what}"
                image = surface(axis, values, effort, "viridis", float(np.log(2)), title, data)
        axes[0, 0].figure.colorbar(image, ax=axes, shrink=0.7, label="nats")


def surface(
    axis: Any, values: Any, effort: Any, colors: str, top: float, title: str, data: Any
) -> Any:
    from experiments.dark_knowledge.toy2d import BOX

    style = {"cmap": colors, "vmin": 0.0, "vmax": top, "interpolation": "bilinear"}
    extent = (-BOX, BOX, -BOX, BOX)
    grid = np.asarray(values).reshape(effort.side, effort.side)
    image, (x, y) = axis.imshow(grid, origin="lower", extent=extent, **style), data
    for label, color in enumerate(COLORS):
        axis.scatter(*x[y == label].T, s=12, color=color, edgecolor="white", linewidth=0.5)
    axis.set_title(title, fontsize=9)
    axis.set(xticks=[], yticks=[])
    return image


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
