"""How often matches of a given margin are wrong: the table in `docs/fuse.md`.

Sites have exact conjugate posteriors of their own clusters, drawn from a set that all share, about
centres that a site shifts. A match is wrong if its fused component is not the one that stands for
its cluster, in the best pairing of the two. `python -m experiments.klfusion.margins` writes
`margins.json` into `results` beside this file.
"""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import posterity
from experiments import harness
from experiments.klfusion.generate import Array
from posterity.errors import FusionWarning, IdentificationWarning

RESULTS = Path(__file__).parent / "results"
SHIFTS = (0.0, 0.3, 1.0)
EDGES = (-np.inf, 1.0, 3.0, 10.0, 30.0, np.inf)


class Outcome(NamedTuple):
    """By match its margin and whether it is wrong; the runner-up number's nats, and the error."""

    margins: Array
    wrong: NDArray[np.bool_]
    runner_up: float
    number_wrong: bool


def site(rng: Generator, centres: Array, deviations: Array, shift: float) -> posterity.Plate:
    """Normal-Wisharts of clusters of 20 to 200 records each, after a vague prior."""
    count, dim = centres.shape
    n = rng.integers(20, 200, count).astype(float)
    centres = centres + shift * deviations * rng.normal(size=centres.shape)
    noise = [s * rng.normal(size=(int(k), dim)) for s, k in zip(deviations, n, strict=True)]
    data = [centre + x for centre, x in zip(centres, noise, strict=True)]
    totals = np.stack([x.sum(0) for x in data])
    scatter = np.stack([np.eye(dim) + x.T @ x for x in data])
    return posterity.Plate(posterity.NormalWishart(0.01 + n, dim + 2 + n, totals, scatter))


def outcome(seed: int, shift: float) -> Outcome:
    """One problem: 3 to 20 sites, 3 to 12 clusters in 2 or 5 dimensions, near or far."""
    rng = np.random.default_rng(seed)
    dim, sites, total = (int(rng.choice(c)) for c in ((2, 5), (3, 5, 10, 20), (3, 6, 12)))
    centres = rng.choice((0.5, 1.0, 2.0, 4.0)) * rng.normal(size=(total, dim))
    deviations = np.exp(0.4 * rng.normal(size=(total, dim)))
    size = max(2, round(total * rng.uniform(0.4, 0.9)))
    rows = [rng.choice(total, size, replace=False) for _ in range(sites)]
    fused = posterity.fuse([site(rng, centres[r], deviations[r], shift) for r in rows])
    evidence, truth = fused.components_evidence, np.concatenate(rows)
    others = [nats for number, nats in evidence.items() if number != fused.components]
    wrong = _wrong(np.concatenate(list(fused.matching.values())), truth)
    margins = np.concatenate(list(fused.margins.values()))
    number = len(np.unique(truth))
    return Outcome(margins, wrong, min(others, default=np.inf), fused.components != number)


def _wrong(labels: NDArray[np.int_], truth: NDArray[np.int_]) -> NDArray[np.bool_]:
    table = np.zeros((labels.max() + 1, truth.max() + 1))
    np.add.at(table, (labels, truth), 1)
    stands_for = np.full(len(table), -1)
    fused, true = linear_sum_assignment(-table)
    stands_for[fused] = true
    return stands_for[labels] != truth


def shares(nats: Array, wrong: NDArray[Any]) -> dict[str, dict[str, float | int | None]]:
    """The share that is wrong, and of how many, by the nats between the edges."""
    found = {}
    for low, high in itertools.pairwise(EDGES):
        inside = (nats >= low) & (nats < high)
        share = round(float(wrong[inside].mean()), 4) if inside.any() else None
        found[f"{low:g} to {high:g}"] = {"wrong": share, "of": int(inside.sum())}
    return found


def main() -> None:
    """Measure, and write `results/margins.json`."""
    parser = harness.command_line(__doc__, RESULTS)
    parser.add_argument("--problems", type=int, default=150, help="for each shift")
    chosen = parser.parse_args()
    problems = range(6 if chosen.quick else chosen.problems)
    warnings.simplefilter("ignore", IdentificationWarning)
    warnings.simplefilter("ignore", FusionWarning)
    found = {shift: [outcome(seed, shift) for seed in problems] for shift in SHIFTS}
    right = [o for outcomes in found.values() for o in outcomes if not o.number_wrong]
    matches = lambda some: shares(*(np.concatenate([o[k] for o in some]) for k in (0, 1)))
    numbers = lambda some: shares(*(np.array([o[k] for o in some]) for k in (2, 3)))
    table = {
        "problems of each shift": len(problems),
        "matches": {f"shift {shift:g}": matches(some) for shift, some in found.items()},
        "matches, number right": matches(right),
        "number of components": {
            f"shift {shift:g}": numbers(some) for shift, some in found.items()
        },
    }
    harness.write(chosen.results, "margins", table)
    print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
