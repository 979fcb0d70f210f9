"""Table 3: MNIST by a 784-400-400-10 network: `python -m experiments.dark_knowledge.mnist`.

A chain is run and distilled for each seed; the plug-in network is fitted by the same descent
without noise. Writes `mnist.json`, `mnist-curve.png` and `mnist-strange.png`. What takes long is
kept in a folder: the same command goes on where it was, to the same result, also after a kill -9.
`--only-kept` reads what there is, also while another process is at it. `--paper` is a run of the
paper's own length at temperature 1 (`mnist-paper.json`), which wants a GPU.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import harness
from experiments.dark_knowledge import RESULTS, mnist_figures
from experiments.dark_knowledge.mnist_run import Flat, Row, Seed
from experiments.dark_knowledge.mnist_setting import Setting
from experiments.data import Images, font_digits, intensities, mnist, read

CACHE = Path(tempfile.gettempdir()) / "posterity-dark-mnist"
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
METHODS = ("plug-in", "SGLD", "distilled")
STRANGE = 1000
"""Images of each strange kind that are asked about."""


def images(strange: int = STRANGE) -> Flat:
    """MNIST in the official parts; font digits of different families, and Fashion-MNIST's test."""
    digits, fonts = mnist(), font_digits().x
    with np.load(io.BytesIO(read("fashion_mnist.npz")), allow_pickle=False) as arrays:
        fashion = intensities(arrays["x_test"][:strange])
    places = np.random.default_rng(0).permutation(len(fonts))[:strange]
    return Flat(
        _flat(digits.x_train),
        digits.y_train,
        _flat(digits.x_test),
        digits.y_test,
        {"font digits": _flat(fonts[places]), "Fashion-MNIST": _flat(fashion)},
    )


def _flat(x: Images) -> Images:
    return x.reshape(len(x), -1)


def run(
    setting: Setting,
    data: Flat,
    seeds: Sequence[int],
    *,
    cache: Path,
    results: Path,
    report: bool = False,
    name: str = "mnist",
) -> dict[str, Any]:
    """Sample, distil, measure, judge, draw and write; returns what the file ``name`` holds."""
    runs = [Seed(number, setting, data, cache) for number in seeds]
    rows = [own.so_far() if report else own.run() for own in runs]
    summary = summarise(setting, [row for row in rows if row is not None])
    harness.write(results, name, summary)
    mnist_figures.curves(summary, results / f"{name}-curve.png")
    mnist_figures.strange(runs[0], results / f"{name}-strange.png")
    return summary


def summarise(setting: Setting, rows: Sequence[Row]) -> dict[str, Any]:
    """Means and spreads over seeds, and whether what was to be shown is shown."""
    table = {
        method: {
            kind: harness.statistics([row[method][kind] for row in rows])
            for kind in ("error", "log likelihood", "calibration error")
        }
        for method in METHODS
    }
    found = {
        "paper": PAPER,
        "setting": repr(setting),
        "temperature": setting.temperature,
        "spread": "standard error of the mean over seeds",
        "seeds finished": sum(row["chain steps"] == row["of"] for row in rows),
        "test": table,
        "strange": {
            method: {
                kind: {
                    name: harness.statistics([row[method][kind][name] for row in rows])
                    for name in rows[0][method][kind]
                }
                for kind in rows[0][method]
                if kind.startswith("AUROC")
            }
            for method in METHODS
        },
        "goals": [
            harness.at_most(
                f"{method}: test error at most {most} % on average", table[method]["error"], most
            )
            for method, most in GOALS.items()
        ],
        "runs": list(rows),
    }
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = harness.command_line(__doc__, RESULTS, CACHE)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--draws", type=int, help="steps of the student")
    parser.add_argument("--paper", action="store_true", help="the paper's chain, at its length")
    own = parser.parse_args(arguments)
    setting = Setting.paper(own.draws or 99_900) if own.paper else Setting(draws=own.draws or 8000)
    summary = run(
        setting,
        images(),
        own.seeds,
        cache=own.cache / "paper" if own.paper else own.cache,
        results=own.results,
        report=own.only_kept,
        name="mnist-paper" if own.paper else "mnist",
    )
    harness.print_goals(summary["goals"])


if __name__ == "__main__":
    main()
