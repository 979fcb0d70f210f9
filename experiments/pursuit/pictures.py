"""The pictures: targets and the mixtures that were found for them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import harness
from experiments.pursuit import predictions as names
from experiments.pursuit.quadrature import SIDES, Gaussians
from experiments.pursuit.targets import Array, Target

COLORS = ("#1d70b8", "#c1121f")
GREY = "#8d99a6"


def densities(
    drawn: Mapping[str, Any],
    path: Path,
    own: str,
    boosting: Sequence[str],
    median: Callable[[Any], float],
) -> None:
    """A column a target; ours above, and the best of the boosting peers that ran below."""
    with harness.figure(path, 2, len(drawn), figsize=(2.7 * len(drawn), 5.6)) as axes:
        for column, (name, (target, table)) in zip(axes.T, drawn.items(), strict=True):
            ran = [peer for peer in boosting if peer in table]
            rows = [own, *([min(ran, key=lambda peer: median(table[peer]))] if ran else [])]
            for axis, method in zip(column, rows, strict=False):
                every = sorted(table[method], key=lambda row: row["reverse"])
                shown = every[(len(every) - 1) // 2]
                law = Gaussians.of(shown["weights"], shown["means"], shown["factors"])
                (line if target.size == 1 else plane)(axis, target, law)
                title = f"{name}\n{method}" if method == own else method
                axis.set_title(f"{title}\nKL {shown['reverse']:.2g}", fontsize=8)
                axis.tick_params(labelsize=6)


def line(axis: Any, target: Target, law: Gaussians) -> None:
    """Density over a line: the target grey, the mixture blue, its components thin."""
    x = np.linspace(-target.box, target.box, 801)[:, None]
    height = true(target, x)
    axis.fill_between(x[:, 0], height, color=GREY, alpha=0.45, linewidth=0)
    axis.plot(x, np.exp(law.log_density(x)), color=COLORS[0], linewidth=1.3)
    for weight, mean, root in zip(law.weights, law.means, law.factors, strict=True):
        own = Gaussians(np.ones(1), mean[None], root[None])
        axis.plot(x, weight * np.exp(own.log_density(x)), color=COLORS[1], linewidth=0.6)
    axis.set_ylim(0, 1.25 * height.max())


def plane(axis: Any, target: Target, law: Gaussians) -> None:
    """The target's density grey, that of the mixture in lines, its components as ellipses."""
    side = np.linspace(-target.box, target.box, 161)
    points = np.stack([own.ravel() for own in np.meshgrid(side, side)], 1)
    shape = (len(side), len(side))
    height = true(target, points).reshape(shape)
    axis.contourf(side, side, height, levels=9, cmap="Greys")
    levels = height.max() * np.array([0.02, 0.1, 0.3, 0.6])
    found = np.exp(law.log_density(points)).reshape(shape)
    axis.contour(side, side, found, levels=levels, colors=COLORS[0], linewidths=0.8)
    circle = np.stack([np.cos(u := np.linspace(0, 2 * np.pi, 80)), np.sin(u)])
    for weight, mean, root in zip(law.weights, law.means, law.factors, strict=True):
        edge = mean[:, None] + root @ circle
        axis.plot(*edge, color=COLORS[1], linewidth=0.4 + 1.2 * float(weight) ** 0.5)
    axis.set(xlim=(-target.box, target.box), ylim=(-target.box, target.box), aspect="equal")


def true(target: Target, points: Array) -> Array:
    return np.exp(target.log_densities(points) - target.log_normaliser(SIDES[target.size][0]))


def curves(problems: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Test log likelihoods over data sets, a panel a problem.

    Mixtures and ensembles by their size, the others as levels.
    """
    size = (3.4 * len(problems), 3.2)
    with harness.figure(path, 1, len(problems), figsize=size) as axes:
        for axis, (problem, told) in zip(axes[0], problems.items(), strict=True):
            for name, color in zip((names.OURS, names.ENSEMBLE), COLORS, strict=True):
                rows, sizes = list(told[name].values()), [int(count) for count in told[name]]
                mean, error = ([row[k] or 0.0 for row in rows] for k in ("mean", "standard error"))
                axis.errorbar(sizes, mean, error, color=color, label=name, capsize=2)
                axis.set_xticks(sizes)
            styles = {names.MEAN_FIELD: "--", names.LANGEVIN: ":", names.TRUTH: "-"}
            for name, style in styles.items():
                level = told[name]["mean"]
                axis.axhline(level, color="black", linestyle=style, linewidth=0.9, label=name)
            axis.set_title(problem, fontsize=9)
            axis.set_xlabel("components")
        axes[0, 0].set_ylabel("test log likelihood, nats a record")
        axes[0, 0].legend(fontsize=7)
