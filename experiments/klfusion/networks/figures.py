"""Figure 1: test images by predictive entropy; figure 5: entropy by digit, usual and strange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes

from experiments import harness
from experiments.klfusion.networks import methods
from experiments.klfusion.networks.evaluate import Trial
from experiments.klfusion.networks.metrics import entropy
from experiments.klfusion.networks.predictions import drawn

QUANTILES, EACH = (0.0, 0.5, 0.9, 0.97, 0.99, 0.998), 8
LOCAL, FUSED = "#999999", "#c1121f"
Rows = Mapping[str, Any]


def figure1(trial: Trial, folder: Path) -> None:
    """Images of the test set, each column surer than the next; what the fused network says."""
    digits, key = trial.digits, jax.random.key(trial.case.number)
    predictor = drawn(methods.capped(trial.sites), key, trial.effort.samples)
    probabilities = predictor(digits.x_test.reshape(len(digits.x_test), -1))
    order = np.argsort(entropy(probabilities), kind="stable")
    path = folder / "networks-figure1.png"
    with harness.figure(path, EACH, len(QUANTILES), figsize=(7.2, 9.2)) as axes:
        for column, quantile in zip(axes.T, QUANTILES, strict=True):
            start = min(int(quantile * len(order)), len(order) - EACH)
            shown = order[start : start + EACH]
            level = entropy(probabilities[shown]).mean()
            column[0].set_title(f"from {100 * quantile:g} %\n{level:.2g} nats", fontsize=9)
            for axis, image in zip(column, shown, strict=True):
                axis.imshow(digits.x_test[image], cmap="gray_r")
                said, truth = int(probabilities[image].argmax()), int(digits.y_test[image])
                wrong = said != truth
                text = f"{said}, not {truth}" if wrong else f"{said}"
                axis.set_xlabel(text, fontsize=9, color=FUSED if wrong else "#222222", labelpad=1)
                axis.set(xticks=[], yticks=[])
                axis.spines[:].set_visible(False)
        title = "test images in the order of the fused network's predictive entropy"
        axes[0, 0].figure.suptitle(title)


def figure5(partitions: Sequence[Rows], folder: Path) -> None:
    """Mean entropy by digit, MNIST beside font digits: fused and local networks."""
    titles = {"usual": "test images of handwritten digits", "strange": "digits of computer fonts"}
    options = {"legend": 2, "figsize": (10, 4), "sharey": True}
    with harness.figure(folder / "networks-figure5.png", 1, 2, **options) as axes:
        for axis, (kind, title) in zip(axes[0], titles.items(), strict=True):
            _by_digit(axis, partitions, kind)
            axis.set(title=title, xlabel="digit")
        axes[0, 0].set_ylabel("mean predictive entropy, nats")
        axes[0, 0].set_ylim(bottom=0)


def _by_digit(axis: Axes, partitions: Sequence[Rows], kind: str) -> None:
    local = np.array(
        [
            row["entropy by digit"][kind]
            for rows in partitions
            for name, row in rows.items()
            if name.startswith("site ")
        ]
    )
    fused = np.array([rows[methods.CAPPED]["entropy by digit"][kind] for rows in partitions])
    places = np.arange(fused.shape[1])
    apart = np.random.default_rng(0).uniform(-0.3, -0.05, local.shape)
    axis.plot(places + apart, local, ".", color=LOCAL, markersize=3)
    axis.plot([], [], ".", color=LOCAL, label="local networks, all partitions")
    spread = fused.std(0, ddof=1) if len(fused) > 1 else np.zeros(len(places))
    label = f"fused, mean and deviation over {len(fused)} partitions"
    axis.errorbar(
        places + 0.15, fused.mean(0), spread, fmt="o", color=FUSED, capsize=3, label=label
    )
    axis.set_xticks(places)
