"""What a processor changes in results: `python -m experiments.robustness.processors`.

The same random problems are solved with the kernels of two processors (`tests/processors.py` has
them by name), each in a process of its own, from the data that this processor makes. Counted is
where states, numbers of components, matchings or what is warned of differ, and where a posterior is
further from the other one, in nats, than its own tolerance. Only another number of components of a
pursuit is within the tolerance if the mixtures are. Goes on where an earlier run ended, and
writes `results/processors.json`.
"""

import functools
import itertools
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posterity
from experiments import harness
from experiments.pursuit import modes
from experiments.pursuit.targets import TARGETS
from experiments.robustness import mixtures, problems, situations
from posterity.errors import PosterityError
from posterity.families import DiagonalGaussian, Gaussian, Plate
from posterity.models import LogisticRegression
from posterity.pursuit import Joint
from tests.processors import SETTINGS

RESULTS = Path(__file__).parent / "results"
CACHE = harness.CACHES / "processors-results"
EXACT = 1e-6  # nats allowed between posteriors that are sums
SMALL = 40  # records, so that what users write takes seconds
MIRRORED = list(problems.USERS).index("bilinear")  # the kind after it is the mixture
STEPS = 500  # of a distillation
Outcome = tuple[Any, dict[str, Any]]  # a posterior, None if there is none, and what is told of it


def fuse(seed: int) -> Outcome:
    rng = np.random.default_rng([91, seed])
    if seed % 2:
        made = situations.situation(seed)
    else:
        made = (mixtures.columns, mixtures.moved, _many)[seed // 2 % 3](rng)
    run = posterity.fuse(made.sites)
    labels = {
        path: {site: own.tolist() for site, own in plate.matching.items()}
        for path, plate in run.plates.items()
    }
    numbers = {path: plate.components for path, plate in run.plates.items()}
    told = {"state": run.status.state, "components": numbers, "labels": labels}
    return run.posterior, told | {"rule": str(run.rule), "tolerance": EXACT}


def _many(rng: np.random.Generator) -> situations.Situation:
    """So many sites that a sample of them is clustered first, in groups near one another."""
    prior, factor = situations.wisharts(2, np.ones(2))
    centres = situations.centres_of(rng, 6, 2, float(rng.uniform(1, 4)))
    sites = {}
    for number in range(int(rng.integers(120, 400))):
        own = rng.permutation(6)[: int(rng.integers(2, 6))]
        records = [centres[g] + rng.normal(size=(20, 2)) for g in own]
        law = Plate(situations.total(prior, [factor(x) for x in records]))
        start = Plate(situations.repeated(prior, len(own)))
        sites[f"site {number:03d}"] = situations.ledger(f"site {number:03d}", start, law)
    return situations.Situation("many", sites)


def federate(seed: int) -> Outcome:
    """A logistic regression, or (one in four) a problem with two optima that are mirror images."""
    problem = problems.logistic(seed)
    if seed % 4 == 3:
        places = (len(problems.USERS) * k + MIRRORED + k % 2 for k in itertools.count(10 * seed))
        made = map(problems.users, places)
        problem = next(own for own in made if len(own.pooled[1]) <= SMALL)
    run = posterity.federate(problem.sites, problem.model, problem.prior)
    return run.posterior, {"state": run.status.state, "tolerance": run.status.tolerance}


def pursue(seed: int) -> Outcome:
    rng = np.random.default_rng([37, seed])
    target, base = (_modes, _shape, _joint)[seed % 3](rng)
    run = posterity.pursue(target, base, components=6, key=jax.random.key(seed))
    told = {"state": run.status.state, "components": run.posterior.size}
    return run.posterior, told | {"tolerance": run.status.tolerance}


def _modes(rng: np.random.Generator) -> tuple[Any, Any]:
    """One to five round modes, near or far, in one to six dimensions."""
    size, count = int(rng.integers(1, 7)), int(rng.integers(1, 6))
    means = rng.uniform(1, 6) * rng.normal(size=(count, size))
    law = means, np.exp(rng.normal(size=count) / 2), rng.dirichlet(np.ones(count))
    zero, wide = np.zeros(size), np.full(size, 25.0)
    full = Gaussian.from_standard(zero, np.diag(wide))
    base = full if rng.random() < 0.5 else DiagonalGaussian.from_standard(zero, wide)
    return jax.tree_util.Partial(modes.log_density, *law), base


def _shape(rng: np.random.Generator) -> tuple[Any, Any]:
    """A density that no member of the family is, such as a banana, in other units."""
    shape = list(TARGETS.values())[rng.integers(len(TARGETS))]()
    unit, turn = 10 ** rng.uniform(-2, 2), np.linalg.qr(rng.normal(size=(shape.size, shape.size)))
    moved = lambda turn, z: shape.log_density(turn @ z / jnp.asarray(unit, z.dtype))
    zero, covariance = np.zeros(shape.size), (unit * shape.reach) ** 2 * np.eye(shape.size)
    return jax.tree_util.Partial(moved, turn[0]), Gaussian.from_standard(zero, covariance)


def _joint(rng: np.random.Generator) -> tuple[Any, Any]:
    """A logistic regression of few records."""
    x = rng.normal(size=(int(rng.integers(4, 40)), int(rng.integers(1, 5))))
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-x.sum(1)))).astype(float)
    prior = Gaussian.from_standard(np.zeros(x.shape[1]), 25 * np.eye(x.shape[1]))
    return Joint(LogisticRegression(), prior, (x, y)), "full"


def distill(seed: int) -> Outcome:
    """A few steps of a student of a logistic regression's posterior."""
    rng = np.random.default_rng([41, seed])
    size = int(rng.integers(1, 4))
    teacher = Gaussian.from_standard(rng.normal(size=size), np.diag(rng.uniform(0.1, 2, size)))
    inputs, model = rng.normal(size=(200, size)), LogisticRegression()
    student = posterity.networks.Layers.dense(size, 8, 1)
    run = posterity.distill(teacher, student, model=model, inputs=inputs, steps=STEPS)
    told = {"state": run.status.state, "gap": run.status.left}
    return None, told | {"tolerance": run.status.tolerance}


VERBS: dict[str, Callable[[int], Outcome]] = {
    "fuse": fuse,
    "federate": federate,
    "pursue": pursue,
    "distill": distill,
}


def measured(folder: Path, verb: str, seed: int) -> dict[str, Any]:
    """What a verb makes of one problem; its posterior is saved in the folder."""
    began, path = time.process_time(), folder / f"{verb}-{seed}.safetensors"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            posterior, row = VERBS[verb](seed)
        except PosterityError as error:
            posterior, row = None, {"state": type(error).__name__}
    if posterior is not None:
        posterity.save(posterior, path)
    # Words alone: numbers in them are compared where they decide something.
    words = sorted({re.sub(r"[-+\d.e]*\d", "#", str(own.message))[:60] for own in heard})
    return row | {"heard": words, "CPU seconds": round(time.process_time() - began, 2)}


def compared(verb: str, one: dict[str, Any], other: dict[str, Any], paths: list[Path]) -> Any:
    """What differs between two rows, and the nats between their posteriors."""
    names = ("state", "components", "labels", "rule", "heard")
    differ = [name for name in names if one.get(name) != other.get(name)]
    nats = abs(one.get("gap", 0.0) - other.get("gap", 0.0))
    comparable = verb == "pursue" or "components" not in differ
    if comparable and all(path.exists() for path in paths):
        a, b = map(posterity.load, paths)
        if verb == "pursue":
            both = a.kl(b, key=jax.random.key(0)), b.kl(a, key=jax.random.key(1))
            nats = max(found.value + 3 * found.standard_error for found in both)
        elif np.shape(a.natural_parameters) == np.shape(b.natural_parameters):
            nats = max(float(np.max(a.kl(b))), float(np.max(b.kl(a))))
    if not nats <= one.get("tolerance", np.inf):
        differ.append("posterior")
    return differ, nats


def run(
    *,
    first: int = 0,
    count: int = 200,
    verbs: tuple[str, ...] = tuple(VERBS),
    settings: tuple[str, ...] = ("this-machine", "Prescott"),
    results: Path = RESULTS,
    cache: Path = CACHE,
    only: str = "",
) -> dict[str, Any]:
    """``count`` problems of each verb in both settings; with ``only``, in this process, those of
    the setting that it imitates already.
    """
    keys = [(verb, seed) for verb in verbs for seed in range(first, first + count)]
    if only:
        make = functools.partial(measured, cache / only)
        harness.rows(cache / only / "rows.jsonl", ("verb", "seed"), keys, make)
        return {}
    tables = []
    for name in settings:
        options = ["--first", str(first), "--count", str(count), "--verbs", *verbs]
        options += ["--cache", str(cache), "--only", name]
        command = [sys.executable, "-m", "experiments.robustness.processors", *options]
        environment = {**os.environ, **SETTINGS[name].environment("")}
        subprocess.run(command, env=environment, check=True)
        tables.append(
            harness.rows(cache / name / "rows.jsonl", ("verb", "seed"), keys, lambda *_: {})
        )
    found: dict[str, Any] = {}
    for one, other in zip(*tables, strict=True):
        verb, seed = one["verb"], one["seed"]
        paths = [cache / name / f"{verb}-{seed}.safetensors" for name in settings]
        differ, nats = compared(verb, one, other, paths)
        own = found.setdefault(verb, {"problems": 0, "largest, nats": 0.0, "differ": {}})
        own["problems"] += 1
        if differ:
            within = verb == "pursue" and differ == ["components"]  # the posterior is the same
            told = {"what": differ, "nats": harness.rounded(nats), "within tolerance": within}
            own["differ"][str(seed)] = told
            print(verb, seed, differ, nats, flush=True)
        else:
            own["largest, nats"] = max(own["largest, nats"], harness.rounded(nats))
    document = {
        "settings": {name: SETTINGS[name].environment("") for name in settings},
        "seeds": f"{first} to {first + count - 1}",
        "goals": [
            {
                "goal": f"{verb}: no result hangs on the processor",
                "measured": {"of": own["problems"], "differ": len(own["differ"])},
                "met": all(told["within tolerance"] for told in own["differ"].values()),
            }
            for verb, own in found.items()
        ],
        "verbs": found,
    }
    harness.write(results, "processors", document)
    return document


if __name__ == "__main__":
    harness.command(run, only=("", *SETTINGS))
