"""Sites that disagree, on Fashion-MNIST: `python -m experiments.klfusion.networks.apart`.

Five sites train on clothes dealt out in Dirichlet proportions; their networks are fused. How good
predictions are, and how well what they are unsure of tells strange images from clothes, by the
sites' ensemble, by the fused network at its mean, with draws, and as `posterity.networks.describe`
has it. Strange are digits of fonts and of MNIST and, with `--letters` the file
`t10k-images-idx3-ubyte.gz` of notMNIST, letters. Writes `apart.json` into the results; a run that
was stopped goes on.
"""

import dataclasses
import functools
import gzip
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import posterity
from experiments import harness
from experiments.data import Array, Digits, Images, fashion_mnist, font_digits, intensities, mnist
from experiments.klfusion.networks.local_fits import CACHE, PLACE, PLAIN, Case, local_fits
from experiments.klfusion.networks.predictions import auroc, entropy, scores
from posterity.networks import Prediction, describe

PLACE = dataclasses.replace(PLACE, cache=CACHE / "fashion")
CHOSEN, STEPS, MOST = 3, 2000, 3000
"""Partitions on which the formula was chosen; steps of a site; strange images of each kind."""
ENSEMBLE, AT_MEAN, DRAWS, OURS = "ensemble", "fused, at the mean", "fused, 20 draws", "fused"
Rows = dict[str, dict[str, float]]


def cases(partitions: int = 9) -> dict[str, list[Case]]:
    own = [Case(0.5, number, steps=STEPS) for number in range(partitions)]
    return {
        "Dirichlet(0.5), chosen on these": own[:CHOSEN],
        "Dirichlet(0.5)": own[CHOSEN:],
        "Dirichlet(0.1)": [Case(0.1, 0, steps=STEPS)],
        "Dirichlet(100), half the steps": [Case(100.0, 0, steps=STEPS // 2)],
        "half the steps": [Case(0.5, 21, steps=STEPS // 2)],
        "ten sites, half the steps": [Case(0.5, 22, 10, steps=STEPS // 2)],
        "full KL": [Case(0.5, 20, setting=PLAIN, steps=STEPS)],
    }


def strange_images(letters: Path | None) -> dict[str, Images]:
    found = {"fonts": font_digits().x[::3][:MOST], "MNIST": mnist().x_test[:MOST]}
    if letters is not None:
        content = gzip.decompress(letters.read_bytes())
        images = np.frombuffer(content, np.uint8, offset=16).reshape(-1, 28, 28)
        found["letters"] = intensities(images[:MOST])
    return found


def measured(case: Case, cache: Path, data: Digits, strange: Mapping[str, Images]) -> Rows:
    """Scores and areas of each way to predict, of one partition."""
    sites = local_fits(cache, case, data)
    fused = posterity.fuse(sites).posterior
    said = lambda how: {k: how(x) for k, x in {"": data.x_test, **strange}.items()}
    alone = [said(lambda x, q=one.posterior: describe(q, x, samples=0)) for one in sites.values()]
    together = {
        kind: Prediction.of_classes(
            np.logaddexp.reduce([own[kind].log_chances for own in alone]) - np.log(len(alone)),
            np.mean([own[kind].entropy for own in alone], 0),
        )
        for kind in alone[0]
    }
    predictions = {
        ENSEMBLE: together,
        AT_MEAN: said(lambda x: describe(fused, x, samples=0)),
        DRAWS: said(lambda x: describe(fused, x, samples=20)),
        OURS: said(lambda x: describe(fused, x)),
    }
    rows = {how: _row(found, data.y_test) for how, found in predictions.items()}
    rows[OURS]["hidden units"] = sum(fused.layers.widths)
    return rows


def _row(found: Mapping[str, Prediction], labels: Array) -> dict[str, float]:
    chances, usual = np.asarray(found[""].mean, float), found[""]
    row = scores(chances, labels)._asdict()
    for kind, other in found.items():
        if kind:
            row[f"{kind}, by entropy"] = auroc(entropy(chances), entropy(other.mean)).area
            both = usual.mutual_information, other.mutual_information
            row[f"{kind}, by mutual information"] = auroc(*both).area
    return harness.places(row)


def run(
    place: harness.Place = PLACE,
    *,
    letters: Path | None = None,
    partitions: int = 9,
    quick: bool = False,
    _chosen: Mapping[str, Sequence[Case]] | None = None,
    _digits: Digits | None = None,
    _strange: Mapping[str, Images] | None = None,
) -> dict[str, Any]:
    """Train, fuse, measure and write; returns what `apart.json` holds."""
    chosen = _chosen or ({"quick": [Case(0.5, 0, 2, steps=50)]} if quick else cases(partitions))
    data, strange = _digits or fashion_mnist(), _strange or strange_images(letters)
    found: dict[str, Any] = {}
    digests = {k: hashlib.sha256(x.tobytes()).hexdigest()[:12] for k, x in strange.items()}
    for name, own in chosen.items():
        makes = [functools.partial(measured, case, place.cache, data, strange) for case in own]
        rows = [
            place.kept(f"measured/{case.name}", make, digests)
            for case, make in zip(own, makes, strict=True)
        ]
        if rows:
            found[name] = {"mean": harness.over_seeds(rows), "by partition": rows}
            print(name, rows, flush=True)
    summary = {
        "setting": "784-150-10, Gaussian prior, KL x 0.1 where not said otherwise",
        "seeds": "of a partition: its number, the sites and the concentration; see local_fits.py",
        "strange images, first digits of SHA-256": digests,
        "studies": found,
        "goals": goals(found),
    }
    place.write("apart", summary)
    return summary


def goals(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was to be shown on partitions that nothing was chosen on."""
    rows = found.get("Dirichlet(0.5)", {"by partition": []})["by partition"]
    if not rows:
        return []
    less = lambda how, key: harness.statistics([row[OURS][key] - row[how][key] for row in rows])
    kinds = [key for key in rows[0][OURS] if key.endswith("by entropy")]
    wanted = [
        ("log likelihood no worse than at the mean", AT_MEAN, "log_likelihood", 0),
        ("accuracy no worse than at the mean", AT_MEAN, "accuracy", 0),
        *((f"{k}: area within .03 of the ensemble's", ENSEMBLE, k, -0.03) for k in kinds),
    ]
    return [harness.at_least(goal, less(how, key), bound) for goal, how, key, bound in wanted]


if __name__ == "__main__":
    harness.command(run)
