"""Everything that is measured on one partition, as numbers that a JSON file keeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import posterity
from experiments.data import Array, Digits, Images, Integers
from experiments.klfusion.networks import methods
from experiments.klfusion.networks.local_fits import Case
from experiments.klfusion.networks.metrics import auroc, entropy, scores
from experiments.klfusion.networks.predictions import Predictor, alone, drawn
from posterity.families import Network


@dataclass(frozen=True)
class Effort:
    """How much is done.

    Attributes:
        samples: draws of the weights for a prediction.
        steps: of a site in a round of refinement.
        rate: of learning there.
    """

    samples: int = 10
    steps: int = 250
    rate: float = 2e-3


@dataclass(frozen=True)
class Trial:
    """One partition: its sites' posteriors, all images, and strange ones of the same classes."""

    case: Case
    sites: methods.Sites
    digits: Digits
    strange: Images
    strange_labels: Integers
    effort: Effort

    @property
    def data(self) -> methods.Data:
        """The sites' own training images."""
        rows = self.case.rows(self.digits.y_train)
        own = [(self.digits.x_train[r], self.digits.y_train[r]) for r in rows]
        return dict(zip(self.sites, own, strict=True))


Rows = dict[str, Any]


def _locals(trial: Trial, _: Rows) -> Rows:
    networks = zip(trial.sites, methods.posteriors(trial.sites), strict=True)
    return {name: sampled(trial, network, _surest(trial, network)) for name, network in networks}


def _surest(trial: Trial, network: Network) -> Rows:
    """How many units have an outgoing weight two deviations from zero."""
    last = len(network.layers) - 1
    mean = network.layers.unravel(network.mean)[last]["kernel"]
    variance = network.layers.unravel(network.variance)[last]["kernel"]
    return {"alive": int((np.abs(mean) >= 2 * np.sqrt(variance)).any(1).sum())}


def _fused(trial: Trial, _: Rows) -> Rows:
    """A barycentre, which is as unsure as a site is, and the product of that width."""
    start = time.process_time()
    fusion = posterity.fuse(trial.sites, rule="barycenter")
    seconds = {"CPU seconds of fusing": round(time.process_time() - start, 1)}
    width = fusion.posterior.layers.widths
    product = posterity.fuse(trial.sites, components=width, rule="product").posterior
    return {
        methods.FUSED: sampled(trial, fusion.posterior, seconds),
        methods.PRODUCT: sampled(trial, product),
    }


def _capped(trial: Trial, _: Rows) -> Rows:
    """The product at the paper's width, or at all units there are."""
    return {methods.CAPPED: sampled(trial, methods.capped(trial.sites))}


def _rounds(trial: Trial, known: Rows) -> Rows:
    """A round from what was fused, and one from nothing."""
    units = known[methods.FUSED]["units"]
    fusion = posterity.fuse(trial.sites, components=units, rule="barycenter")
    assert fusion.ledger is not None  # sites came as ledgers
    own, found = trial.effort, {}
    starts = {
        methods.REFINED: fusion.ledger,
        methods.RANDOM: methods.random_start(fusion.posterior, trial.case.number),
    }
    for name, ledger in starts.items():
        refined = methods.refined(
            ledger, trial.data, steps=own.steps, rate=own.rate, seed=trial.case.number
        )
        found[name] = sampled(trial, refined)
    return found


def _options(trial: Trial, known: Rows) -> Rows:
    """Other ways to fuse, at the width that was found."""
    return _at_means(trial, methods.fused_otherwise(trial.sites, known[methods.FUSED]["units"]))


def _together(trial: Trial, _: Rows) -> Rows:
    return _at_means(trial, methods.together(trial.sites))


def _averages(trial: Trial, _: Rows) -> Rows:
    return _at_means(trial, methods.averages(trial.sites, trial.data, trial.case.number))


def _published(trial: Trial, _: Rows) -> Rows:
    return _at_means(trial, methods.published(trial.sites))


def _pooled(trial: Trial, _: Rows) -> Rows:
    return {methods.POOLED: sampled(trial, methods.posteriors(trial.sites)[0])}


PARTS: dict[str, Callable[[Trial, Rows], Rows]] = {
    "locals": _locals,
    "fused": _fused,
    "capped": _capped,
    "rounds": _rounds,
    "options": _options,
    "together": _together,
    "averages": _averages,
    "published": _published,
    "pooled": _pooled,
}
"""By name; each is told what parts before it found on the partition."""


def _at_means(trial: Trial, found: methods.Found) -> Rows:
    return {
        name: {"units": units, "at means": _scores(trial, predictor)}
        for name, (predictor, units) in found.items()
    }


def sampled(trial: Trial, network: Network, more: Rows | None = None) -> Rows:
    """Scores with draws and at means; entropies of usual and strange images, also by digit."""
    predictor = drawn(network, jax.random.key(trial.case.number), trial.effort.samples)
    x, strange_x = (_flat(images) for images in (trial.digits.x_test, trial.strange))
    probabilities = predictor(x)
    usual, strange = entropy(probabilities), entropy(predictor(strange_x))
    sure = [entropy(alone(network)(images)) for images in (x, strange_x)]
    return {
        "units": sum(network.layers.widths),
        "with draws": rounded(scores(probabilities, trial.digits.y_test)._asdict()),
        "at means": _scores(trial, alone(network)),
        "AUROC": rounded(auroc(usual, strange)._asdict()),
        "AUROC at means": rounded(auroc(*sure)._asdict()),
        "entropy by digit": {
            "usual": by_digit(usual, trial.digits.y_test),
            "strange": by_digit(strange, trial.strange_labels),
        },
        **(more or {}),
    }


def by_digit(values: Array, labels: Integers) -> list[float]:
    """The mean over the images of each class."""
    return [round(float(values[labels == digit].mean()), 4) for digit in np.unique(labels)]


def _scores(trial: Trial, predictor: Predictor) -> dict[str, float]:
    probabilities = predictor(_flat(trial.digits.x_test))
    return rounded(scores(probabilities, trial.digits.y_test)._asdict())


def _flat(images: Images) -> Images:
    return images.reshape(len(images), -1)


def rounded(numbers: dict[str, float]) -> dict[str, float]:
    """To four places, which is more than is known."""
    return {name: round(value, 4) for name, value in numbers.items()}
