"""Deeper networks on MNIST: `python -m experiments.klfusion.networks.deep`.

A perceptron with two hidden layers and LeNet-5 [lecun1998], each trained at two and at five sites
on a part of MNIST, fused layer by layer, beside averages, the ensemble, matched averaging after
FedMA (in one shot: nothing is retrained between layers) and a fit of all data. Writes `deep.json`
into the results of this experiment. Local posteriors are kept under the cache folder.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import posterity
from experiments import harness
from experiments.data import Digits, Images, Integers, mnist
from experiments.klfusion.networks import methods
from experiments.klfusion.networks.evaluate import rounded
from experiments.klfusion.networks.local_fits import DEFAULT_CACHE
from experiments.klfusion.networks.metrics import scores
from experiments.klfusion.networks.other_fusions import Selected, fused_by
from experiments.klfusion.networks.partitions import partition
from experiments.klfusion.networks.predictions import Predictor, alone
from posterity.fusion.networks import Options
from posterity.ledger import Ledger
from posterity.networks import Conv, Dense, GaussianPrior, Layers, train

RESULTS = Path(__file__).parents[1] / "results"
PERCEPTRON, LENET = "784-100-60-10", "LeNet-5"
RAISED = "fused, twice the widths"


@dataclass(frozen=True)
class Deep:
    """A network and how sites train it.

    Attributes:
        layers: of every site.
        images: of MNIST's training set, the first so many, dealt to the sites.
        steps: of a site.
    """

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
    PERCEPTRON: Deep(Layers.dense(784, 100, 60, 10), 60_000, 2000),
    LENET: Deep(lenet(), 20_000, 500),
}
TEMPERATURE, RATE, BATCH, SEED, CONCENTRATION = 0.1, 5e-3, 64, 0, 0.8


def run(
    chosen: dict[str, Deep],
    digits: Digits,
    *,
    cache: Path,
    results: Path,
    sites: Sequence[int] = (2, 5),
) -> dict[str, Any]:
    """Train, fuse, measure and write; returns what `deep.json` holds."""
    start = time.process_time()
    found: dict[str, Any] = {
        "temperature": TEMPERATURE,
        "matched average": "in one shot: layers are matched in turn, nothing is retrained",
        "seed": SEED,
        "networks": {},
    }
    results.mkdir(parents=True, exist_ok=True)
    for name, deep in chosen.items():
        for number in sites:
            rows = measured(name, deep, digits, number, cache)
            found["networks"][f"{name}, {number} sites"] = rows
            found["CPU minutes of this run"] = round((time.process_time() - start) / 60, 1)
            (results / "deep.json").write_text(json.dumps(found, indent=1) + "\n")
            print(f"{name}, {number} sites: {json.dumps(rows[methods.FUSED])}", flush=True)
    return found


def measured(name: str, deep: Deep, digits: Digits, sites: int, cache: Path) -> dict[str, Any]:
    """By method accuracy, log likelihood and widths."""
    y = digits.y_train[: deep.images]
    rows = partition(y, sites, CONCENTRATION, np.random.default_rng((SEED, sites)))
    data = {f"site {j}": (digits.x_train[own], y[own]) for j, own in enumerate(rows)}
    folder = cache / f"deep-{name}-{deep.images}-{deep.steps}-sites{sites}"
    ledgers = {
        own: _fit(folder / f"{own}.safetensors", deep, *images) for own, images in data.items()
    }
    pooled = _fit(
        cache / f"deep-{name}-{deep.images}-{deep.steps}-pooled.safetensors",
        deep,
        digits.x_train[: deep.images],
        y,
    )
    found: dict[str, Any] = {own: alone(ledger.posterior) for own, ledger in ledgers.items()}
    found |= {key: p for key, (p, _) in methods.together(ledgers).items()}
    found |= {key: p for key, (p, _) in methods.averages(ledgers, data, SEED).items()}
    found[methods.POOLED] = alone(pooled.posterior)
    widths: dict[str, Any] = {}
    twice = tuple(2 * width for width in deep.layers.widths)
    for key, components, options in (
        (methods.FUSED, None, Options()),
        (RAISED, twice, Options()),
        (methods.NOT_REFITTED, twice, Options(refit=False)),
    ):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="widths .* still predict")
            fusion = posterity.fuse(
                ledgers, components=components, rule="barycenter", networks=options
            )
        found[key], widths[key] = alone(fusion.posterior), fusion.posterior.layers.widths
    pruned = fused_by(Selected, ledgers, twice)
    found[methods.PRUNED], widths[methods.PRUNED] = alone(pruned), pruned.layers.widths
    return {key: _row(predictor, digits, widths.get(key)) for key, predictor in found.items()}


def _row(predictor: Predictor, digits: Digits, widths: tuple[int, ...] | None) -> dict[str, Any]:
    found: dict[str, Any] = rounded(scores(predictor(digits.x_test), digits.y_test)._asdict())
    return found if widths is None else {"widths": list(widths), **found}


def _fit(path: Path, deep: Deep, x: Images, y: Integers) -> Ledger:
    """The posterior of one site, from the cache if it is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            # As many steps as were asked for; what is compared has all been trained alike.
            warnings.simplefilter("ignore", posterity.errors.ConvergenceWarning)
            trained = train(
                deep.layers,
                (x, y),
                key=jax.random.key(SEED),
                prior=GaussianPrior(variance=_variances(deep.layers)),
                temperature=TEMPERATURE,
                steps=deep.steps,
                batch_size=BATCH,
                learning_rate=RATE,
            )
        partial = path.with_name(f"partial-{path.name}")
        posterity.save(trained.ledger(path.stem), partial)
        partial.replace(path)
    return posterity.load(path)


def _variances(layers: Layers) -> tuple[float, ...]:
    """Of the prior: a dense layer on all pixels as in the main study, other layers wider."""
    return tuple(0.01 if layer.kernel[0] == 784 else 0.09 for layer in layers.layers)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = harness.command_line(__doc__, RESULTS, DEFAULT_CACHE)
    parser.add_argument("--networks", nargs="+", choices=tuple(FULL), default=tuple(FULL))
    parser.add_argument("--sites", type=int, nargs="+", default=[2, 5])
    own = parser.parse_args(arguments)
    chosen = {name: FULL[name] for name in own.networks}
    run(chosen, mnist(), cache=own.cache, results=own.results, sites=own.sites)


if __name__ == "__main__":
    main()
