"""Other divergences on the mixtures of figure 3: `python -m experiments.klfusion.divergences`.

The same local fits are fused by KL's two directions, Jeffreys' divergence and Rényi's of order 1/2,
against the heterogeneity of sites: with the number of components found, given, and judged again.
Beside the errors of figure 3 there is the log likelihood of observations at ten new sites. Writes
`divergences.json` and `divergences.png`. Local fits are shared with `gmm`; errors are kept beside
them, under `divergences`, so that a stopped run goes on: remove that folder to measure anew.
"""

import functools
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import posterity
from experiments import harness
from experiments.klfusion.gmm import (
    PLACE,
    hausdorff,
    mean_and_error,
    plate,
    predictive_log_prob,
    size_error,
)
from experiments.klfusion.local_fits import (
    POINTS,
    Array,
    Point,
    Problem,
    Repetition,
    draw_problem,
    fill_cache,
    load_point,
    perturb_covariances,
    sample_mixture,
)
from posterity.errors import IdentificationWarning

DIVERGENCES = ("reverse", "forward", "jeffreys", "renyi")
MEASURES = ("hausdorff", "size error", "held-out log likelihood")
TITLES = (
    "Hausdorff distance of means",
    "error in the number of components",
    "held-out log likelihood, less 'reverse'",
)
NEW_SITES, NEW_POINTS = 10, 300
SHOWN = tuple(point for point in POINTS if point.figure == 3)
GIVEN = ", number given"
AGAIN = ", number judged again"
ROWS = (*DIVERGENCES, *(name + GIVEN for name in DIVERGENCES), "jeffreys" + AGAIN)
"""All methods: a divergence, and how the number of components came about."""


def new_observations(problem: Problem, point: Point, repetition: int) -> Array:
    """(3000, d) observations of ten sites that nobody has fitted, of the same global components."""
    rng = np.random.default_rng([point.figure, point.index, repetition, 1])
    drawn = []
    for _ in range(NEW_SITES):
        centres = rng.normal(problem.means, point.heterogeneity)
        shapes = perturb_covariances(rng, problem.covariances)
        drawn.append(sample_mixture(rng, centres, shapes, NEW_POINTS))
    return np.concatenate(drawn)


def fused_by(name: str, sites: Mapping[str, posterity.Plate], true: int) -> posterity.Fusion:
    """A row of the table. A number is judged again within two of the one that was found: that is
    taken whose matching is described shortest.
    """
    divergence = name.split(",")[0]
    fuse = lambda number=None: posterity.fuse(sites, divergence=divergence, components=number)
    if not name.endswith(AGAIN):
        return fuse(true if name.endswith(GIVEN) else None)
    found = fuse().components
    numbers = range(max(found - 2, *(site.size for site in sites.values())), found + 3)
    return min(map(fuse, numbers), key=lambda f: f.plate.confidence.clustering.objective)


def errors(
    name: str, point: Point, number: int, repetition: Repetition
) -> tuple[float, int, float, float]:
    """The measures of one method at one repetition (log likelihood in nats), and its seconds."""
    held_out = new_observations(draw_problem(point, number), point, number)
    weights = [posterity.Dirichlet.from_standard(s.weight_concentration) for s in repetition.sites]
    pairs = zip(repetition.sites, weights, strict=True)
    sites = {f"{index:04d}": plate(*own) for index, own in enumerate(pairs)}
    start, truth = time.perf_counter(), repetition.true_means
    posterior: Any = fused_by(name, sites, len(truth)).posterior
    seconds, means = time.perf_counter() - start, np.asarray(posterior.members.mean)
    likelihood = float(np.mean(predictive_log_prob(posterior, held_out)))
    return hausdorff(means, truth), size_error(means, truth), likelihood, seconds


def measure(
    place: harness.Place, points: Sequence[Point], repetitions: int, names: Sequence[str]
) -> dict[Point, dict[str, Array]]:
    """Errors (R, 4) by point and method; what was measured before is read back."""
    found = {}
    for point in points:
        fits = list(load_point(place.cache, point, repetitions))
        found[point] = {}
        for name in names:
            parts = [(f"divergences/{point.name}-{n:03d}-{name}", n, own) for n, own in fits]
            rows = [place.kept(at, functools.partial(errors, name, point, *r)) for at, *r in parts]
            found[point][name] = np.array(rows)
    return found


def table(rows: Mapping[str, Array]) -> dict[str, Any]:
    """Means with standard errors, also of the paired difference to the default, by method."""
    found: dict[str, Any] = {}
    for method, values in rows.items():
        less = values - rows["reverse" + GIVEN * method.endswith(GIVEN)]
        found[method] = {
            name: mean_and_error(values[:, i]) | {"less the default": mean_and_error(less[:, i])}
            for i, name in enumerate(MEASURES)
        }
        found[method]["seconds, median"] = round(float(np.median(values[:, 3])), 3)
    return found


def summarise(measured: Mapping[Point, Mapping[str, Array]]) -> dict[str, Any]:
    """What `divergences.json` holds."""
    first, *_ = every = list(measured.values())
    return {
        "paper": "names other divergences as future work; prints no figures for them",
        "seeds": "SeedSequence of figure, point and repetition; see local_fits.py. New sites: the "
        "same and a 1",
        "repetitions a point": len(next(iter(first.values()))),
        "held-out log likelihood": "nats an observation, 300 at each of ten new sites",
        "less the default": "paired with divergence='reverse' and the number come by alike",
        "points": {point.name: table(rows) for point, rows in measured.items()},
        "average over points": table({n: np.mean([own[n] for own in every], 0) for n in first}),
    }


def run(
    place: harness.Place = PLACE, *, repetitions: int = 16, processes: int = 2
) -> dict[str, Any]:
    """Fit what is missing, fuse, measure, draw and write."""
    fill_cache(place.cache, SHOWN, repetitions, processes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdentificationWarning)  # figure 3 is full of doubts
        summary = summarise(measure(place, SHOWN, repetitions, ROWS))
    place.write("divergences", summary)
    draw(summary, place.results)
    for name, told in summary["average over points"].items():
        print(f"{name:40}", *(told[m] for m in MEASURES), told["seconds, median"])
    return summary


def draw(summary: Mapping[str, Any], folder: Path) -> None:
    """Write `divergences.png`: three measures against heterogeneity, the number found."""
    points = [point for point in SHOWN if point.name in summary["points"]]
    tables = [summary["points"][point.name] for point in points]
    x = np.array([point.heterogeneity for point in points])
    with harness.figure(folder / "divergences.png", 1, 3, figsize=(13, 4)) as axes:
        for name, title, axis in zip(MEASURES, TITLES, axes[0], strict=True):
            paired = name == MEASURES[2]
            for place, method in enumerate(DIVERGENCES):
                rows = [own[method][name] for own in tables]
                rows = [row["less the default"] for row in rows] if paired else rows
                # Side by side, so that curves that coincide are seen to.
                aside = 0.008 * (place - (len(DIVERGENCES) - 1) / 2)
                width = 2.2 if method == "reverse" else 1.3
                harness.errorbar(axis, x + aside, rows, label=method, linewidth=width)
            axis.set(xlabel="heterogeneity of sites", title=title)
            axis.grid(alpha=0.25)
            if not paired:
                axis.set_ylim(bottom=0)
        axes[0, 0].legend()


if __name__ == "__main__":
    harness.command(run)
