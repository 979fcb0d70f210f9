"""Whether a student keeps its teacher's doubts: `python -m experiments.dark_knowledge.doubt`.

A 784-50-10 network learns 10,000 images of Fashion-MNIST; its chains, by the library's defaults,
teach a student on inputs by default, and one on perturbed images alone. Both are asked about
letters and digits of computer fonts, which neither was shown: how well does their doubt, the mutual
information or the entropy, tell these from test images? Writes `doubt.json`.
"""

import functools
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from experiments import harness
from experiments.dark_knowledge import PLACE
from experiments.dark_knowledge.worth import images, scored, teacher
from experiments.data import Array, Images
from experiments.klfusion.networks.predictions import auroc
from posterity import distill
from posterity.distillation import Perturbed

SEEN = 2000  # test images that are asked about, and digits of fonts at most
INPUTS = ("default", "perturbed")
DOUBTS = ("mutual information", "entropy")
NEAR = 0.03  # most area under the curve that a student may lose


def letters(size: int = 28, height: int = 26) -> Images:
    """A to J of the fonts that matplotlib brings (n, size²), as large as the frame: white on black.

    A stand-in for notMNIST, whose letters are these ten.
    """
    found = []
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for path in sorted(folder.glob("*.ttf")):
        font = ImageFont.truetype(str(path), 40)
        for letter in "ABCDEFGHIJ":
            canvas = Image.new("L", (120, 120))
            ImageDraw.Draw(canvas).text((30, 30), letter, fill=255, font=font)
            ink = canvas.crop(canvas.getbbox())
            scale = height / max(ink.size)
            shape = tuple(max(round(side * scale), 1) for side in ink.size)
            framed = Image.new("L", (size, size))
            middle = (size - shape[0]) // 2, (size - shape[1]) // 2
            framed.paste(ink.resize(shape, Image.Resampling.BILINEAR), middle)
            found.append(np.asarray(framed, np.float32).ravel() / 255)
    return np.stack(found)


def measured(seed: int, inputs: str) -> dict[str, Any]:
    """Areas under the curve, gaps and accuracy of one student and of its teacher."""
    x, _, x_test, y_test, fonts = images("fashion")
    kinds = {"test": x_test[:SEEN], "letters": letters(), "font digits": fonts[:SEEN]}
    law = Perturbed(x, mixed=0.25, plain=0.5) if inputs == "perturbed" else None
    found = distill(
        teacher("fashion"),
        key=jax.random.key(seed),
        split=True,
        inputs=law,
        probe=np.concatenate(list(kinds.values())),
    )
    said = found.student.predict(found.probe)
    ends = np.cumsum([len(own) for own in kinds.values()])
    places = dict(zip(kinds, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
    gaps = (found.teacher.mean * (found.teacher.log_chances - said.log_chances)).sum(1)
    row: dict[str, Any] = {
        "gap": {kind: float(gaps[own].mean()) for kind, own in places.items()},
        "gap at strange inputs": found.beyond,
    }
    for name, own in (("teacher", found.teacher), ("student", said)):
        areas = {doubt: _areas(getattr(own, doubt.replace(" ", "_")), places) for doubt in DOUBTS}
        right = {kind: own.mean[where] for kind, where in places.items()}["test"]
        row[name] = {"AUROC by": areas, "accuracy": _accuracy(right, y_test[:SEEN])}
    row["test"] = scored(found.student.predict(x_test), y_test)
    return row


def _accuracy(p: Array, labels: Array) -> float:
    return float(100 * (p.argmax(1) == labels).mean())


def _areas(doubt: Array, places: dict[str, Array]) -> dict[str, float]:
    known = doubt[places["test"]]
    strange = {kind: own for kind, own in places.items() if kind != "test"}
    return {kind: float(auroc(known, doubt[own]).area) for kind, own in strange.items()}


def run(place: harness.Place = PLACE, *, seeds: tuple[int, ...] = (0, 1, 2)) -> dict[str, Any]:
    rows: dict[str, list[Any]] = {inputs: [] for inputs in INPUTS}
    for seed in seeds:
        for inputs in INPUTS:
            make = functools.partial(measured, seed, inputs)
            row = place.kept(f"doubt-{inputs}-{seed}", make)
            if row is not None:
                rows[inputs].append(row)
                print(seed, inputs, row, flush=True)
    lost = [
        harness.at_most(
            f"{inputs} inputs: by {doubt} the student tells letters {NEAR} less well at most",
            harness.statistics([
                row["teacher"]["AUROC by"][doubt]["letters"]
                - row["student"]["AUROC by"][doubt]["letters"]
                for row in own
            ]),
            NEAR,
        )
        for inputs, own in rows.items()
        for doubt in DOUBTS
        if own
    ]  # fmt: skip
    summary = {
        "images": "10,000 of Fashion-MNIST, 784-50-10; A to J of matplotlib's fonts",
        "spread": "standard error of the mean over seeds",
        "inputs": {inputs: harness.over_seeds(own) for inputs, own in rows.items() if own},
        "goals": lost,
    }
    place.write("doubt", summary)
    return summary


if __name__ == "__main__":
    harness.command(run)
