"""Deeper networks on MNIST: `python -m experiments.klfusion.networks.deep`.

A perceptron with two hidden layers and LeNet-5 [lecun1998], each trained at two and at five sites
on a part of MNIST, fused layer by layer, beside averages, the ensemble, matched averaging after
FedMA (in one shot: nothing is retrained between layers) and a fit of all data. Writes `deep.json`
into the results of this experiment. Local posteriors are kept under the cache folder.
"""

import functools
import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import posterity
from experiments import harness
from experiments.data import Digits, Images, Integers, mnist
from experiments.klfusion.networks import methods
from experiments.klfusion.networks.local_fits import PLACE, partition, trained
from experiments.klfusion.networks.predictions import alone, scores
from posterity.fusion.networks import Options
from posterity.ledger import Ledger
from posterity.networks import Conv, Dense, GaussianPrior, Layers

RAISED = "fused, twice the widths"


@dataclass(frozen=True)
class Deep:
    """Layers of every site, the first so many of MNIST's images, dealt to the sites, and steps."""

    layers: Layers
    images: int
    steps: int


def lenet(side: int = 28, classes: int = 10) -> Layers:
    """LeNet-5 as it is taught: two convolutions with pooling, three dense layers."""
    first = Conv((5, 5), 1, 6, padding="same", pool=2)
    second = Conv((5, 5), 6, 16, pool=2)
    flat = 16 * (side // 2 - 4) ** 2 // 4
    dense = (Dense(flat, 120), Dense(120, 84), Dense(84, classes, "identity"))
    return Layers((first, second, *dense), image=(side, side, 1))


FULL = {
    "784-100-60-10": Deep(Layers.dense(784, 100, 60, 10), 60_000, 2000),
    "LeNet-5": Deep(lenet(), 20_000, 500),
}
TEMPERATURE, RATE, BATCH, SEED, CONCENTRATION = 0.1, 5e-3, 64, 0, 0.8


def run(
    place: harness.Place = PLACE,
    *,
    networks: tuple[str, ...] = tuple(FULL),
    sites: tuple[int, ...] = (2, 5),
    _chosen: Mapping[str, Deep] = FULL,
    _digits: Digits | None = None,
) -> dict[str, Any]:
    """Train, fuse, measure and write; returns what `deep.json` holds."""
    start, digits = time.process_time(), _digits or mnist()
    found: dict[str, Any] = {
        "temperature": TEMPERATURE,
        "matched average": "in one shot: layers are matched in turn, nothing is retrained",
        "seed": SEED,
        "networks": {},
    }
    for name in networks:
        for number in sites:
            rows = measured(name, _chosen[name], digits, number, place.cache)
            found["networks"][f"{name}, {number} sites"] = rows
            found["CPU minutes of this run"] = round((time.process_time() - start) / 60, 1)
            place.write("deep", found)
            print(f"{name}, {number} sites: {json.dumps(rows[methods.FUSED])}", flush=True)
    return found


def measured(name: str, deep: Deep, digits: Digits, sites: int, cache: Path) -> dict[str, Any]:
    """By method accuracy, log likelihood and widths."""
    x, y = digits.x_train[: deep.images], digits.y_train[: deep.images]
    rows = partition(y, sites, CONCENTRATION, np.random.default_rng((SEED, sites)))
    data = {f"site {j}": (x[own], y[own]) for j, own in enumerate(rows)}
    stem = f"deep-{name}-{deep.images}-{deep.steps}"
    ledgers = {
        own: _fit(cache / f"{stem}-sites{sites}" / f"{own}.safetensors", deep, *images)
        for own, images in data.items()
    }
    pooled: Any = _fit(cache / f"{stem}-pooled.safetensors", deep, x, y)
    networks: dict[str, Any] = {own: ledger.posterior for own, ledger in ledgers.items()}
    found: dict[str, Any] = {own: alone(network) for own, network in networks.items()}
    found |= {key: p for key, (p, _) in methods.together(ledgers).items()}
    found |= {key: p for key, (p, _) in methods.averages(ledgers, data, SEED).items()}
    found[methods.POOLED] = alone(pooled.posterior)
    twice = tuple(2 * width for width in deep.layers.widths)
    fuse = functools.partial(posterity.fuse, ledgers, rule="barycenter")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="widths .* still predict")
        fused: dict[str, Any] = {
            methods.FUSED: fuse().posterior,
            RAISED: fuse(components=twice).posterior,
            methods.NOT_REFITTED: fuse(components=twice, networks=Options(refit=False)).posterior,
        }
    fused[methods.PRUNED] = methods.fused_by(methods.Selected, ledgers, twice)
    found |= {key: alone(network) for key, network in fused.items()}
    table = {}
    for key, predictor in found.items():
        widths = {"widths": list(fused[key].layers.widths)} if key in fused else {}
        own = scores(predictor(digits.x_test), digits.y_test)._asdict()
        table[key] = {**widths, **harness.places(own)}
    return table


def _fit(path: Path, deep: Deep, x: Images, y: Integers) -> Ledger:
    """The posterior of one site, from the cache if it is there.

    Prior variances are those of the main study for a dense layer on all pixels, of others wider.
    """
    variances = tuple(0.01 if own.kernel[0] == 784 else 0.09 for own in deep.layers.layers)
    options = {
        "key": jax.random.key(SEED),
        "prior": GaussianPrior(variance=variances),
        "temperature": TEMPERATURE,
        "steps": deep.steps,
        "batch_size": BATCH,
        "learning_rate": RATE,
    }
    return harness.kept_object(path, lambda: trained(path.stem, deep.layers, x, y, **options))


if __name__ == "__main__":
    harness.command(run, networks=FULL)
