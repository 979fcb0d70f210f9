"""Two pictures: where errors are going, and how unsure networks are of strange images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

import posterity
from experiments import harness
from experiments.dark_knowledge.mnist_run import Seed

COLORS = {"plug-in": "#777777", "SGLD": "#1d70b8", "distilled": "#c1121f"}
KINDS = {"MNIST": "#222222", "font digits": "#e08e0b", "Fashion-MNIST": "#2a9d4b"}


def curves(summary: Mapping[str, Any], path: Path) -> None:
    """Draw test errors and log likelihoods over steps of the chain."""
    with harness.figure(path, 1, 2, figsize=(11, 4)) as ((errors_at, levels_at),):
        paper = summary["paper"]["test error in %"]
        for row in summary["runs"]:
            steps = [point["chain steps"] / 1000 for point in row["curve"]]
            for place, method in enumerate(("SGLD", "distilled")):
                first = method if row is summary["runs"][0] else None
                color = COLORS[method]
                errors = [point[method] for point in row["curve"]]
                levels = [point["log likelihoods"][place] for point in row["curve"]]
                errors_at.plot(steps, errors, color=color, label=first, linewidth=1.2)
                levels_at.plot(steps, levels, color=color, label=first, linewidth=1.2)
            own = row["plug-in"]
            errors_at.axhline(own["error"], color=COLORS["plug-in"], linewidth=0.8)
            levels_at.axhline(own["log likelihood"], color=COLORS["plug-in"], linewidth=0.8)
        for method, (error, _) in paper.items():
            errors_at.axhline(error, color=COLORS[method], linestyle=":", linewidth=1)
        errors_at.plot([], [], ":", color="black", label="the paper, a million steps")
        errors_at.plot([], [], color=COLORS["plug-in"], label="plug-in")
        errors_at.set_ylim(1.0, 3.0)
        levels_at.set_ylim(-0.11, -0.03)
        for axis, label in zip(
            (errors_at, levels_at), ("test error, %", "test log likelihood, nats"), strict=True
        ):
            axis.set_xlabel("thousand steps of the chain, with those of burn-in")
            axis.set_ylabel(label)
        errors_at.legend(frameon=False)


def strange(seed: Seed, picture: Path) -> None:
    """Draw what the student of one seed makes of images of three kinds."""
    path = seed.file("student.safetensors")
    if not path.exists():
        return
    said = posterity.load(path).predict(seed.images.asked)
    rows = {"MNIST": slice(0, len(seed.images.y_test)), **seed.rows()}
    with harness.figure(picture, 1, 2, figsize=(11, 4)) as (axes,):
        for axis, values, label in zip(
            axes,
            (said.entropy, said.mutual_information),
            ("entropy of the predictive, nats", "mutual information, nats"),
            strict=True,
        ):
            _histograms(axis, np.asarray(values), rows)
            axis.set_xlabel(label)
            axis.set_ylabel("density")
        axes[0].legend(frameon=False)
        axes[0].figure.suptitle("the distilled network on images of three kinds")


def _histograms(axis: Axes, values: np.ndarray, rows: Mapping[str, slice]) -> None:
    edges = np.linspace(0, np.quantile(values, 0.999), 40)
    for (name, own), color in zip(rows.items(), _colors(rows), strict=True):
        axis.hist(values[own], edges, density=True, histtype="step", color=color, label=name)
    axis.set_yscale("log")


def _colors(rows: Mapping[str, slice]) -> list[str]:
    return [KINDS.get(name, "#7b2cbf") for name in rows]
