"""Five sites, fused, then distilled: `python -m experiments.dark_knowledge.pipeline`.

Each site trains a network of 150 units on its own share of MNIST; only their posteriors travel.
They are fused, and the fused network is distilled into one of 150 units, with no image of any
site: the student listens on generated inputs, or on digits of computer fonts without labels.
Held against it is what the units of all five side by side predict (750 units). Writes
`pipeline.json`.
"""

import functools
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import posterity
from experiments import harness
from experiments.dark_knowledge import RESULTS
from experiments.dark_knowledge.moved import Moved
from experiments.data import Array, Digits, Images, font_digits, mnist
from experiments.klfusion.networks import methods
from experiments.klfusion.networks.local_fits import CACHE, Case, local_fits
from experiments.klfusion.networks.predictions import alone, scores
from posterity.distillation import Box, Draws, Inputs, Mixup, Perturbed
from posterity.errors import ConvergenceWarning
from posterity.families import Network
from posterity.models import NeuralNetwork
from posterity.networks import Layers

PLACE = harness.Place(RESULTS, Path(tempfile.gettempdir()) / "posterity-dark-pipeline")
UNITS = 150
GOAL, FUSED = "concatenation", "fused (product)"
KINDS = ("accuracy", "log likelihood")


@dataclass(frozen=True)
class Effort:
    steps: int = 20_000  # of a student
    batch: int = 100  # inputs of a step
    rate: float = 1e-3  # of Adam
    samples: int = 20  # draws of the fused weights that are kept to teach


def kinds(public: Images) -> dict[str, Inputs]:
    """Where a student can listen without any site's data; ``public`` (n, side, side)."""
    flat = public.reshape(len(public), -1)
    width = flat.shape[1]
    return {
        "uniform noise": Box(np.zeros(width), np.ones(width)),
        "fonts": Perturbed(flat, noise=0.0),
        "fonts, perturbed": Perturbed(flat, noise=0.1),
        "fonts, mixed": Mixup(flat),
        "fonts, bent": Moved(public),
    }


def reference(x: Images) -> dict[str, Inputs]:
    """What may not be had, for comparison: the sites' own images (n, side, side)."""
    return {"the sites' images, perturbed (not allowed)": Perturbed(x.reshape(len(x), -1), 0.1)}


@dataclass(frozen=True)
class Trial:
    """One partition; ``inputs`` are names of where students listen, none for all there are."""

    case: Case
    digits: Digits
    public: Images
    effort: Effort
    place: harness.Place
    fits: Path
    inputs: tuple[str, ...] = ()

    def run(self) -> dict[str, Any]:
        """Everything about it, from the cache where it is there."""
        rows = self.place.kept(self.case.name, self._together) or {}
        for name, inputs in (kinds(self.public) | reference(self.digits.x_train)).items():
            if name in self.inputs or not self.inputs:
                make = functools.partial(self._distilled, inputs)
                row = self.place.kept(f"{self.case.name}-{name.replace(' ', '-')}", make)
                if row is not None:
                    rows[name] = row
                    print(f"partition {self.case.number}, {name}: {row}", flush=True)
        return rows

    @functools.cached_property
    def fused(self) -> Network:
        return methods.capped(self.sites)

    @functools.cached_property
    def sites(self) -> methods.Sites:
        return local_fits(self.fits, self.case, self.digits)

    def _together(self) -> dict[str, Any]:
        fused = alone(self.fused), sum(self.fused.layers.widths)
        together = methods.together(self.sites) | {FUSED: fused}
        return {name: self._row(*own) for name, own in together.items()}

    def _distilled(self, inputs: Inputs) -> dict[str, Any]:
        fused, own, clock = self.fused, self.effort, harness.Clock()
        layers = fused.layers
        student = Layers.dense(layers.inputs, min(UNITS, *layers.widths), layers.outputs)
        # The fused network at the mean of its weights, which predicts best.
        teacher = Draws(NeuralNetwork.of_layers(layers), np.asarray(fused.mean)[None])
        options = {"steps": own.steps, "batch_size": own.batch, "learning_rate": own.rate}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the status is kept
            key = jax.random.key(self.case.number)
            found = posterity.distill(teacher, student, key=key, inputs=inputs, **options)
        row = self._row(lambda x: found.student.predict(x).mean, sum(student.widths))
        return row | {"steps": own.steps, "status": str(found.status), **clock.seconds}

    def _row(self, predict: Callable[[Images], Array], units: int) -> dict[str, Any]:
        x, y = self.digits.x_test, self.digits.y_test
        own = scores(predict(x.reshape(len(x), -1)), y)
        return {
            "units": units,
            "accuracy": round(own.accuracy, 3),
            "log likelihood": round(own.log_likelihood, 5),
        }


def summarise(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for rows in trials for name in rows))
    having = {name: [rows for rows in trials if name in rows] for name in names}
    table = {
        name: {
            "units": own[0][name]["units"],
            "partitions": len(own),
            **{kind: harness.statistics([rows[name][kind] for rows in own]) for kind in KINDS},
        }
        for name, own in having.items()
    }
    return {
        "partitions": len(trials),
        "spread": "standard error of the mean over partitions",
        "teacher": "the fused network at the mean of its weights",
        "table": table,
        "goals": [_goal(name, own) for name, own in having.items() if "steps" in own[0][name]],
        "by partition": list(trials),
    }


def _goal(name: str, trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of partitions that have these inputs, each against its own concatenation."""
    ahead = {kind: [rows[name][kind] - rows[GOAL][kind] for rows in trials] for kind in KINDS}
    return {
        "goal": f"{UNITS} units at least as good as the concatenation of all, on average: {name}",
        "partitions": len(trials),
        "ahead by": {kind: harness.statistics(values) for kind, values in ahead.items()},
        "met": bool(all(np.mean(values) >= 0 for values in ahead.values())),
    }


def run(
    place: harness.Place = PLACE,
    *,
    partitions: tuple[int, ...] = (0, 1, 2),
    inputs: tuple[str, ...] = (),
    fits: Path = CACHE,
    _digits: Digits | None = None,
    _public: Images | None = None,
    _case: Case | None = None,
    _effort: Effort = Effort(),
) -> dict[str, Any]:
    """Train, fuse, distil, measure, judge and write; returns what `pipeline.json` holds.

    ``inputs`` are names of some of them, ``fits`` is the folder of local fits.
    """
    digits = _digits or mnist()
    public = font_digits(one_per_family=False).x if _public is None else _public
    cases = [replace(_case or Case(), number=number) for number in partitions]
    trials = [Trial(own, digits, public, _effort, place, fits, inputs).run() for own in cases]
    summary = summarise([rows for rows in trials if rows]) | {"effort": repr(_effort)}
    place.write("pipeline", summary)
    return summary


if __name__ == "__main__":
    harness.command(run)
