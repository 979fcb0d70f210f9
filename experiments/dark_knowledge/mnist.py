"""Table 3: MNIST by a 784-400-400-10 network: `python -m experiments.dark_knowledge.mnist`.

A chain is run and distilled for each seed; the plug-in network is fitted by the same descent
without noise. Writes `mnist.json`, `mnist-curve.png` and `mnist-strange.png`. What takes long is
kept in a folder: the same command goes on where it was, to the same result, also after a kill -9.
`--only-kept` reads what there is, also while another process is at it. `--paper` is a run of the
paper's own length at temperature 1 (`mnist-paper.json`): an hour a seed on one core. Other seeds'
rows in the results file stay, if the setting is the same.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import posterity
from experiments import harness
from experiments.dark_knowledge import RESULTS
from experiments.dark_knowledge.mnist_run import Flat, Row, Seed, Setting
from experiments.data import fashion_mnist, font_digits, mnist

PLACE = harness.Place(RESULTS, Path(tempfile.gettempdir()) / "posterity-dark-mnist")
PAPER = {
    "setting": "784-400-400-10, batch 100, a million steps of SGLD at temperature 1, thinned by "
    "100, pixels / 126; mean and standard error of ten runs",
    "test error in %": {
        "plug-in": [1.536, 0.0120],
        "SGLD": [1.271, 0.0126],
        "distilled": [1.307, 0.0169],
    },
}
GOALS = {"SGLD": 1.27, "distilled": 1.31}
COLORS = {"plug-in": "#777777", "SGLD": "#1d70b8", "distilled": "#c1121f"}
KINDS = {"MNIST": "#222222", "font digits": "#e08e0b", "Fashion-MNIST": "#2a9d4b"}
STRANGE = 1000  # images of each strange kind that are asked about


def images(divisor: float) -> Flat:
    """MNIST in the official parts; font digits of different families, and Fashion-MNIST's test.

    Pixels, from 0 to 255, are divided by ``divisor``.
    """
    digits = mnist()
    fonts = font_digits().x

    def flat(x):
        return x.reshape(len(x), -1) * np.float32(255 / divisor)

    places = np.random.default_rng(0).permutation(len(fonts))[:STRANGE]
    clothes = fashion_mnist().x_test[:STRANGE]
    strange = {"font digits": flat(fonts[places]), "Fashion-MNIST": flat(clothes)}
    return Flat(flat(digits.x_train), digits.y_train, flat(digits.x_test), digits.y_test, strange)


def run(
    place: harness.Place = PLACE,
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    draws: int | None = None,
    paper: bool = False,
    _setting: Setting | None = None,
    _images: Flat | None = None,
) -> dict[str, Any]:
    setting = _setting or Setting(draws=draws or Setting.draws)
    name = "mnist"
    cache = place.cache
    if paper:
        setting = Setting.paper(draws or 99_900)
        cache = cache / "paper"
        name = "mnist-paper"
    data = _images or images(setting.divisor)
    runs = [Seed(number, setting, data, cache) for number in seeds]
    rows = [own.so_far() if place.only_kept else own.run() for own in runs]
    finished = {row["seed"]: row for row in [*earlier(place, name, setting), *rows] if row}
    summary = summarise(setting, [finished[number] for number in sorted(finished)])
    place.write(name, summary)
    curves(summary, place.results / f"{name}-curve.png")
    strange(runs[0], place.results / f"{name}-strange.png")
    return summary


def earlier(place: harness.Place, name: str, setting: Setting) -> list[Row]:
    """Return the finished rows of other runs in the results file, if their setting is the same."""
    path = place.results / f"{name}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    same = known.get("setting") == repr(setting)
    return [row for row in known["runs"] if row["chain steps"] == row["of"]] if same else []


def summarise(setting: Setting, rows: Sequence[Row]) -> dict[str, Any]:
    methods = {name: harness.over_seeds([row[name] for row in rows]) for name in COLORS}
    errors = ("error", "log likelihood", "calibration error")
    goal = "test error at most {} % on average"
    return {
        "paper": PAPER,
        "setting": repr(setting),
        "temperature": setting.temperature,
        "spread": "standard error of the mean over seeds",
        "seeds finished": sum(row["chain steps"] == row["of"] for row in rows),
        "test": {name: {kind: own[kind] for kind in errors} for name, own in methods.items()},
        "strange": {
            name: {kind: table for kind, table in own.items() if kind.startswith("AUROC")}
            for name, own in methods.items()
        },
        "goals": [
            harness.at_most(f"{name}: {goal.format(most)}", methods[name]["error"], most)
            for name, most in GOALS.items()
        ],
        "runs": list(rows),
    }


def curves(summary: Mapping[str, Any], path: Path) -> None:
    """Draw test errors and log likelihoods over steps of the chain."""
    with harness.figure(path, 1, 2, figsize=(11, 4)) as axes:
        left, right = axes[0]
        for number, row in enumerate(summary["runs"]):
            steps = [point["chain steps"] / 1000 for point in row["curve"]]
            for place, method in enumerate(("SGLD", "distilled")):
                style = {"color": COLORS[method], "linewidth": 1.2}
                errors = [point[method] for point in row["curve"]]
                left.plot(steps, errors, label=None if number else method, **style)
                right.plot(steps, [p["log likelihoods"][place] for p in row["curve"]], **style)
            for axis, kind in ((left, "error"), (right, "log likelihood")):
                axis.axhline(row["plug-in"][kind], color=COLORS["plug-in"], linewidth=0.8)
        for method, (error, _) in summary["paper"]["test error in %"].items():
            left.axhline(error, color=COLORS[method], linestyle=":", linewidth=1)
        left.plot([], [], ":", color="black", label="the paper, a million steps")
        left.plot([], [], color=COLORS["plug-in"], label="plug-in")
        left.set(ylim=(1.0, 3.0), ylabel="test error, %")
        right.set(ylim=(-0.11, -0.03), ylabel="test log likelihood, nats")
        for axis in axes[0]:
            axis.set_xlabel("thousand steps of the chain, with those of burn-in")
        left.legend(frameon=False)


def strange(seed: Seed, picture: Path) -> None:
    """Draw what the student of one seed makes of images of three kinds."""
    path = seed.file("student.safetensors")
    if not path.exists():
        return
    said = posterity.load(path).predict(seed.images.asked)
    rows = {"MNIST": slice(0, len(seed.images.y_test)), **seed.images.rows}
    shown = {
        "entropy of the predictive, nats": np.asarray(said.entropy),
        "mutual information, nats": np.asarray(said.mutual_information),
    }
    with harness.figure(picture, 1, 2, figsize=(11, 4)) as (axes,):
        for axis, (label, values) in zip(axes, shown.items(), strict=True):
            edges = np.linspace(0, np.quantile(values, 0.999), 40)
            for name, own in rows.items():
                style = {"histtype": "step", "color": KINDS.get(name, "#7b2cbf"), "label": name}
                axis.hist(values[own], edges, density=True, **style)
            axis.set(yscale="log", xlabel=label, ylabel="density")
        axes[0].legend(frameon=False)
        axes[0].figure.suptitle("the distilled network on images of three kinds")


if __name__ == "__main__":
    harness.command(run)
