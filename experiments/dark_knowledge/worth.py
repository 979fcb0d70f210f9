"""What a student is worth: quality against CPU seconds, and what it knows of doubt.

Run `python -m experiments.dark_knowledge.worth`. Ten thousand and all 60,000 images of
Fashion-MNIST and of MNIST (`--data mnist`, `--records 10000`); 784-50-10. The plug-in
networks are climbs by Adam to a mode with the prior; students are by the library's defaults but for
the lengths that are given. A student's mutual information is compared with its teacher's, and that
of one half of the teacher's draws with the other's, which no student can be expected to surpass.
Rows of `worth.json` of which the cache has nothing stay as they were.
"""

import functools
import itertools
import json
from typing import Any

import jax
import numpy as np
from sklearn.metrics import roc_auc_score

from experiments import harness
from experiments.dark_knowledge import PLACE
from experiments.data import fashion_mnist, font_digits, mnist
from posterity import distill
from posterity.distillation import Draws, Langevin, Perturbed
from posterity.models import NeuralNetwork
from posterity.networks import GaussianPrior, Layers

LAYERS = Layers.dense(784, 50, 10)
FEW, SEEN = 10_000, 2_000
CLIMBS = (2_000, 6_000)
BUDGETS = {
    "two chains, 200 steps": {"chains": 2, "burn_in": 0, "steps": 200},
    "2,000 after 1,000": {"burn_in": 1000, "steps": 2000},
    "default": {},
}
"""Lengths of students' runs."""


SETS = {"fashion": fashion_mnist, "mnist": mnist}


@functools.cache
def images(name: str, records: int = FEW) -> tuple[Any, ...]:
    """Training inputs and labels, test inputs and labels, and digits of computer fonts."""
    data = SETS[name]()
    flat = lambda own: own.reshape(len(own), -1).astype(np.float32)
    train, labels = data.x_train[:records], data.y_train[:records]
    return flat(train), labels, flat(data.x_test), data.y_test, flat(font_digits().x)


def teacher(name: str, records: int = FEW, **options: Any) -> Langevin:
    x, y, *_ = images(name, records)
    net = NeuralNetwork.of_layers(LAYERS)
    return Langevin(net, GaussianPrior().network(LAYERS), (x, y), **options)


def scored(said: Any, labels: Any) -> dict[str, float]:
    """Accuracy in per cent and log likelihood in nats an image."""
    right = (said.mean.argmax(1) == labels).mean()
    return {
        "accuracy": float(100 * right),
        "log likelihood": float(said.log_predictive(labels).mean()),
    }


def plugged_in(name: str, records: int, seed: int, climb: int) -> dict[str, Any]:
    chains = teacher(name, records, chains=1, climb=climb, burn_in=0)
    clock = harness.Clock()
    with jax.enable_x64(False):
        weights = chains.target.constrained(chains.draws(chains.begin(key=jax.random.key(seed))))
    found, seconds = Draws(chains.target.model, weights), clock.seconds
    return {**seconds, **scored(found.predict(images(name)[2]), images(name)[3])}


def distilled(
    name: str, records: int, seed: int, steps: int | None = None, **options: Any
) -> dict[str, Any]:
    own = {} if steps is None else {"steps": steps}
    chains, clock = teacher(name, records, **options), harness.Clock()
    found = distill(chains, key=jax.random.key(seed), **own)
    row = {**clock.seconds, "gap": found.status.left, "R-hat": found.rhat}
    _, _, x, y, _ = images(name)
    return {**row, **scored(found.student.predict(x), y), "status": str(found.status)}


def doubts(name: str, seed: int, inputs: str) -> dict[str, Any]:
    """Mutual information of the student, the teacher and halves of its draws, at strange images."""
    x, _, x_test, _, fonts = images(name)
    rng = np.random.default_rng(seed)
    pairs = fonts[rng.integers(len(fonts), size=(2, SEEN // 2))]
    kinds = {"test": x_test[:SEEN], "fonts": fonts[:SEEN], "between fonts": pairs.mean(0)}
    where = None
    if inputs != "default":
        where = Perturbed(np.concatenate([x, fonts[SEEN:]]), mixed=0.25, plain=0.5)
    probe, key = np.concatenate(list(kinds.values())), jax.random.key(seed)
    found = distill(teacher(name), key=key, split=True, probe=probe, inputs=where)
    assert found.halves is not None
    known = [own.mutual_information for own in (found.teacher, *found.halves)]
    known.append(found.student.predict(found.probe).mutual_information)
    ends = np.cumsum([len(own) for own in kinds.values()])
    split = zip(*(np.split(own, ends[:-1]) for own in known), strict=True)
    parts, strange = dict(zip(kinds, split, strict=True)), np.repeat([0, 1], SEEN)
    both = lambda place: np.concatenate([parts[k][place] for k in ("test", "fonts")])
    area = lambda place: float(roc_auc_score(strange, both(place)))
    correlation = lambda one, other: {
        k: float(np.corrcoef(p[one], p[other])[0, 1]) for k, p in parts.items()
    }
    return {
        "correlation with the teacher": correlation(3, 0),
        "correlation of the halves": correlation(1, 2),
        "mean, of the student over the teacher's": {
            k: float(p[3].mean() / p[0].mean()) for k, p in parts.items()
        },
        "AUROC of fonts": {"teacher": area(0), "student": area(3)},
        "R-hat": found.rhat,
        "gap": found.status.left,
        "shares": found.shares,
    }


def run(
    place: harness.Place = PLACE,
    *,
    data: tuple[str, ...] = tuple(SETS),
    seeds: tuple[int, ...] = (0, 1, 2),
    records: tuple[int, ...] = (FEW, 60_000),
) -> None:
    parts = {}
    for seed, name, number in itertools.product(seeds, data, records):
        label = name if number == FEW else f"{name} of {number:,}"
        for climb in CLIMBS:
            make = functools.partial(plugged_in, name, number, seed, climb)
            parts[f"{label}, plug-in, {climb:,} steps", seed] = make
        for budget, options in BUDGETS.items():
            make = functools.partial(distilled, name, number, seed, **options)
            parts[f"{label}, student, {budget}", seed] = make
    for seed, name in itertools.product(seeds, data):
        for inputs in ("default", "fonts, too"):
            make = functools.partial(doubts, name, seed, inputs)
            parts[f"{name}, doubts, {inputs}", seed] = make
    found: dict[str, list[Any]] = {}
    for (name, seed), make in parts.items():
        row = place.kept(f"worth-{name}-{seed}".replace(" ", "-"), make)
        if row is not None:
            found.setdefault(name, []).append(row)
            print(name, seed, row, flush=True)
    numbers = lambda rows: [{k: v for k, v in row.items() if k != "status"} for row in rows]
    document = {
        "seeds run": {name: len(rows) for name, rows in found.items()},
        "parts": {name: harness.over_seeds(numbers(rows)) for name, rows in found.items()},
        "statuses": {
            name: [row["status"] for row in rows]
            for name, rows in found.items()
            if "status" in rows[0]
        },
    }
    before = place.results / "worth.json"
    known = json.loads(before.read_text()) if before.exists() else {}
    kept = ("seeds run", "parts", "statuses")
    place.write("worth", document | {key: known.get(key, {}) | document[key] for key in kept})


if __name__ == "__main__":
    harness.command(run, data=SETS)
