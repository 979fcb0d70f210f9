"""How often matches of a given margin are wrong: the table in `docs/fuse.md`.

Sites have exact conjugate posteriors of their own clusters, drawn from a set that all share, about
centres that a site shifts. A match is wrong if its fused component is not the one that stands for
its cluster, in the best pairing of the two. `python -m experiments.klfusion.margins` writes
`margins.json` into `results` beside this file.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

import posterity
from experiments import harness
from experiments.klfusion.local_fits import Array

PLACE = harness.Place.of(__file__)
SHIFTS = (0.0, 0.3, 1.0)
EDGES = (-np.inf, 1.0, 3.0, 10.0, 30.0, np.inf)


class Outcome(NamedTuple):
    """By match its margin and whether it is wrong; the runner-up number's nats, and the error."""

    margins: Array
    wrong: Array
    runner_up: float
    number_wrong: bool


def site(rng: Any, centres: Array, deviations: Array, shift: float) -> posterity.Plate:
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
    others = [n for number, n in fused.components_evidence.items() if number != fused.components]
    truth, labels = np.concatenate(rows), np.concatenate(list(fused.matching.values()))
    table = np.zeros((labels.max() + 1, truth.max() + 1))
    np.add.at(table, (labels, truth), 1)
    stands_for = np.full(len(table), -1)
    pairs = linear_sum_assignment(table, maximize=True)
    stands_for[pairs[0]] = pairs[1]
    wrong, margins = stands_for[labels] != truth, np.concatenate(list(fused.margins.values()))
    right = fused.components == len(np.unique(truth))
    return Outcome(margins, wrong, min(others, default=np.inf), not right)


def shares(nats: Array, wrong: Array) -> dict[str, dict[str, float | int | None]]:
    """The share that is wrong, and of how many, by the nats between the edges."""
    found = {}
    for low, high in itertools.pairwise(EDGES):
        inside = (nats >= low) & (nats < high)
        share = round(float(wrong[inside].mean()), 4) if inside.any() else None
        found[f"{low:g} to {high:g}"] = {"wrong": share, "of": int(inside.sum())}
    return found


def run(
    place: harness.Place = PLACE, *, problems: int = 150, quick: bool = False
) -> dict[str, Any]:
    """So many problems of each shift, written to `results/margins.json`."""
    seeds = range(6 if quick else problems)
    found = {shift: [outcome(seed, shift) for seed in seeds] for shift in SHIFTS}
    right = [o for outcomes in found.values() for o in outcomes if not o.number_wrong]
    matches = lambda some: shares(*(np.concatenate([o[k] for o in some]) for k in (0, 1)))
    numbers = lambda some: shares(*(np.array([o[k] for o in some]) for k in (2, 3)))
    by_shift = lambda table: {f"shift {shift:g}": table(some) for shift, some in found.items()}
    document = {
        "problems of each shift": len(seeds),
        "matches": by_shift(matches),
        "matches, number right": matches(right),
        "number of components": by_shift(numbers),
    }
    place.write("margins", document)
    return document


if __name__ == "__main__":
    harness.command(run)
