"""The picture of the experiment: accuracy on all classes seen, after each task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STYLES = {
    "conjugate": ("C0", "-", 2.5), "gated": ("C1", "-", 2.5), "coreset, deformed": ("C2", "-", 2.5),
    "mixture, even": ("C3", "--", 1.5), "mixture, coreset": ("C3", ":", 1.5),
    "mixture, kl": ("C3", "-.", 1.5), "coreset, network": ("C2", "--", 1.5),
    "VCL": ("C4", "-", 1.0), "VCL, coreset": ("C4", "--", 1.0), "EWC": ("C5", "-", 1.0),
    "fine-tuning": ("0.5", "-", 1.0),
}  # fmt: skip


def draw(summary: dict[str, Any], results: Path) -> None:
    """A panel a set of images; joint training is a line across."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sets = summary["after each task"]
    figure, panels = pyplot.subplots(
        1, max(len(sets), 1), figsize=(5.6 * max(len(sets), 1), 4.4), squeeze=False
    )
    for panel, (data, methods) in zip(panels[0], sets.items(), strict=False):
        for method, (colour, line, width) in STYLES.items():
            own = methods.get(method, {}).get("forth")
            if own is not None:
                label = f"{method} ({len(own['seeds'])})"
                steps = range(1, len(own["accuracy"]) + 1)
                panel.plot(steps, own["accuracy"], line, color=colour, lw=width, label=label)
        for method, line in (("joint network", "-"), ("joint, same features", "--")):
            own = methods.get(method, {}).get("forth")
            if own is not None:
                panel.axhline(own["accuracy"][-1], color="k", ls=line, lw=0.8, label=method)
        panel.set_xlabel("tasks, two classes each")
        panel.set_ylabel("accuracy on all classes seen, %")
        panel.set_xticks(range(1, 6))
        panel.set_title({"mnist": "MNIST", "fashion": "Fashion-MNIST"}.get(data, data))
        panel.legend(fontsize=7, loc="lower left", title="method (seeds)", title_fontsize=7)
    figure.tight_layout()
    figure.savefig(results / "incremental.png", dpi=110)
    pyplot.close(figure)
