"""Draws docs/images/matching.png: what `posterity demo` matched, by images of handwritten digits.

python -m examples.matching

A cell is the mean image of what a site's own components hold of a fused one. The files that are
fused have no images: the demo alone, which has the data of all sites, can draw them.
"""

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import posterity
from posterity.adapters.sklearn import to_estimator
from posterity.cli.demo import deal, features

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "matching.png"
SIDE = 8
TITLE = """\
Handwritten digits at six sites: a row is a site, a column a fused component, and a cell the mean of
the images of the site's own components that became this one; orange if a match is doubtful."""


def fused(folder: Path) -> tuple[dict[str, posterity.Ledger], posterity.Fusion]:
    """The files of a demo's sites in a folder, and their fusion."""
    ledgers = {path.stem: posterity.load(path) for path in sorted(folder.glob("site-*"))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the picture shows doubtful matches
        return ledgers, posterity.fuse(ledgers, rule="product")


def matched(fusion: posterity.Fusion) -> str:
    """What a picture says of which components are one, as JSON; it is kept in its file."""
    return json.dumps({site: labels.tolist() for site, labels in fusion.matching.items()})


def means(ledgers: dict[str, posterity.Ledger], fusion: posterity.Fusion) -> np.ndarray:
    """Mean images (sites, components, 8, 8); NaN where a site has nothing of a component."""
    images = deal(0).images
    ink = np.zeros((len(ledgers), fusion.components, SIDE, SIDE))
    count = np.zeros((len(ledgers), fusion.components, 1, 1))
    for row, (site, labels) in enumerate(fusion.matching.items()):
        estimator: Any = to_estimator(ledgers[site])
        held = estimator.predict_proba(features(images[site])).T[labels >= 0]
        kept = labels[labels >= 0]
        np.add.at(ink[row], kept, np.tensordot(held, images[site], 1))
        np.add.at(count[row], kept, held.sum(1)[:, None, None])
    return np.divide(ink, count, out=np.full_like(ink, np.nan), where=count > 0)


def draw(ledgers: dict[str, posterity.Ledger], fusion: posterity.Fusion, path: Path) -> None:
    """Draw mean images, components that most sites have first."""
    drawn = means(ledgers, fusion)
    held: Any = np.isfinite(drawn).all((2, 3))
    order = np.argsort(-held.sum(0), kind="stable")
    doubtful = {(s, fusion.matching[s][k]) for s, k, _ in fusion.plates[""].ambiguous()}
    figure = Figure(figsize=(0.6 * len(order) + 1, 0.6 * len(held) + 0.8), layout="constrained")
    figure.suptitle(TITLE, fontsize=9)
    axes = figure.subplots(*held.shape, squeeze=False)
    for row, site in enumerate(fusion.matching):
        axes[row, 0].set_ylabel(site, rotation=0, ha="right", va="center", fontsize=9)
        for cell, component in zip(axes[row], order, strict=True):
            cell.set(xticks=[], yticks=[])
            cell.spines[:].set_visible(False)
            if held[row, component]:
                shade = "Oranges" if (site, component) in doubtful else "gray_r"
                cell.imshow(drawn[row, component], cmap=shade, vmin=0, vmax=1)
    figure.savefig(path, dpi=150, metadata={"Description": matched(fusion)})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "posterity", "demo", "--output", name]
        subprocess.run(command, check=True)
        draw(*fused(Path(name)), PICTURE)
