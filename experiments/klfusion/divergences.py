"""Other divergences on the mixtures of figure 3: `python -m experiments.klfusion.divergences`.

The same local fits are fused by KL's two directions, Jeffreys' divergence and Rényi's of order 1/2,
against the heterogeneity of sites: with the number of components found, given, and judged again.
Beside the errors of figure 3 there is the log likelihood of observations at ten new sites. Writes
`divergences.json` and `divergences.png` into `results` beside this file. Local fits are shared with
`gmm`; errors are kept beside them, under `divergences`, so that a stopped run goes on: remove that
folder to measure anew.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import posterity
from experiments import harness
from experiments.klfusion.generate import Array, Problem, perturb_covariances, sample_mixture
from experiments.klfusion.local_fits import (
    DEFAULT_CACHE,
    POINTS,
    Point,
    Repetition,
    SiteFit,
    draw_problem,
    fill_cache,
    load_point,
)
from experiments.klfusion.metrics import hausdorff, predictive_log_prob, size_error
from experiments.klfusion.ours import to_plate
from posterity.errors import IdentificationWarning

RESULTS = Path(__file__).parent / "results"
DIVERGENCES = ("reverse", "forward", "jeffreys", "renyi")
JUDGED = ("jeffreys",)
MEASURES = ("hausdorff", "size error", "held-out log likelihood", "seconds")
NEW_SITES, NEW_POINTS = 10, 300
SHOWN = tuple(point for point in POINTS if point.figure == 3)
GIVEN = ", number given"
AGAIN = ", number judged again"


def plates(sites: Sequence[SiteFit]) -> dict[str, posterity.Plate]:
    """The sites' posteriors, with their mixing weights."""
    return {
        f"{index:04d}": posterity.Plate(
            to_plate(site).members, posterity.Dirichlet.from_standard(site.weight_concentration)
        )
        for index, site in enumerate(sites)
    }


def new_observations(problem: Problem, point: Point, repetition: int) -> Array:
    """(3000, d) observations of ten sites that nobody has fitted, of the same global components."""
    rng = np.random.default_rng([point.figure, point.index, repetition, 1])
    drawn = []
    for _ in range(NEW_SITES):
        centres = rng.normal(problem.means, point.heterogeneity)
        shapes = perturb_covariances(rng, problem.covariances)
        drawn.append(sample_mixture(rng, centres, shapes, NEW_POINTS))
    return np.concatenate(drawn)


def judged_again(sites: Mapping[str, posterity.Plate], divergence: str) -> posterity.Fusion:
    """Of the numbers within two of the one found, that whose matching is described shortest."""
    found = posterity.fuse(sites, divergence=divergence)
    least = max(site.size for site in sites.values())
    numbers = range(max(least, found.components - 2), found.components + 3)
    tried = [posterity.fuse(sites, divergence=divergence, components=k) for k in numbers]
    return min(tried, key=lambda f: f.plate.confidence.clustering.objective)  # pyright: ignore


def fused_by(name: str, sites: Mapping[str, posterity.Plate], true: int) -> posterity.Fusion:
    """A row of the table."""
    if name.endswith(AGAIN):
        return judged_again(sites, name.removesuffix(AGAIN))
    given = true if name.endswith(GIVEN) else None
    return posterity.fuse(sites, divergence=name.removesuffix(GIVEN), components=given)


def errors(name: str, repetition: Repetition, held_out: Array) -> tuple[float, int, float, float]:
    """The measures of one method at one repetition; log likelihood in nats an observation."""
    sites = plates(repetition.sites)
    start = time.perf_counter()
    posterior = fused_by(name, sites, len(repetition.true_means)).posterior
    seconds = time.perf_counter() - start
    assert isinstance(posterior, posterity.Plate)
    means = np.asarray(posterior.members.mean)  # pyright: ignore[reportAttributeAccessIssue]
    likelihood = float(np.mean(predictive_log_prob(posterior, held_out)))
    truth = repetition.true_means
    return hausdorff(means, truth), size_error(means, truth), likelihood, seconds


def rows() -> list[str]:
    """All methods: a divergence, and how the number of components came about."""
    given = [name + GIVEN for name in DIVERGENCES]
    return [*DIVERGENCES, *given, *(name + AGAIN for name in JUDGED)]


def measure(
    cache: Path, points: Sequence[Point], repetitions: int, names: Sequence[str]
) -> dict[Point, dict[str, Array]]:
    """Errors (R, 4) by point and method."""
    found = {}
    for point in points:
        tables = [
            measure_one(cache / "divergences", point, number, repetition, names)
            for number, repetition in load_point(cache, point, repetitions)
        ]
        found[point] = {name: np.array([table[name] for table in tables]) for name in names}
    return found


def measure_one(
    folder: Path, point: Point, number: int, repetition: Repetition, names: Sequence[str]
) -> dict[str, list[float]]:
    """Errors by method at one repetition; what was measured before is read back."""
    known = harness.kept(folder, f"{point.name}-{number:03d}", None) or {}
    if missing := [name for name in names if name not in known]:
        held_out = new_observations(draw_problem(point, number), point, number)
        known |= {name: errors(name, repetition, held_out) for name in missing}
        harness.replace(folder / f"{point.name}-{number:03d}.json", json.dumps(known))
    return known


def statistics(values: Array, against: Array) -> dict:
    """Means with standard errors, and those of the paired difference to the default."""

    def told(column: Array) -> dict[str, float]:
        spread = column.std(ddof=min(1, len(column) - 1)) / np.sqrt(len(column))
        return {"mean": round(float(column.mean()), 4), "standard error": round(float(spread), 4)}

    out: dict = {}
    for index, name in enumerate(MEASURES[:3]):
        gap = told(values[:, index] - against[:, index])
        out[name] = told(values[:, index]) | {"less the default": gap}
    return out | {"seconds, median": round(float(np.median(values[:, 3])), 3)}


def summarise(measured: Mapping[Point, Mapping[str, Array]]) -> dict:
    """What `divergences.json` holds."""
    first = next(iter(measured.values()))
    average = {
        name: np.mean([table[name] for table in measured.values()], axis=0) for name in first
    }

    def of(table: Mapping[str, Array]) -> dict:
        def default(name: str) -> str:
            return "reverse" + GIVEN if name.endswith(GIVEN) else "reverse"

        return {name: statistics(own, table[default(name)]) for name, own in table.items()}

    return {
        "paper": "names other divergences as future work; prints no figures for them",
        "seeds": "SeedSequence of figure, point and repetition; see local_fits.py. New sites: the "
        "same and a 1",
        "repetitions a point": len(next(iter(first.values()))),
        "held-out log likelihood": "nats an observation, 300 at each of ten new sites",
        "less the default": "paired with divergence='reverse' and the number come by alike",
        "points": {point.name: of(table) for point, table in measured.items()},
        "average over points": of(average),
    }


def run(
    cache: Path, results: Path, repetitions: int, points: Sequence[Point], processes: int = 2
) -> dict:
    """Fit what is missing, fuse, measure, draw and write."""
    fill_cache(cache, points, repetitions, processes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdentificationWarning)  # figure 3 is full of doubts
        measured = measure(cache, points, repetitions, rows())
    summary = summarise(measured)
    harness.write(results, "divergences", summary)
    draw(summary, results)
    return summary


def draw(summary: Mapping, folder: Path) -> None:
    """Write `divergences.png`: three measures against heterogeneity, the number found."""
    titles = (
        "Hausdorff distance of means",
        "error in the number of components",
        "held-out log likelihood, less 'reverse'",
    )
    points = [point for point in SHOWN if point.name in summary["points"]]
    tables = [summary["points"][point.name] for point in points]
    x = np.array([point.heterogeneity for point in points])
    with harness.figure(folder / "divergences.png", 1, 3, figsize=(13, 4)) as axes:
        for name, title, axis in zip(MEASURES[:3], titles, axes[0], strict=True):
            paired = name == MEASURES[2]
            for place, method in enumerate(DIVERGENCES):
                rows = [table[method][name] for table in tables]
                rows = [row["less the default"] for row in rows] if paired else rows
                mean, spread = ([row[kind] for row in rows] for kind in ("mean", "standard error"))
                # Side by side, so that curves that coincide are seen to.
                aside = 0.008 * (place - (len(DIVERGENCES) - 1) / 2)
                width = 2.2 if method == "reverse" else 1.3
                axis.errorbar(x + aside, mean, spread, label=method, linewidth=width, capsize=2)
            axis.set(xlabel="heterogeneity of sites", title=title)
            axis.grid(alpha=0.25)
            if not paired:
                axis.set_ylim(bottom=0)
        axes[0, 0].legend()


def main() -> None:
    """Parse the command line and run."""
    parser = harness.command_line(__doc__, RESULTS, DEFAULT_CACHE)
    parser.add_argument("--repetitions", type=int, default=16, help="a point (default: 16)")
    parser.add_argument("--processes", type=int, default=2, help="for the local fits")
    arguments = parser.parse_args()
    summary = run(
        arguments.cache, arguments.results, arguments.repetitions, SHOWN, arguments.processes
    )
    for name, told in summary["average over points"].items():
        values = "  ".join(
            f"{told[m]['mean']:8.3f} ± {told[m]['standard error']:.3f}" for m in MEASURES[:3]
        )
        print(f"{name:40} {values}  {told['seconds, median']:.3f} s")


if __name__ == "__main__":
    main()
