"""Table 2, figures 1 and 5 of the paper: `python -m experiments.klfusion.networks.run`.

Five sites with other shares of MNIST's digits each train a Bayesian network; the networks are fused
in several ways. Writes `networks.json`, `networks-figure1.png` and `networks-figure5.png` into the
results of this experiment. Local posteriors and what was measured of each partition are kept under
the cache folder: a run that was stopped goes on where it was.
"""

import functools
import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

import posterity
from experiments import harness
from experiments.data import Array, Digits, Images, font_digits, mnist
from experiments.klfusion.networks import methods, summary
from experiments.klfusion.networks.local_fits import (
    HORSESHOE,
    PLACE,
    PLAIN,
    TEMPERED,
    Case,
    local_fits,
)
from experiments.klfusion.networks.predictions import (
    Predictor,
    alone,
    auroc,
    drawn,
    entropy,
    scores,
)
from experiments.klfusion.networks.summary import HORSESHOE_ROW, MAIN, Rows

LESS = 2000  # steps of a site where more is not needed to compare methods


@dataclass(frozen=True)
class Effort:
    """Draws of the weights for a prediction; steps of a site in a round of refinement, and rate."""

    samples: int = 10
    steps: int = 250
    rate: float = 2e-3


@dataclass(frozen=True)
class Trial:
    """One partition, all images, and strange ones of the same classes with their labels."""

    case: Case
    digits: Digits
    strange: tuple[Images, Array]
    effort: Effort
    place: harness.Place

    @functools.cached_property
    def sites(self) -> methods.Sites:
        """The sites' posteriors, trained or read where something of them is not yet measured."""
        return local_fits(self.place.cache, self.case, self.digits)

    @property
    def data(self) -> methods.Data:
        rows = self.case.rows(self.digits.y_train)
        own = [(self.digits.x_train[r], self.digits.y_train[r]) for r in rows]
        return dict(zip(self.sites, own, strict=True))

    def kept(self, part: str, known: Rows, again: bool) -> Rows:
        """What a part of the measurements finds, from the cache if it is there."""

        def make() -> Rows:
            with warnings.catch_warnings():
                # A width that does not meet the tolerance stands in the results.
                warnings.filterwarnings("ignore", message="widths .* still predict")
                return PARTS[part](self, known)

        name = f"{self.case.name}/{part}"
        if again and part in OURS:
            (self.place.cache / f"{name}.json").unlink(missing_ok=True)
        return self.place.kept(name, make) or {}


def _flat(images: Images) -> Images:
    return images.reshape(len(images), -1)


def _scores(trial: Trial, predictor: Predictor) -> dict[str, float]:
    chances = predictor(_flat(trial.digits.x_test))
    return harness.places(scores(chances, trial.digits.y_test)._asdict())


def _at_means(trial: Trial, found: methods.Found) -> Rows:
    return {
        name: {"units": units, "at means": _scores(trial, predictor)}
        for name, (predictor, units) in found.items()
    }


def sampled(trial: Trial, network: Any, **more: Any) -> Rows:
    """Scores with draws and at means; entropies of usual and strange images, also by digit."""
    predictor = drawn(network, jax.random.key(trial.case.number), trial.effort.samples)
    images = [(trial.digits.x_test, trial.digits.y_test), trial.strange]
    usual, strange = (entropy(predictor(_flat(x))) for x, _ in images)
    sure = [entropy(alone(network)(_flat(x))) for x, _ in images]
    by_digit = lambda values, y: [round(float(values[y == k].mean()), 4) for k in np.unique(y)]
    return {
        "units": sum(network.layers.widths),
        "with draws": _scores(trial, predictor),
        "at means": _scores(trial, alone(network)),
        "AUROC": harness.places(auroc(usual, strange)._asdict()),
        "AUROC at means": harness.places(auroc(*sure)._asdict()),
        "entropy by digit": {
            "usual": by_digit(usual, images[0][1]),
            "strange": by_digit(strange, images[1][1]),
        },
        **more,
    }


def _locals(trial: Trial, _: Rows) -> Rows:
    """Each site, and how many units have an outgoing weight two deviations from zero."""
    rows = {}
    for name, network in zip(trial.sites, methods.posteriors(trial.sites), strict=True):
        mean, variance = (
            network.layers.unravel(a)[-1]["kernel"] for a in (network.mean, network.variance)
        )
        alive = int((np.abs(mean) >= 2 * np.sqrt(variance)).any(1).sum())
        rows[name] = sampled(trial, network, alive=alive)
    return rows


def _fused(trial: Trial, _: Rows) -> Rows:
    """A barycentre, which is as unsure as a site is, and the product of that width."""
    start = time.process_time()
    fusion: Any = posterity.fuse(trial.sites, rule="barycenter")
    seconds = {"CPU seconds of fusing": round(time.process_time() - start, 1)}
    width = fusion.posterior.layers.widths
    product = posterity.fuse(trial.sites, components=width, rule="product").posterior
    found = {methods.FUSED: sampled(trial, fusion.posterior, **seconds)}
    return found | {methods.PRODUCT: sampled(trial, product)}


def _rounds(trial: Trial, known: Rows) -> Rows:
    units, own, number = known[methods.FUSED]["units"], trial.effort, trial.case.number
    fusion: Any = posterity.fuse(trial.sites, components=units, rule="barycenter")
    random = methods.random_start(fusion.posterior, number)
    options = {"steps": own.steps, "rate": own.rate, "seed": number}
    return {
        name: sampled(trial, methods.refined(ledger, trial.data, **options))
        for name, ledger in {methods.REFINED: fusion.ledger, methods.RANDOM: random}.items()
    }


PARTS: dict[str, Callable[[Trial, Rows], Rows]] = {
    "locals": _locals,
    "fused": _fused,
    "capped": lambda trial, _: {methods.CAPPED: sampled(trial, methods.capped(trial.sites))},
    "rounds": _rounds,
    "options": lambda trial, known: _at_means(
        trial, methods.fused_otherwise(trial.sites, known[methods.FUSED]["units"])
    ),
    "together": lambda trial, _: _at_means(trial, methods.together(trial.sites)),
    "averages": lambda trial, _: _at_means(
        trial, methods.averages(trial.sites, trial.data, trial.case.number)
    ),
    "published": lambda trial, _: _at_means(trial, methods.published(trial.sites)),
    "pooled": lambda trial, _: {methods.POOLED: sampled(trial, methods.posteriors(trial.sites)[0])},
}
"""By name; each is told what parts before it found on the partition."""
OURS = ("fused", "capped", "rounds", "options")
"""Parts that change with the library: `--again` measures them anew."""


@dataclass(frozen=True)
class Study:
    """So many partitions of one kind, the first of which is ``case``, and parts to be measured.

    ``rarely`` are parts that only the first ``rare`` partitions have, for they take long.
    """

    case: Case
    partitions: int
    parts: tuple[str, ...]
    rarely: tuple[str, ...] = ()
    rare: int = 3


USUAL = ("locals", "together", "fused")
SHORT = ("together", "fused", "options")


def every_study(main: int = 10, others: int = 2, rare: int = 3) -> dict[str, Study]:
    """By name; ``main`` partitions for table 2 and the horseshoe, about ``others`` for what stands
    beside them.

    Of the main study's, the first ``rare`` also have rounds, other options and other averages.
    """
    few, widths = max(1, others // 2), (100, 125, 150, 175, 200)
    rarely = ("rounds", "options", "averages", "published")
    found = {
        MAIN: Study(Case(), main, (*USUAL, "capped"), rarely, rare),
        "pooled": Study(Case(sites=1), 1, ("pooled",)),
        HORSESHOE_ROW: Study(Case(setting=HORSESHOE, steps=LESS), main, USUAL),
        "Gaussian, full KL, Dirichlet(0.8)": Study(Case(setting=PLAIN, steps=LESS), few, SHORT),
        "20 sites": Study(Case(sites=20, steps=LESS // 2), few, SHORT),
        "widths 100 to 200": Study(Case(widths=widths, steps=LESS), few, SHORT),
    }
    for concentration in (0.1, 100.0):
        for setting, number in ((TEMPERED, others), (PLAIN, few), (HORSESHOE, few)):
            name = "Gaussian, full KL" if setting == PLAIN else setting
            case = Case(concentration, setting=setting, steps=LESS)
            found[f"{name}, Dirichlet({concentration:g})"] = Study(case, number, SHORT)
    return found


def run(
    place: harness.Place = PLACE,
    *,
    partitions: int = 10,
    others: int = 2,
    rare: int = 3,
    again: bool = False,
    study: str = "",
    _chosen: Mapping[str, Study] | None = None,
    _digits: Digits | None = None,
    _strange: Any = None,
    _effort: Effort = Effort(),
) -> dict[str, Any]:
    """Train, measure, judge, draw and write; returns what `networks.json` holds.

    ``partitions`` are those of the main study, ``rare`` of these have what takes long, ``others``
    is about how many other studies have. Only ``study`` is run if it is named; the others then
    stay as the results have them.
    """
    start, measured = time.process_time(), {}
    chosen, digits = _chosen or every_study(partitions, others, rare), _digits or mnist()
    if study:
        chosen = {study: chosen[study]}
    if _strange is None:
        fonts = font_digits()
        _strange = fonts.x, fonts.y
    trial_of = lambda case: Trial(case, digits, _strange, _effort, place)
    for name, own in chosen.items():
        for number in range(own.partitions):
            trial = trial_of(replace(own.case, number=number))
            rows: Rows = {}
            for part in (*own.parts, *(own.rarely if number < own.rare else ())):
                rows |= trial.kept(part, rows, again)
            if rows:
                measured.setdefault(name, []).append(rows)
                print(f"{name}: partition {number + 1} of {own.partitions}", flush=True)
    found = summary.summarise(measured)
    if not place.only_kept:
        found["CPU minutes of this run"] = round((time.process_time() - start) / 60, 1)
    if study:
        found = summary.with_study(json.loads((place.results / "networks.json").read_text()), found)
    place.write("networks", found)
    if study:
        return found
    first = trial_of(chosen[MAIN].case)
    predictor = drawn(methods.capped(first.sites), jax.random.key(0), _effort.samples)
    summary.figure1(digits, predictor(_flat(digits.x_test)), place.results)
    summary.figure5(measured[MAIN], place.results)
    return found


if __name__ == "__main__":
    harness.command(run)
